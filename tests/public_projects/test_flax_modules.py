"""Flax's own modules: attention with a cache, batch norm, dropout, scan and remat, in Linen and NNX."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from perfsuite import Budget, RecompilationError, call

X, TOKEN = jnp.ones((4, 8)), jnp.ones((1, 1, 16))


class Net(nn.Module):
    """Batch statistics that change and dropout that draws."""

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(16)(x))
        return nn.Dropout(0.1, deterministic=not train)(x)


class Mlp(nnx.Module):
    """The same in NNX."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(self.linear(x)))


def updated(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda model: model(x).var())(model)
    optimizer.update(model, grads)
    return loss


step = nnx.jit(updated)


def parts():
    model = Mlp(nnx.Rngs(0))
    return model, nnx.Optimizer(model, ADAM, wrt=nnx.Param)


ADAM = optax.adam(1e-3)


def test_linen_states_do_not_recompile_and_eager_apply_does(perf):
    variables = Net().init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)

    @jax.jit
    def apply(variables, key, x):
        key, dropout = jax.random.split(key)
        _, changed = Net().apply(variables, x, mutable=["batch_stats"], rngs={"dropout": dropout})
        return {**variables, **changed}, key

    perf.host_calls(call(apply, variables, jax.random.key(2), X, carry=2))
    perf.transfers(call(apply, variables, jax.random.key(2), X, carry=2), budget=Budget(transfers=0))
    Net().apply(variables, X, train=False)
    with pytest.raises(RecompilationError, match="flax makes it anew"), perf.no_compiles():
        Net().apply(variables, X, train=False)


def test_nnx_step_over_a_split_one(perf):
    graph, state = nnx.split(parts())

    @jax.jit
    def split_step(state, x):
        model, optimizer = nnx.merge(graph, state)
        loss = updated(model, optimizer, x)
        return nnx.state((model, optimizer)), loss

    perf.host_calls(call(step, *parts(), X))
    perf.host_calls(call(split_step, state, X, carry=1))
    perf.compare(call(step, *parts(), X), call(split_step, state, X, carry=1), Budget(ratio=40.0), until="return")
    perf.donation(call(split_step, state, X, carry=1))


def test_nnx_mode_and_optimizer_are_part_of_the_program(perf):
    model, optimizer = parts()
    warm = perf.warm(step, over=[(model, optimizer, X)])
    model.eval()
    with pytest.raises(RecompilationError, match=r"dropout.deterministic: static value was False"), perf.no_compiles():
        warm(model, optimizer, X)
    model.train()
    anew = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    with pytest.raises(RecompilationError, match="Make the optimizer or schedule once"), perf.no_compiles():
        warm(model, anew, X)


def test_remat_under_scan_on_the_v5e(perf):
    @nnx.split_rngs(splits=8)
    @nnx.vmap
    def make(rngs):
        return nnx.Linear(128, 128, rngs=rngs)

    def forward(x, layer):
        return jax.nn.gelu(jax.nn.gelu(layer(x)) * 2)

    def gradient(of):
        body = nnx.scan(of, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return nnx.jit(nnx.grad(lambda layers, x: body(x, layers).sum()))

    layers, x = make(nnx.Rngs(0)), jnp.ones((8_192, 128))
    plain = perf.program(call(gradient(forward), layers, x), "tpu-v5e", name="plain")
    remat = perf.program(call(gradient(nnx.remat(forward)), layers, x), "tpu-v5e", name="remat")
    assert remat.peak_bytes < plain.peak_bytes
    assert remat.flops > plain.flops
