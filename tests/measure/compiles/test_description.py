"""One argument is described as the tree that JAX makes of it, and the places of shared objects are known."""

import jax.numpy as jnp
from flax import nnx

from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.description import describe, shared_places


def test_an_iterator_among_a_librarys_arguments_is_a_leaf_and_warned_of_nowhere():
    """Pytest makes errors of warnings here, and JAX's goes to whoever takes the iterator apart."""
    numbers = (number for number in range(3))
    assert callsite.CallSite("here", args=(numbers,)).mark == callsite.CallSite("here", args=(numbers,)).mark
    assert describe(numbers) == describe(numbers)
    assert list(numbers) == [0, 1, 2]


class Tied(nnx.Module):
    """A model that holds one layer twice."""

    def __init__(self):
        self.first = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
        self.tied = self.first


class Selfish(nnx.Module, pytree=False):
    """A module that holds itself, and is no pytree."""

    def __init__(self):
        self.me = self


def test_the_places_of_one_object_are_known_by_path_and_equal_arrays_are_not_one():
    array = jnp.ones(2)
    variable, module, selfish = nnx.Param(array), Tied(), Selfish()
    arguments = {"args": ([variable, nnx.Param(array), array, array], module), "kwargs": {"x": variable, "y": selfish}}
    assert shared_places(arguments) == {
        "args[1].tied": "args[1].first",
        "kwargs['x']": "args[0][0]",
        "kwargs['y'].me": "kwargs['y']",
    }
