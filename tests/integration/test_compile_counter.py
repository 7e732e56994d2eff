"""The fixture `compile_counter`, for ordinary tests."""

import jax
import jax.numpy as jnp
import pytest

from perfsuite import RecompilationError


def test_it_works_without_perf_and_counts(compile_counter):
    step = jax.jit(lambda x: x + 1)
    inputs = jnp.ones(3)
    with compile_counter.count() as counted:
        step(inputs)
        step(inputs)
    assert (counted.traces, counted.lowerings, counted.compiles) == (1, 1, 1)


def test_it_forbids_and_names_the_cause(compile_counter):
    step = jax.jit(lambda x: x + 1)
    before, after = jnp.ones(3), jnp.ones(4)
    step(before)
    with pytest.raises(RecompilationError, match=r"shape was \(3,\), is \(4,\)"), compile_counter.forbid():
        step(after)


def test_an_ordinary_test_that_uses_it_is_not_skipped(pytester):
    pytester.makepyfile("def test_it(compile_counter): pass")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
