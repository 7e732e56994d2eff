"""Calls that run programs in every way that JAX has, with what `dispatches` should count of each."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec

from perfsuite import call

X = jnp.arange(8.0)


@jax.jit
def step(x):
    return (2 * x).sum()


@jax.jit
def outer(x):
    return step(x) + 1


@jax.jit
def shouting(x):
    jax.debug.callback(lambda value: None, x)
    return x + 1


@jax.jit
def asking(x):
    return io_callback(lambda value: np.asarray(value), jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)


@functools.partial(jax.jit, donate_argnums=0)
def donating(x):
    return x + 1


@jax.custom_vjp
def own_gradient(x):
    return step(x)


own_gradient.defvjp(lambda x: (step(x), x), lambda x, g: (g * x,))


@nnx.jit
def of_module(module, x):
    return module(x).sum()


def unreturned(x):
    step(x)
    return x


def mesh():
    return jax.make_mesh((8,), ("d",))


def add(total, x):
    return total + x, total


ZERO = jnp.zeros(())


def in_a_loop(x):
    return jax.lax.scan(add, ZERO, x)


def sharded(x):
    return jax.device_put(x, NamedSharding(mesh(), PartitionSpec("d")))


def in_shards(x):
    return jax.shard_map(lambda x: 2 * x, mesh=mesh(), in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))(x)


PROGRAMS = {
    "one": (lambda: call(step, X), {"step": 1}, {}),
    "two": (lambda: call(lambda x: step(x) + step(x), X), {"step": 2}, {"add": 1}),
    "jit in jit": (lambda: call(outer, X), {"outer": 1}, {}),
    "carried and donated": (lambda: call(donating, X + 0, carry=1), {"donating": 1}, {}),
    "filter_jit": (lambda: call(eqx.filter_jit(lambda f, x: f(x)), jnp.sin, X), {"lambda": 1}, {}),
    "nnx.jit": (lambda: call(of_module, nnx.Linear(8, 8, rngs=nnx.Rngs(0)), X), {"of_module": 1}, {}),
    "eight devices": (lambda: call(step, sharded(X)), {"step": 1}, {}),
    "shard_map": (lambda: call(jax.jit(in_shards), sharded(X)), {"in_shards": 1}, {}),
    "ahead of time": (lambda: call(step.lower(X).compile(), X), {"step": 1}, {}),
    "ahead of time with effects": (lambda: call(shouting.lower(X).compile(), X), {"shouting": 1}, {}),
    "effects": (lambda: call(shouting, X), {"shouting": 1}, {}),
    "ordered effects": (lambda: call(asking, X), {"asking": 1}, {}),
    "grad outside jit": (lambda: call(jax.grad(step), X), {"step": 2}, None),
    "vjp of a function with its own": (lambda: call(jax.grad(own_gradient), X), {"step": 1}, None),
    "vmap of jit": (lambda: call(jax.vmap(step), jnp.ones((3, 8))), {"step": 1}, {}),
    "jit of vmap": (lambda: call(jax.jit(jax.vmap(step)), jnp.ones((3, 8))), {"step": 1}, {}),
    "jit of grad": (lambda: call(jax.jit(jax.grad(step)), X), {"step": 1}, {}),
    "one operation": (lambda: call(jnp.add, X, X), {}, {"add": 1}),
    "operators": (lambda: call(lambda x: -x * x, X), {}, {"multiply": 1, "negative": 1}),
    "scan outside jit": (lambda: call(in_a_loop, X), {}, {"scan": 1}),
    "split": (lambda: call(jax.random.split, jax.random.key(0)), {}, {"_threefry_split": 1}),
    "device_put": (lambda: call(jax.device_put, np.ones(3, np.float32)), {}, {}),
    "to another device": (lambda: call(lambda x: jax.device_put(x, jax.devices()[1]), X), {}, {}),
    "pmap": (lambda: call(jax.pmap(lambda x: 2 * x), X), {"lambda": 1}, None),
    "not returned": (lambda: call(unreturned, X), {"step": 1}, {}),
    "read": (lambda: call(lambda x: float(step(x)), X), {"step": 1}, {}),
    "nothing": (lambda: call(lambda: 1), {}, {}),
}
"""The call, the programs of jitted functions that it runs, and its eager operations; None where none are named."""
