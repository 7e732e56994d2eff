"""Whatever a program donates, its facts are in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compiled_texts import TEXTS, read

from perfsuite.measure.program.program import DonatedArgument
from perfsuite.measure.program.program_diff import program_differences
from perfsuite.measure.program.program_metrics import metrics_of

PATHS = st.sampled_from(["args[0]", "args[1]"])
PARAMETERS = st.integers(0, 99) | st.none()
DONATIONS = st.lists(st.builds(DonatedArgument, PATHS, st.just("f32[2]"), st.just(8), PARAMETERS))


@pytest.mark.parametrize("name", ["sharded_v5e", "called_back_cpu"])
@given(donations=DONATIONS)
def test_counts_are_those_of_their_parts(name, donations):
    program = read(TEXTS[name], donations=donations)
    for one in metrics_of(program):
        if one.kind == "count":
            assert sum((one.detail or {}).values()) == one.value >= 0
    assert len(program.reused_donations) + len(program.lost_donations) == len(donations)
    assert program_differences(program, program) == ""
