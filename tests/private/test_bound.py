"""What partials, bound methods and objects call, and with which arguments."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from perfsuite.measure.private.jax_stack import behind_bound, calls_the_same, is_jitted

X = jnp.ones(3)


class Plain:
    @functools.partial(jax.jit, static_argnums=(0, 2))
    def top(self, x, n):
        return x[:n]

    def python(self, x):
        return x


class Model(eqx.Module):
    weight: jax.Array

    @eqx.filter_jit
    def __call__(self, x):
        return self.weight + x

    @jax.jit
    def scaled(self, x):
        return self.weight * x

    def python(self, x):
        return x


class Net(nnx.Module):
    @nnx.jit
    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    ("owner", "name"), [(Plain(), "top"), (Model(X), "__call__"), (Model(X), "scaled"), (Net(), "__call__")]
)
def test_a_jitted_method_gets_its_object_first(owner, name):
    function, args, kwargs = behind_bound(getattr(owner, name), (X,), {"n": 2})
    assert function is getattr(type(owner), name)
    assert is_jitted(function)
    assert args[0] is owner
    assert args[1] is X
    assert kwargs == {"n": 2}


def test_a_callable_that_binds_nothing_stays_as_it_is():
    step, instance = jax.jit(lambda x: x), functools.partial(lambda x: x, 1)
    instance.lower = step.lower
    for each in (step, instance, eqx.filter_jit(lambda x: x), nnx.jit(lambda x: x), len, Plain):
        assert behind_bound(each, (X,)) == (each, (X,), {})


def test_a_method_is_the_same_each_time_that_somebody_asks_for_it_and_another_objects_is_another():
    for make, name in ((Plain, "top"), (lambda: Model(X), "__call__"), (Net, "__call__"), (lambda: Model(X), "python")):
        one, other = make(), make()
        assert calls_the_same(getattr(one, name), getattr(one, name))
        assert not calls_the_same(getattr(one, name), getattr(other, name))
    assert not calls_the_same(functools.partial(len, X), functools.partial(len, jnp.ones(3)))
    assert not calls_the_same(functools.partial(len, a=X), functools.partial(len, b=X))
