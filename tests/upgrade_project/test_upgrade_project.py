"""Perf tests to try an upgrade on: steps over some 180 arrays with next to nothing to compute, and two small programs.

`docs/against.md` says what they found.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from perfsuite import call

TX = optax.adamw(1e-3)


@pytest.fixture(scope="session")
def model():
    keys = jax.random.split(jax.random.key(0), 30)
    return [eqx.nn.Linear(4, 4, key=key) for key in keys]


def loss(model):
    return sum(layer.weight[0, 0] + layer.bias[0] for layer in model)


@eqx.filter_jit
def filter_step(model, state):
    grads = eqx.filter_grad(loss)(model)
    updates, state = TX.update(grads, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state


@jax.jit
def step(params, state):
    grads = jax.grad(lambda p: sum(jnp.ravel(leaf)[0] for leaf in p))(params)
    updates, state = TX.update(grads, state, params)
    return optax.apply_updates(params, updates), state


@jax.jit
def attention(q, k, v, key):
    weights = jax.nn.softmax(jnp.einsum("bqnd,bknd->bnqk", q, k))
    kept = jax.random.bernoulli(key, 0.9, weights.shape)
    return jnp.einsum("bnqk,bknd->bqnd", jnp.where(kept, weights, 0), v)


@jax.jit
def recurrent(h, xs):
    return jax.lax.scan(lambda h, x: (jnp.tanh(h @ h.T @ x), h.sum()), h, xs)


def of_modules(model):
    return call(filter_step, model, TX.init(eqx.filter(model, eqx.is_array)), carry=2)


def of_lists(model):
    params = jax.tree.leaves(eqx.filter(model, eqx.is_array))
    return call(step, params, TX.init(params), carry=2)


def test_filter_jit(perf, model):
    made = of_modules(model)
    perf.time(made)
    perf.host_calls(made)


def test_jit(perf, model):
    made = of_lists(model)
    perf.time(made)
    perf.host_calls(made)
    perf.program(made)


def test_filter_jit_over_jit(perf, model):
    perf.compare(of_modules(model), of_lists(model), until="return", name="filter_jit/jit")


def test_parts_of_equinox(perf, model):
    parts = eqx.partition(model, eqx.is_array)
    perf.host_calls(call(eqx.partition, model, eqx.is_array))
    perf.host_calls(call(eqx.combine, *parts))
    replaced = call(eqx.tree_at, lambda m: [layer.weight for layer in m], model, [jnp.zeros((4, 4))] * len(model))
    perf.host_calls(replaced)


def test_attention(perf):
    x = jnp.ones((2, 16, 4, 8))
    made = call(attention, x, x, x, jax.random.key(1))
    perf.time(made)
    perf.program(made)


def test_recurrent(perf):
    made = call(recurrent, jnp.ones((16, 16)), jnp.ones((8, 16, 16)))
    perf.time(made)
    perf.program(made)
