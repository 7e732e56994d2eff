"""`measure.runtime.what_runs`: what differs in a program or in the host calls by name, and what is unknown."""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite import call
from perfsuite.measure.runtime.what_runs import host_calls_hash, programs_hash


def by(factor):
    return jax.jit(lambda x: factor * x)


def on_the_host(*functions):
    step = by(2)

    def run(x):
        for function in functions:
            function()
        return step(x)

    return run


def programs(function, *args):
    return programs_hash([call(function, *args)])


def host_calls(function, *args):
    return host_calls_hash([call(function, *args)])


def test_another_constant_is_another_program_and_the_host_calls_are_the_same():
    one, same, other = by(2), by(2), by(3)
    x = jnp.ones(3)
    assert programs(one, x) == programs(same, x) != programs(other, x)
    assert host_calls(one, x) == host_calls(other, x)


def test_another_call_on_the_host_is_seen_by_its_name_and_the_programs_are_the_same():
    x = jnp.ones(3)
    slept, read = on_the_host(time.monotonic), on_the_host(time.perf_counter)
    assert host_calls(slept, x) == host_calls(on_the_host(time.monotonic), x) != host_calls(read, x)
    assert programs(slept, x) == programs(read, x)


def test_the_order_and_the_number_of_calls_count():
    x = jnp.ones(3)
    one, other = call(by(2), x), call(by(3), x)
    assert len({programs_hash(each) for each in ([one], [one, other], [other, one], [one, one])}) == 4


@pytest.mark.parametrize("wrap", [jax.grad, lambda f: jax.jit(f).lower(jnp.ones(())).compile()])
def test_programs_outside_of_jit_and_compiled_ahead_are_unknown(wrap):
    assert programs(wrap(by(2)), jnp.ones(())) is None


def test_large_constants_of_a_program_count():
    def adding(numbers):
        return jax.jit(lambda x: x + jnp.asarray(numbers))

    numbers, x = np.zeros(10_000, np.float32), jnp.ones(10_000)
    before = programs(adding(numbers), x)
    numbers = numbers.copy()
    numbers[5_000] = 1
    assert programs(adding(numbers), x) != before


@pytest.mark.parametrize(
    "called",
    [lambda x: jax.debug.callback(print, x), lambda x: jax.pure_callback(np.negative, x, x)],
    ids=["debug", "pure"],
)
def test_a_program_that_calls_back_into_python_is_unknown(called):
    @jax.jit
    def calling(x):
        returned = called(x)
        return x if returned is None else returned

    assert programs(calling, jnp.ones(3)) is None


def test_host_calls_that_differ_in_each_run_are_unknown():
    counter = itertools.count()
    assert host_calls(lambda: [len("a") for _ in range(next(counter))]) is None


def test_a_call_that_cannot_run_is_unknown():
    spent = jnp.ones(3)
    spent.delete()
    assert programs(jnp.sin, spent) is None
    assert host_calls(jnp.sin, spent) is None
