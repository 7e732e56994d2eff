"""All train steps are one program: what they differ in is paid by the host, on every step."""

from perfsuite.measure.program.program_diff import program_differences
from perfsuite.measure.program.program_metrics import gated_facts

from .abstract_steps import TARGET, shapes, zeros
from .conftest import DROPOUT, Steps, Workload

SAME = ("list", "partition", "cached_filter_jit")
"""As the flat step."""
MARKED = {
    "bytes accessed",
    "code bytes",
    "copies",
    "estimated us",
    "launches",
    "output bytes",
    "peak bytes",
    "temp bytes",
}
"""What the marker of `filter_jit` may change: an output that says when the step is done."""


def compare_train_steps(perf, target, same=SAME):
    """Hold that the train steps are one program for a target, and return the bytes of the marker of `filter_jit`."""
    made = shapes(perf.size, **DROPOUT["no-dropout"])
    if perf.size == "small":
        made = made.changed(num_layers=1)  # what the steps differ in is outside the layers
    steps = Steps(Workload(made.config, made.batch_size, made.sequence), model=zeros(made.config))

    def program(variant):
        return perf.program(steps.cold_call(variant), target, name=variant)

    flat = program("flat")
    for variant in same:
        assert program_differences(flat, program(variant)) == ""
    filtered = program("filter_jit")
    if same == SAME:
        # The `tree_at` in the call of `Optimizer` leaves nothing in the program.
        assert program_differences(filtered, program("optimizer")) == ""
    mine, theirs = gated_facts(flat), gated_facts(filtered)
    assert {name for name in mine if mine[name] != theirs[name]} <= MARKED
    return theirs["output bytes"] - mine["output bytes"]


def test_train_steps_compile_to_the_same_program(perf):
    assert 0 < compare_train_steps(perf, TARGET) <= 1024, "one number, in the least that a TPU allots"


def test_train_steps_compile_to_the_same_program_for_a_gpu(perf):
    """Three of the six, because each takes 7 s to compile; all six were when they were tried (jax 0.10.2)."""
    marker = compare_train_steps(perf, "gpu-h100", same=("partition",))
    assert 0 < marker <= 16, "one number, and its pointer in the table of outputs"
