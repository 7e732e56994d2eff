"""Perf tests to try an upgrade of Optax on: three optimizers over 60 arrays, under `jit` and outside.

`docs/against.md` says what they found.
"""

import jax
import jax.numpy as jnp
import optax
import pytest

from perfsuite import call

PARAMS = {f"layer{n}": {"w": jnp.ones((8, 8)), "b": jnp.ones(8)} for n in range(30)}
OPTIMIZERS = {
    "adamw": optax.adamw(1e-3),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 100))),
    "sgd": optax.sgd(1e-2, momentum=0.9),
}


def updated(name):
    def update(state, grads, params):
        updates, state = OPTIMIZERS[name].update(grads, state, params)
        return state, optax.apply_updates(params, updates)

    return update


def of(name, jit):
    update = updated(name)
    return call(jax.jit(update) if jit else update, OPTIMIZERS[name].init(PARAMS), PARAMS, PARAMS, carry=1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_jitted(perf, name):
    perf.host_calls(of(name, True))
    perf.first_call(of(name, True))
    perf.program(of(name, True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_eager(perf, name):
    perf.host_calls(of(name, False))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_init(perf, name):
    perf.host_calls(call(OPTIMIZERS[name].init, PARAMS), name="init")


def test_import(perf):
    perf.imports("optax")
