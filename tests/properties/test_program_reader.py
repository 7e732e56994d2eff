"""Whatever well-formed program a compiler prints, its facts can be read and are in order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from perfsuite.measure.hlo.reader import parse_hlo
from perfsuite.measure.program.program import DonatedArgument, Origin
from perfsuite.measure.program.program_diff import program_differences
from perfsuite.measure.program.program_metrics import metrics_of
from perfsuite.measure.program.program_reader import read_program
from properties.hlo_texts import written_modules

ORIGIN = Origin("step", None, "a device", 1, 1, "a compiler", False, 0.0, 0.0, None, None)
MEMORY = {f"{name}_size_in_bytes": 0 for name in ("argument", "output", "temp", "alias", "generated_code")}
DONATIONS = st.lists(
    st.builds(
        DonatedArgument,
        st.sampled_from(["args[0]", "args[1]"]),
        st.just("f32[2]"),
        st.just(8),
        st.integers(0, 99) | st.none(),
    )
)


@settings(max_examples=60)
@given(written_modules(), DONATIONS)
def test_counts_are_those_of_their_parts(written, donations):
    text, module = written
    program = read_program(ORIGIN, parse_hlo(text), {}, MEMORY, donations)
    instructions = sum(len(computation.instructions) for computation in module.computations.values())
    for one in metrics_of(program):
        if one.kind == "count":
            assert 0 <= one.value <= max(instructions, len(donations))
            assert sum((one.detail or {}).values()) == one.value
    assert 0 <= program.donations_reused <= program.donations_asked == len(donations)
    assert program_differences(program, program) == ""
