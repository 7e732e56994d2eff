"""evosax: ask and tell, alone and under one jit, the weak types of its first state, and what a new strategy compiles."""

import jax
import jax.numpy as jnp
import pytest

from perfsuite import Budget, RecompilationError, call

algorithms = pytest.importorskip("evosax.algorithms", reason="the project that is tried: pip install evosax")

SOLUTION = jnp.zeros(8)
STRATEGIES = {
    name: getattr(algorithms, name)(population_size=16, solution=SOLUTION) for name in ("Open_ES", "CMA_ES", "SNES")
}


def state_of(name):
    strategy = STRATEGIES[name]
    return strategy.init(jax.random.key(0), SOLUTION, strategy.default_params)


def generation_of(name):
    strategy = STRATEGIES[name]
    params = strategy.default_params

    def generation(state, key):
        population, state = strategy.ask(key, state, params)
        return strategy.tell(key, population, (population**2).sum(-1), state, params)

    return generation


KEY = jax.random.key(1)
JITTED = {name: jax.jit(generation_of(name), donate_argnums=0) for name in STRATEGIES}


def of(name):
    return call(JITTED[name], state_of(name), KEY, carry=1)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_generation_under_one_jit(perf, name):
    perf.host_calls(of(name), budget=Budget(host_calls=20))
    perf.dispatches(of(name), budget=Budget(dispatches=1))
    perf.fast_path(of(name), budget=Budget(fast_path_misses=0))
    perf.transfers(of(name), budget=Budget(transfers=0))
    perf.memory(of(name), budget=Budget(leaked_arrays=0))
    # `ask` of CMA_ES computes `B` and `D` from the covariance (`cma_es.py:176`), so those of the state are not read.
    perf.donation(of(name), budget=Budget(undonated=2 if name == "CMA_ES" else 0))
    perf.program(of(name))


def test_a_generation_of_ask_and_tell(perf):
    """As the README of evosax has it: two jitted methods, and the fitness outside."""
    perf.host_calls(call(generation_of("Open_ES"), state_of("Open_ES"), KEY, carry=1))
    perf.transfers(call(generation_of("Open_ES"), state_of("Open_ES"), KEY, carry=1), budget=Budget(transfers=0))
    perf.fast_path(call(generation_of("Open_ES"), state_of("Open_ES"), KEY, carry=1), budget=Budget(fast_path_misses=0))


def test_parameters_that_are_python_numbers_go_to_the_device_in_every_call(perf):
    moved = perf.transfers(call(generation_of("CMA_ES"), state_of("CMA_ES"), KEY, carry=1))
    assert {event.cause.partition(" at ")[2] for event in moved.events} == {
        "args[5].std_min (of params)",
        "args[5].std_max (of params)",
        "args[5].c_mean (of params)",
    }, "evosax 0.3.2"


def test_the_first_state_is_of_another_type_than_the_next(perf):
    """`best_solution` comes from `jnp.full(n, jnp.nan)`, `best_fitness` is `jnp.inf`: evosax 0.3.2."""
    generation = perf.warm(jax.jit(generation_of("Open_ES")), over=[(state_of("Open_ES"), KEY)])
    state, _ = generation(state_of("Open_ES"), KEY)
    with pytest.raises(RecompilationError) as raised, perf.no_compiles():
        generation(state, KEY)
    assert "args[0].best_solution: weak type was True" in str(raised.value)
    assert "args[0].best_fitness: weak type was True" in str(raised.value)


def test_a_new_strategy_compiles_again(perf):
    params, state = STRATEGIES["SNES"].default_params, state_of("SNES")
    STRATEGIES["SNES"].ask(KEY, state, params)
    again = algorithms.SNES(population_size=16, solution=SOLUTION)
    with pytest.raises(RecompilationError, match=r"args\[0\] \(self\): static value .*SNES"), perf.no_compiles():
        again.ask(KEY, state, params)
