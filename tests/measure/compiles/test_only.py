"""`forbid(only=[...])`: the functions that it is limited to, and what they call."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.compiling import SHORT

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError


def loss(x):
    return (x * x).sum()


class Model(eqx.Module):
    weight: jax.Array

    @eqx.filter_jit
    def __call__(self, x):
        return self.weight + x

    def predict(self, x):
        return jax.jit(lambda y: y * self.weight)(x)


class Net(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(jnp.ones(()))

    @nnx.jit
    def __call__(self, x):
        return self.weight[...] + x


class Trainer:
    def __init__(self, x=None):
        if x is not None:
            self(x)

    def __call__(self, x):
        return jax.jit(lambda y: y * 4)(x)

    @functools.partial(jax.jit, static_argnums=0)
    def step(self, x):
        return x * 5


def scaled(rate, x):
    return jax.jit(lambda y: y * rate)(x)


def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


class Timed:
    """A decorator that is a class."""

    def __init__(self, fn):
        functools.update_wrapper(self, fn)

    def __call__(self, x):
        return self.__wrapped__(x)


def another(x):
    return jax.jit(lambda y: y * 3)(x)


def kinds():
    """Callables of every kind that compile when they are called, by name."""
    model, net, trainer = Model(jnp.ones(())), Net(), Trainer()
    return {
        "an Equinox module": model,
        "its method": model.predict,
        "the bound __call__ of an NNX module": net.__call__,
        "an object": trainer,
        "a jitted bound method": trainer.step,
        "a class": Trainer,
        "a partial": functools.partial(scaled, 2),
        "Equinox's partial": eqx.Partial(scaled, 2),
        "a decorated jitted function": logged(jax.jit(lambda x: x * 6)),
        "a class that decorates": Timed(functools.partial(scaled, 2)),
        "a gradient": jax.grad(lambda x: loss(jax.jit(lambda y: y * 7)(x))),
        "a mapped function": jax.vmap(lambda x: scaled(2, x)),
    }


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_callable_can_be_named(kind):
    fn = kinds()[kind]
    with compiles.forbid(only=[fn]):  # another function may compile
        logged(another)(SHORT)
        logged(jax.jit(lambda x: x * 8))(SHORT)
        Timed(another)(SHORT)
        jax.grad(lambda x: loss(another(x)))(SHORT)
    with pytest.raises(RecompilationError), compiles.forbid(only=[fn]):
        fn(SHORT)


@pytest.mark.parametrize("nothing", [len, np.add, [].append, object, "step"])
def test_what_no_stack_shows_is_refused(nothing):
    with pytest.raises(TypeError, match=r"only=\[...\]"):
        compiles.forbid(only=[nothing]).__enter__()


def test_under_a_transformation_the_function_is_known():
    step = jax.jit(lambda x: (x * 2).sum())
    with pytest.raises(RecompilationError), compiles.forbid(only=[step]):
        jax.grad(step)(SHORT)
    for jit in (eqx.filter_jit, nnx.jit):
        with compiles.forbid(only=[step]):
            jit(loss)(jnp.ones(3))
