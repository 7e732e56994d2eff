"""optimistix: warm starts, options that are part of the program, what a failing solve does."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from perfsuite import Budget, RecompilationError, call

optx = pytest.importorskip("optimistix", reason="the project that is tried: pip install optimistix")


def root(y, rate):
    return y - jnp.cos(rate * y)


NEWTON, LEVENBERG = optx.Newton(rtol=1e-5, atol=1e-5), optx.LevenbergMarquardt(rtol=1e-5, atol=1e-5)
ONE, HALF = jnp.float32(1), jnp.float32(0.5)


@eqx.filter_jit
def find(y0, rate):
    return optx.root_find(root, NEWTON, y0, rate).value


@eqx.filter_jit
def find_quietly(y0, rate):
    return optx.root_find(root, NEWTON, y0, rate, throw=False).value


def test_a_warm_start_from_an_array_of_weak_type_does(perf):
    weak = jnp.asarray(0.5)
    warm = perf.warm(eqx.filter_jit(lambda y0: optx.root_find(root, NEWTON, y0, ONE).value), over=[(weak,)])
    found = warm(weak)
    with pytest.raises(RecompilationError, match="weak type was True"), perf.no_compiles():
        warm(found)


def test_a_function_that_closes_over_a_number_is_compiled_each_time(perf):
    def solve(rate):
        return optx.root_find(lambda y, _: y - jnp.cos(rate * y), NEWTON, HALF)

    solve(1.0)
    with pytest.raises(RecompilationError, match=r"closed-over rate \(of fn\): static"), perf.no_compiles():
        solve(2.0)


def test_what_a_call_costs_the_host(perf):
    eager = call(optx.root_find, root, NEWTON, HALF, ONE)
    perf.host_calls(call(find, HALF, ONE))
    perf.host_calls(eager)
    perf.compare(eager, call(find, HALF, ONE), Budget(ratio=4.0), until="return")
    perf.compare(call(find, HALF, ONE), call(find_quietly, HALF, ONE), Budget(ratio=1.5), name="with its error check")


def test_a_failing_solve_calls_back_and_a_good_one_does_not(perf):
    perf.transfers(call(find, HALF, ONE), budget=Budget(transfers=0))
    fail = eqx.filter_jit(lambda y0: optx.root_find(lambda y, _: y**2 + 1, NEWTON, y0, max_steps=4).value)
    with perf.count_transfers() as counted, pytest.raises(Exception, match="maximum number of steps"):
        jax.block_until_ready(fail(HALF))
    assert counted.callbacks == 1
