"""`measure.hlo.elements`: a tuple's element that a text names without an instruction is read as one."""

import pytest
from support.compiled_texts import module

from perfsuite.measure.hlo.elements import elements_of, named_elements
from perfsuite.measure.hlo.hlo_module import Shape
from perfsuite.measure.hlo.reader import parse_hlo
from perfsuite.measure.hlo.scanner import HloError

NESTED = "(s32[]{:T(128)}, /*index=1*/(f32[2,3]{1,0:T(8,128)}, token[]), b(u32[4]))"


def test_the_shapes_of_a_tuple_are_those_at_its_top():
    assert elements_of(NESTED) == ["s32[]{:T(128)}", "(f32[2,3]{1,0:T(8,128)}, token[])", "b(u32[4])"]
    assert elements_of("()") == elements_of("f32[2,3]{1,0}") == elements_of("") == []


def test_an_element_of_an_element_is_two():
    assert list(named_elements("state#1#0")) == [("state#1", "state", 1), ("state#1#0", "state#1", 0)]
    assert list(named_elements("state.1")) == list(named_elements("state#x")) == []


def test_elements_are_instructions_before_their_first_use():
    lines = (
        f"%state = {NESTED} parameter(3)",
        "%next = s32[] add(%state#0, %state#0)",
        "%out = (s32[], f32[2,3]{1,0}) tuple(%next, %state#1#0)",
    )
    found = parse_hlo(module("\n".join(lines))).computations["main"].instructions[3:]
    assert [op.name for op in found] == ["state", "state#0", "next", "state#1", "state#1#0", "out"]
    last = found[4]
    assert (last.opcode, last.operands, last.attributes["index"]) == ("get-tuple-element", ("state#1",), "0")
    assert last.shapes == (Shape("f32", (2, 3)),)
    assert found[3].shapes == (Shape("f32", (2, 3)), Shape("token", ()))


@pytest.mark.parametrize("operand", ["state#3", "state#x", "a#0", "other#0", "state#1#2"])
def test_an_element_that_is_not_there_is_refused(operand):
    text = module(f"%state = {NESTED} parameter(3)\n%next = s32[] negate(%{operand})")
    with pytest.raises(HloError, match=f"there is no instruction '{operand}'"):
        parse_hlo(text)
