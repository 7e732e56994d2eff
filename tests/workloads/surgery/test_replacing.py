import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.tree_util import GetAttrKey, SequenceKey
from support.pytree_nodes import Pair

from perfsuite.workloads.surgery.replacing import replace_at_once, replace_on_paths, replace_one_by_one

REPLACE = [replace_on_paths, replace_at_once, replace_one_by_one]
LEFT, RIGHT, X = GetAttrKey("left"), GetAttrKey("right"), GetAttrKey("x")
ways = pytest.mark.parametrize("replace", REPLACE)


class Cached(eqx.Module):
    x: Any
    other: Any = None

    @functools.cached_property
    def twice(self):
        return [self.x, self.x]


class Checked(eqx.Module):
    x: Any

    def __check_init__(self):
        if self.x != 1:
            raise ValueError("x is not 1")


class Initialised(eqx.Module):
    x: Any

    def __init__(self):
        self.x = 1


def test_nodes_beside_the_paths_are_the_same_objects_with_replace_on_paths():
    beside, items, record = Pair(1), [Pair(2)], {"a": Pair(3)}
    tree = Pair([Pair(4), beside, items, record], beside)
    new = replace_on_paths(tree, {(LEFT, SequenceKey(0)): "new"})
    assert new is not tree
    assert new.left is not tree.left
    assert new.left[1] is beside
    assert new.left[2] is items
    assert new.left[3] is record
    assert new.right is beside


@ways
def test_cached_value_is_not_carried_over(replace):
    tree = Pair(Cached(1))
    assert tree.left.twice == [1, 1]
    new = replace(tree, {(LEFT, X): 2})
    assert "twice" not in vars(new.left)
    # Equinox takes note that there was more than fields, and with another structure a jitted function compiles again.
    assert jax.tree.structure(new) == jax.tree.structure(tree)
    assert new.left.twice == [2, 2]
    assert tree.left.twice == [1, 1]


def test_cached_value_beside_the_path_is_not_computed_again_with_replace_on_paths():
    tree = Pair(Cached(1), 2)
    twice = tree.left.twice
    assert replace_on_paths(tree, {(RIGHT,): 3}).left.twice is twice


@ways
@pytest.mark.parametrize("kind", [Checked, Initialised])
def test_neither_init_nor_check_init_runs(replace, kind):
    tree = kind(1) if kind is Checked else kind()
    new = replace(Pair(tree), {(LEFT, X): 2})
    assert type(new.left) is kind
    assert new.left.x == 2


@ways
def test_wrapper_keeps_its_name_and_still_works(replace):
    @eqx.filter_jit
    def doubled(x):
        """Twice `x`."""
        return 2 * x

    new = replace(Pair(doubled, 1), {(RIGHT,): 2})
    assert new.left.__name__ == "doubled"
    assert new.left.__doc__ == "Twice `x`."
    assert new.left.__wrapped__(1) == 2
    assert jax.tree.structure(new) == jax.tree.structure(Pair(doubled, 2))
    assert new.left(jnp.ones(())) == 2


@ways
def test_works_500_levels_deep(replace):
    tree, path = Pair("old"), ()
    for _ in range(500):
        tree, path = Pair(tree, 1), (*path, LEFT)
    new = replace(tree, {path: "new"})
    for _ in path:
        assert new.right == 1
        new = new.left
    assert new == "new"
