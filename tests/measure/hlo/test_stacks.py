"""The stacks that the tables of an HLO text hold."""

import pytest
from support.compiled_texts import one_line

from perfsuite.measure.hlo.hlo_module import Frame

TABLES = """
FileNames
1 "a.py"
2 "b \\"c\\".py"

FunctionNames
1 "outer"
2 "middle"
3 "inner"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=10 end_line=10 column=2 end_column=3}}
2 {{file_name_id=1 function_name_id=2 line=20}}
3 {{file_name_id=2 function_name_id=3 line=30}}

StackFrames
1 {{file_location_id=1{0}}}
2 {{file_location_id=2{1}}}
3 {{file_location_id=3{2}}}

"""


OUTER, MIDDLE, INNER = Frame("a.py", 10, "outer"), Frame("a.py", 20, "middle"), Frame('b "c".py', 30, "inner")


def stack_with(parents, frame=3):
    tables = TABLES.format(*("" if parent is None else f" parent_frame_id={parent}" for parent in parents))
    return one_line(f'%x = f32[] add(), metadata={{op_name="x" stack_frame_id={frame}}}', header="\n" + tables).stack


def test_frames_that_lead_back_to_themselves_end():
    assert stack_with([3, 1, 2]) == (INNER, MIDDLE, OUTER)
    assert stack_with([0, 2, 2]) == (INNER, MIDDLE)


@pytest.mark.parametrize("frame", [0, 4, 999999999])
def test_a_frame_that_no_table_has_is_no_stack(frame):
    assert stack_with([1, 2, 3], frame) == ()
    assert one_line(f"%x = f32[] add(), metadata={{stack_frame_id={frame}}}").stack == ()
