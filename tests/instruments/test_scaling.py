"""`perf.scaling` of a time: what a budget on its power decides, and what is said of a line that is none."""

import pytest
from support.fakes import FakeBlocks, takes

from perfsuite.measure.timing import scaling

LINEAR, SQUARE, DISTURBED = "[n]", "[n * n / 100]", "[n] if n < 400 else [1600] * 3 + [400]"


@pytest.fixture
def scaled(project, monkeypatch):
    """Run `perf.scaling` of a call whose blocks take these microseconds, in turn."""
    FakeBlocks().install(monkeypatch, scaling)
    assert takes  # which the tests of the project import

    def run(times, budget, *options):
        project.makepyfile(
            test_step=f"""
            from perfsuite import Budget, call
            from support.fakes import takes

            def sized(n):
                return call(takes(*({times}), name="step")), n

            def test_step(perf):
                perf.scaling(sized, [100, 200, 400], metric="ready", budget=Budget({budget}))
            """
        )
        return project.runpytest_inprocess("--perf", *options)

    return run


@pytest.mark.parametrize(
    ("times", "passes", "decided"),
    [(LINEAR, True, True), (SQUARE, False, True), (DISTURBED, True, False)],
    ids=["linear", "square", "disturbed"],
)
def test_a_time_that_became_quadratic_fails_without_a_baseline(scaled, times, passes, decided):
    scaled(times, "exponent=1.3").assert_outcomes(**{"passed" if passes else "failed": 1})
    strictly = scaled(times, "exponent=1.3", "--perf-strict=inconclusive")
    strictly.assert_outcomes(**{"passed" if passes and decided else "failed": 1})


def test_a_line_that_is_none_is_said_where_no_budget_allows_it(scaled):
    said = "*step to ready per unit: it grows with the power 2 of the size (100 at 100, 400 at 200, 1,600 at 400)*"
    scaled(SQUARE, "").stdout.fnmatch_lines([said])
    scaled(SQUARE, "exponent=2.5").stdout.no_fnmatch_line(said)
    scaled(LINEAR, "").stdout.no_fnmatch_line("*it grows*")


LOOP = """
import jax, jax.numpy as jnp
from perfsuite import Budget, call

@jax.jit
def train(state, batch):
    return state + batch

def sized(steps):
    def epoch(state, batches):
        for batch in batches:
            state = train(state, jax.device_put(batch))
            log(state)
        return state
    return call(epoch, jnp.zeros(()), range(steps)), steps

def log(state):
    pass

def test_a_step(perf):
    for metric, a_step in {"dispatches": 1, "eager_operations": 0, "explicit_transfers": 1}.items():
        assert perf.scaling(sized, [2, 4, 8], metric=metric).per_unit.value == a_step
    perf.scaling(sized, [2, 4, 8], metric="blocking_reads", budget=Budget(exponent=0))
"""


def test_the_loop_of_a_trainer_has_its_numbers_a_step_and_a_read_in_each_is_named(project):
    project.makepyfile(test_loop=LOOP)
    project.runpytest_inprocess("--perf").assert_outcomes(passed=1)
    project.makepyfile(test_loop=LOOP.replace("    pass", "    float(state)"))
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*it grows with the power 1 of the size (2 at 2, 4 at 4, 8 at 8); above all *test_loop.py:17*"]
    )
