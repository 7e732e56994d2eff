"""What changed between two steps: metrics, parts, and the program."""

import jax
import jax.numpy as jnp
import pytest
from support.against import ENVIRONMENT, TEST
from support.bisecting import CALLS, count, first_run

from perfsuite import call
from perfsuite.bisecting import metric
from perfsuite.bisecting.explaining import changes_between, grown_between, program_between
from perfsuite.gate.baseline import Entry
from perfsuite.measure.metric import Interval
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.targets import cache


def recorded(entries):
    return metric.of_test(first_run(entries), TEST)


def test_only_what_changed_is_listed():
    before = recorded({CALLS: count(5, f=5), "flops": count(7), "new": count(1)})
    after = recorded({CALLS: count(9, f=5, g=4), "flops": count(7), "newer": count(1)})
    found = {change.metric: change.called for change in changes_between(TEST, before, after)}
    assert found == {CALLS: "worse", "new": "gone", "newer": "new"}


def test_a_ratio_that_one_run_sampled_is_not_compared():
    def step(value):
        ratio = Entry(value, "x", "ratio", "measured", ENVIRONMENT, Interval(0.99 * value, 1.01 * value), 50)
        return recorded({"a/b ratio to ready": ratio, CALLS: count(value)})

    assert [change.metric for change in changes_between(TEST, step(1), step(9))] == [CALLS]


def test_the_parts_are_those_of_the_worse_side():
    good, bad = recorded({CALLS: count(5, f=5)}), recorded({CALLS: count(9, f=5, g=4)})
    assert [(part.name, part.amount) for part in grown_between(TEST, CALLS, good, bad)] == [("g", 4)]
    assert grown_between(TEST, CALLS, bad, good) == ()


@pytest.fixture
def folders(tmp_path):
    """The facts of two programs of the metric `step flops`, of `perf.program`."""
    steps = (lambda x: x @ x, lambda x: (x @ x) @ x)
    for name, step in zip(("before", "after"), steps, strict=True):
        compiled = compile_call(call(jax.jit(step), jnp.ones((8, 8))), None, cache=None).to_dict()
        cache.write(tmp_path / name, cache.key_of_baseline(TEST, "program", None, "cpu"), compiled)
    return tmp_path / "before", tmp_path / "after"


def test_the_program_is_compared_where_both_were_compiled_now(folders, tmp_path):
    step = recorded({"program flops": Entry(1, "FLOP", "size", "measured", ENVIRONMENT, label="step flops")})
    lines = program_between("step flops", step, step, folders)
    assert lines[0].startswith("flops: ")
    assert any(line.startswith("+ 1 x") for line in lines)
    assert program_between("step flops", step, step, (folders[0], tmp_path / "none")) == ()


def test_a_metric_of_no_program_has_none(folders):
    step = recorded({CALLS: count(5)})
    assert program_between(CALLS, step, step, folders) == ()
