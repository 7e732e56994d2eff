"""`forbid(only=[...])`: the functions that it is limited to, and what they call."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.compiling import LONG, SHORT

from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warmup import warm
from perfsuite.measure.errors import RecompilationError


def loss(x):
    return (x * x).sum()


@pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit, nnx.jit])
def test_a_named_function_may_not_compile_and_another_may(jit):
    step, other = jit(lambda x: x * 2), jit(lambda x: x * 3)
    step(SHORT)
    with compiles.forbid(only=[step]):
        other(SHORT)
        step(SHORT)
    with pytest.raises(RecompilationError, match="`<lambda>` was traced"), compiles.forbid(only=[step]):
        step(LONG)


def test_what_a_named_function_calls_belongs_to_it():
    inner = jax.jit(lambda x: x + 1)

    def train(x):
        return inner(x)

    with pytest.raises(RecompilationError), compiles.forbid(only=[train]):
        train(LONG)
    with compiles.forbid(only=[loss]):
        train(jnp.ones(9))


def test_operations_of_a_plain_function_belong_to_it():
    start = np.ones(23, np.float32)
    with pytest.raises(RecompilationError, match="`multiply`"), compiles.forbid(only=[loss]):
        loss(jnp.asarray(start))


def test_a_warm_function_can_be_named():
    step = warm(jax.jit(lambda x: x * 2), over=[(SHORT,)])
    with pytest.raises(RecompilationError, match="was not warmed"), compiles.forbid(only=[step]):
        step(LONG)


def test_under_a_transformation_the_function_is_known():
    step = jax.jit(lambda x: (x * 2).sum())
    with pytest.raises(RecompilationError), compiles.forbid(only=[step]):
        jax.grad(step)(SHORT)
    for jit in (eqx.filter_jit, nnx.jit):
        with compiles.forbid(only=[step]):
            jit(loss)(jnp.ones(3))


def test_anything_but_a_function_is_refused():
    with pytest.raises(TypeError, match=r"only=\[...\] takes functions, got str: 'step'"):
        compiles.forbid(only=["step"]).__enter__()
