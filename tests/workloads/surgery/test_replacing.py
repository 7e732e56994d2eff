import collections
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.tree_util import DictKey, GetAttrKey, SequenceKey
from support.pytree_nodes import Keyless, Pair, Result

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


@ways
def test_nothing_to_replace_gives_an_equal_tree(replace):
    tree = Pair(1, [2])
    assert replace(tree, {}) == tree


@ways
def test_root_may_be_replaced(replace):
    assert replace(Pair(1), {(): "new"}) == "new"
    assert replace(5, {(): "new"}) == "new"


@ways
@pytest.mark.parametrize("value", [None, (), [], {}, {"a": 1}, {LEFT: 1}, Pair(3), "text"], ids=repr)
def test_value_may_be_any_tree(replace, value):
    new = replace(Pair(Pair(1), 2), {(LEFT,): value})
    assert type(new.left) is type(value)
    assert new.left == value
    assert new.right == 2


@ways
@pytest.mark.parametrize("old", [Pair(1), 7, (), [], {}, "text"], ids=repr)
def test_old_value_may_be_a_node_a_leaf_or_empty(replace, old):
    assert replace(Pair([old, old]), {(LEFT, SequenceKey(1)): "new"}).left == [old, "new"]


@ways
def test_containers_keep_their_kind(replace):
    tree = Pair([1, (2, {"a": 3}, Result(4, 5))], Keyless(6, None))
    new = replace(
        tree,
        {
            (LEFT, SequenceKey(1), SequenceKey(0)): "two",
            (LEFT, SequenceKey(1), SequenceKey(1), DictKey("a")): "three",
            (RIGHT, jax.tree_util.FlattenedIndexKey(0)): "six",
        },
    )
    assert new.left == [1, ("two", {"a": "three"}, Result(4, 5))]
    assert type(new.left[1]) is tuple
    assert type(new.left[1][2]) is Result
    assert new.right.children == ("six", None)


@ways
def test_each_field_of_a_named_tuple_can_be_replaced(replace):
    assert replace(Result(4, 5), {(GetAttrKey("loss"),): "new"}) == Result("new", 5)
    assert replace(Result(4, 5), {(GetAttrKey("model"),): "new"}) == Result(4, "new")
    assert replace(Result(4, 5), {(GetAttrKey("model"),): "a", (GetAttrKey("loss"),): "b"}) == Result("b", "a")


@ways
def test_order_of_a_dict_that_has_one_stays(replace):
    tree = Pair(collections.OrderedDict([("b", 1), ("a", 2)]))
    new = replace(tree, {(LEFT, DictKey("a")): 3})
    assert type(new.left) is collections.OrderedDict
    assert list(new.left.items()) == [("b", 1), ("a", 3)]


@ways
def test_original_stays_as_it_is(replace):
    inner, items = Pair(1), [2, {"a": 3}]
    tree = Pair(inner, items)
    replace(tree, {(LEFT, LEFT): "new", (RIGHT, SequenceKey(1), DictKey("a")): "new"})
    assert tree.left is inner
    assert inner.left == 1
    assert tree.right is items
    assert items == [2, {"a": 3}]


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


def test_empty_replacements_give_the_same_object_with_replace_on_paths():
    tree = Pair(1)
    assert replace_on_paths(tree, {}) is tree


def test_value_is_put_there_itself_with_replace_on_paths():
    value = Pair([1])
    new = replace_on_paths(Pair([1], (2,)), {(LEFT, SequenceKey(0)): value, (RIGHT, SequenceKey(0)): value})
    assert new.left[0] is value
    assert new.right[0] is value


@ways
def test_one_of_two_places_of_a_shared_node_can_be_replaced(replace):
    shared = Pair(1)
    new = replace(Pair(shared, shared), {(RIGHT,): "new"})
    assert new.left == shared
    assert new.right == "new"
    inside = replace(Pair(shared, shared), {(RIGHT, LEFT): "new"})
    assert (inside.left.left, inside.right.left, shared.left) == (1, "new", 1)


@ways
def test_static_fields_stay(replace):
    new = replace(Pair(1, note="note"), {(LEFT,): 2})
    assert new == Pair(2, note="note")


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
def test_wrapper_on_the_path_keeps_its_name(replace):
    class Named(eqx.Module):
        fn: Any
        x: Any

        @property
        def __wrapped__(self):
            return self.fn

    def increased(x):
        return x + 1

    tree = Pair(eqx.module_update_wrapper(Named(increased, 1)))
    assert "__name__" in vars(tree.left)
    new = replace(tree, {(LEFT, X): 2})
    assert new.left.x == 2
    assert (new.left.__name__, new.left.__qualname__) == (increased.__name__, increased.__qualname__)
    assert new.left.__module__ == __name__
    assert jax.tree.structure(new) == jax.tree.structure(tree)


@ways
def test_method_bound_to_a_module_can_be_reached_into(replace):
    class Net(eqx.Module):
        x: Any

        def call(self):
            return self.x

    new = replace(Pair(Net(1).call), {(LEFT, GetAttrKey("__self__")): Net(2)})
    assert new.left() == 2


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


@ways
def test_works_with_lists_and_dicts_200_levels_deep(replace):
    tree, path = Pair("old"), ()
    for _ in range(200):
        tree, path = Pair([{"a": tree}]), (LEFT, SequenceKey(0), DictKey("a"), *path)
    new = replace(tree, {path: "new"})
    for _ in range(200):
        new = new.left[0]["a"]
    assert new == "new"
