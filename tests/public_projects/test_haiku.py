"""haiku: a step with batch norm and dropout, apply outside jit, static flags, and what layers cost to trace."""

import jax
import jax.numpy as jnp
import optax
import pytest

from perfsuite import Budget, RecompilationError, call

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


def test_a_key_that_a_step_returns_is_most_of_what_it_costs_the_host(perf):
    counted = perf.host_calls(of_step())
    assert (
        sum(calls for origin, calls in counted.by_origin.items() if "prngkeyarray" in str(origin)) > 0.7 * counted.total
    )


def test_a_step_keeps_the_averages_of_batch_norm_twice(perf):
    """`hk.ExponentialMovingAverage` writes `average` from `hidden`, and never reads it: dm-haiku 0.0.17."""
    seen = perf.donation(of_step())
    assert [each.path.rpartition("/~/")[2] for each in seen.undonated] == [
        "mean_ema']['average']",
        "var_ema']['average']",
    ]


def test_a_step_on_the_v5e(perf):
    perf.program(of_step(), "tpu-v5e")


def test_steps_do_not_recompile(perf):
    warm, (carried, key) = perf.warm(jax.jit(step), over=[(*state(), X)]), state()
    with perf.no_compiles():
        for _ in range(3):
            carried, key, _ = warm(carried, key, X)


def test_a_flag_is_a_program_of_its_own(perf):
    params, state = NET.init(jax.random.key(0), X)
    apply = jax.jit(NET.apply, static_argnames="train")
    warm = perf.warm(apply, over=[call(apply, params, state, jax.random.key(0), X, train=True)])
    with pytest.raises(RecompilationError, match=r"kwargs\['train'\]: static value was True"), perf.no_compiles():
        warm(params, state, jax.random.key(0), X, train=False)


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


def linear_layers(layers):
    return hk.nets.MLP([8] * layers)


def stacked_layers(layers):
    return hk.experimental.layer_stack(layers)(hk.Linear(8))


@pytest.mark.parametrize(("layer", "least", "most"), [(linear_layers, 0.8, 1.2), (stacked_layers, 0.0, 0.01)])
def test_what_layers_cost_to_trace(perf, layer, least, most):
    """`layer_stack` is a scan: the equations do not grow with the layers."""

    def make(layers):
        net = hk.without_apply_rng(hk.transform(lambda x: layer(layers)(x)))
        return call(jax.jit(net.apply), net.init(jax.random.key(0), X), X), layers

    assert least <= perf.scaling(make, [2, 4, 8], metric="equations").exponent <= most
