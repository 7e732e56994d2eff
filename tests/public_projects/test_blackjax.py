"""blackjax: samplers under jit, chains under vmap, keys of both kinds, adaptation, and what an eager step costs."""

import jax
import jax.numpy as jnp
import pytest

from perfsuite import Budget, RecompilationError, call

blackjax = pytest.importorskip("blackjax", reason="the project that is tried: pip install blackjax")

MASS = jnp.ones(4)


def logdensity(x):
    return -0.5 * (x**2).sum() + jnp.cos(x).sum()


SAMPLERS = {
    "hmc": blackjax.hmc(logdensity, step_size=0.1, inverse_mass_matrix=MASS, num_integration_steps=10),
    "nuts": blackjax.nuts(logdensity, step_size=0.1, inverse_mass_matrix=MASS),
    "mala": blackjax.mala(logdensity, step_size=0.1),
}


def stepper(sampler):
    def step(state, key):
        return sampler.step(key, state)[0]

    return jax.jit(step, donate_argnums=0)


def of(name):
    return call(stepper(SAMPLERS[name]), SAMPLERS[name].init(jnp.zeros(4)), jax.random.key(0), carry=1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_step(perf, name):
    perf.host_calls(of(name), budget=Budget(host_calls=20))
    perf.dispatches(of(name), budget=Budget(dispatches=1))
    perf.fast_path(of(name), budget=Budget(fast_path_misses=0))
    perf.transfers(of(name), budget=Budget(transfers=0))
    perf.memory(of(name), budget=Budget(leaked_arrays=0))
    perf.donation(of(name), budget=Budget(undonated=0))
    perf.program(of(name))


def test_a_step_on_the_v5e(perf):
    perf.program(of("hmc"), "tpu-v5e")


def test_a_position_of_weak_type_is_another_program(perf):
    """As `jnp.full(4, 3.0)` makes it."""
    step = perf.warm(stepper(SAMPLERS["hmc"]), over=[of("hmc").args])
    state, key = SAMPLERS["hmc"].init(jnp.full(4, 3.0)), jax.random.key(1)
    with pytest.raises(RecompilationError, match=r"args\[0\].position: weak type was False"), perf.no_compiles():
        step(state, key)


def test_a_step_outside_jit_compiles_its_loop_again(perf):
    state = SAMPLERS["hmc"].init(jnp.zeros(4))
    SAMPLERS["hmc"].step(jax.random.key(0), state)
    with pytest.raises(RecompilationError, match="a loop outside any jitted function"), perf.no_compiles():
        SAMPLERS["hmc"].step(jax.random.key(0), state)
