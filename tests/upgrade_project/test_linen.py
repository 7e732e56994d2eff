"""Perf tests to try an upgrade of Flax on: a Linen train step, `apply` outside `jit`, and `init`. Nothing of nnx.

`docs/against.md` says what they found.
"""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from perfsuite import call

TX = optax.adamw(1e-3)


class Block(nn.Module):
    features: int = 32

    @nn.compact
    def __call__(self, x, train=False):
        y = nn.LayerNorm()(x)
        y = nn.MultiHeadDotProductAttention(num_heads=4)(y)
        x = x + nn.Dropout(0.1, deterministic=not train)(y)
        y = nn.BatchNorm(use_running_average=not train)(x)
        return x + nn.Dense(self.features)(nn.gelu(nn.Dense(4 * self.features)(y)))


MODEL = Block()
X = jnp.ones((2, 8, 32))
VARIABLES = jax.jit(MODEL.init)(jax.random.key(0), X)


@jax.jit
def train_step(params, stats, opt_state, x, key):
    def loss(params):
        variables = {"params": params, "batch_stats": stats}
        y, moved = MODEL.apply(variables, x, train=True, mutable=["batch_stats"], rngs={"dropout": key})
        return (y**2).mean(), moved["batch_stats"]

    grads, stats = jax.grad(loss, has_aux=True)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), stats, opt_state


def of_step():
    params, stats = (jax.tree.map(jnp.copy, VARIABLES[name]) for name in ("params", "batch_stats"))
    return call(train_step, params, stats, TX.init(params), X, jax.random.key(1), carry=3)


def test_train_step(perf):
    perf.host_calls(of_step())
    perf.program(of_step())
    perf.time(of_step())


def test_apply_outside_jit(perf):
    perf.host_calls(call(MODEL.apply, VARIABLES, X), name="apply", traces=True)


def test_init_is_traced(perf):
    perf.warm(jax.jit(lambda key, x: MODEL.init(key, x)), over=[(jax.random.key(0), X)])
