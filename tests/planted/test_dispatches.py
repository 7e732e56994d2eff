"""A user's loop in which a second program was planted: a jitted function called twice, a tree map outside jit."""

import pytest

LOOP = """
import jax
import jax.numpy as jnp
from perfsuite import Budget, call

@jax.jit
def train_step(state, batch):
    return jax.tree.map(lambda leaf: leaf + batch.sum(), state)

def once(state, batch):
    return train_step(state, batch)

def twice(state, batch):
    state = train_step(state, batch)
    return train_step(state, batch)

def averaged(state, batch):
    new = train_step(state, batch)
    return jax.tree.map(jnp.add, state, new)

def made(function):
    return call(function, {"bias": jnp.ones(4), "kernel": jnp.ones((4, 4))}, jnp.ones(4), carry=1)
"""

TEST = """
from loop import *

def test_loop(perf):
    perf.{instrument}(made({function}), name="loop")
"""

TWICE = "*loop dispatches is 2 programs, +1 (+100 %) over the baseline 1 program; grew: train_step (+1) at loop.py:13, loop.py:14*"
AVERAGED = (
    "*loop eager operations is 2 operations, +2 over the baseline 0 operations; grew: add (+2) at loop.py:18 (2 times)*"
)


@pytest.fixture
def loop(project: pytest.Pytester) -> pytest.Pytester:
    project.makepyfile(loop=LOOP)
    return project


@pytest.mark.parametrize(
    ("instrument", "function", "said"),
    [
        ("dispatches", "twice", TWICE),
        ("host_calls", "twice", TWICE),
        ("dispatches", "averaged", AVERAGED),
        ("host_calls", "averaged", AVERAGED),
    ],
)
def test_a_program_more_fails_against_the_baseline_and_its_line_is_named(loop, instrument, function, said):
    loop.makepyfile(test_loop=TEST.format(instrument=instrument, function="once"))
    loop.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    loop.runpytest_inprocess("--perf").assert_outcomes(passed=1)
    loop.makepyfile(test_loop=TEST.format(instrument=instrument, function=function))
    result = loop.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])


def test_a_budget_limits_jitted_functions_and_operations_together(loop):
    loop.makepyfile(
        test_loop="""
        from loop import *

        def test_once(perf):
            assert perf.dispatches(made(once), budget=Budget(dispatches=1)).total == 1

        def test_averaged(perf):
            perf.dispatches(made(averaged), budget=Budget(dispatches=1))
        """
    )
    result = loop.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "*averaged programs run is 3 programs, +200 % over the budget of 1 program*",
            "*likely cause: train_step (1) at loop.py:17; eager: add (2) at loop.py:18 (2 times)*",
            "*each operation outside jit is a program of its own: do it inside the jitted function*",
        ]
    )


def test_a_program_more_in_a_loop_that_is_not_jitted_adds_its_work_and_is_named(loop):
    test = TEST.replace("perf.{instrument}", "perf.program")
    loop.makepyfile(test_loop=test.format(function="once"))
    loop.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    loop.runpytest_inprocess("--perf").assert_outcomes(passed=1)
    loop.makepyfile(test_loop=test.format(function="twice"))
    result = loop.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["loop flops is * FLOP, +100 % over the baseline *; grew: train_step (+*"])
    result.stdout.fnmatch_lines(["also worse: *loop launches * -> * launches (+100 %, train_step)*"])
