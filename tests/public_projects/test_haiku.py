"""haiku: a step with batch norm and dropout, apply outside jit, static flags, and what layers cost to trace."""

import jax
import jax.numpy as jnp
import optax
import pytest

from perfsuite import Budget, call

hk = pytest.importorskip("haiku", reason="the project that is tried: pip install dm-haiku")

X = jnp.ones((4, 8))
ADAM = optax.adam(1e-3)


def forward(x, train=True):
    x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(hk.Linear(16)(x), is_training=train)
    x = hk.dropout(hk.next_rng_key(), 0.1, x) if train else x
    return hk.nets.MLP([16, 4])(x)


NET = hk.transform_with_state(forward)


def step(carried, key, x):
    params, state, opt_state = carried
    key, dropout = jax.random.split(key)

    def loss(params):
        y, changed = NET.apply(params, state, dropout, x)
        return (y**2).mean(), changed

    (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, opt_state = ADAM.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), state, opt_state), key, value


def state():
    params, state = NET.init(jax.random.key(0), X)
    return (params, state, ADAM.init(params)), jax.random.key(1)


JITTED = jax.jit(step, donate_argnums=(0, 1))


def of_step():
    return call(JITTED, *state(), X, carry=2)


def test_a_step(perf):
    perf.host_calls(of_step())
    perf.fast_path(of_step(), budget=Budget(fast_path_misses=0))
    perf.transfers(of_step(), budget=Budget(transfers=0))
    perf.memory(of_step(), budget=Budget(leaked_arrays=0))
    perf.program(of_step())
    perf.first_call(of_step(), budget=Budget(constants=0))


def test_a_step_keeps_the_averages_of_batch_norm_twice(perf):
    """`hk.ExponentialMovingAverage` writes `average` from `hidden`, and never reads it: dm-haiku 0.0.17."""
    seen = perf.donation(of_step())
    assert [each.path.rpartition("/~/")[2] for each in seen.undonated] == [
        "mean_ema']['average']",
        "var_ema']['average']",
    ]


def test_apply_outside_jit_costs_the_host_and_compiles_nothing(perf):
    params, state = NET.init(jax.random.key(0), X)
    perf.host_calls(call(NET.apply, params, state, jax.random.key(0), X), name="eager")
    perf.host_calls(call(jax.jit(NET.apply), params, state, jax.random.key(0), X), name="jitted")
    with perf.no_compiles():
        NET.apply(params, state, jax.random.key(0), X)


@pytest.mark.parametrize("unroll", ["static_unroll", "dynamic_unroll"])
def test_a_recurrent_net(perf, unroll):
    def run(xs):
        core = hk.LSTM(16)
        return getattr(hk, unroll)(core, xs, core.initial_state(4))[0]

    net, xs = hk.without_apply_rng(hk.transform(run)), jnp.ones((32, 4, 8))
    of_net = call(jax.jit(net.apply), net.init(jax.random.key(0), xs), xs)
    perf.first_call(of_net)
    perf.program(of_net)
