import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey
from support.pytree_nodes import Keyless, Pair, Result

from perfsuite.workloads.surgery.module_paths import at_path, iter_module, sub_modules


class Leafless(eqx.Module):
    pass


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    inner: Any


@dataclasses.dataclass
class Unregistered:
    inner: Any


class Keyed:
    """Has children under keys of a kind of its own."""

    def __init__(self, first, second):
        self.first, self.second = first, second


@dataclasses.dataclass(frozen=True)
class Side:
    name: str

    def __str__(self):
        return f"<{self.name}>"


jax.tree_util.register_pytree_with_keys(
    Keyed,
    lambda node: (((Side("first"), node.first), (Side("second"), node.second)), None),
    lambda _, children: Keyed(*children),
)


def names(tree):
    return [name for name, _ in iter_module(tree)]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (Leafless(), ["left"]),
        ([Leafless(), 1, Leafless()], ["left.0", "left.2"]),
        ((1, (Leafless(),)), ["left.1.0"]),
        ({"b": Leafless(), "a": [Leafless()]}, ["left.a.0", "left.b"]),
        ({10: Leafless(), 2: Leafless()}, ["left.2", "left.10"]),
        ({(0, "x"): Leafless()}, ["left.(0, 'x')"]),
        (Result(jnp.ones(()), Leafless()), ["left.model"]),
        (Result(Leafless(), Leafless()), ["left.loss", "left.model"]),
        (Record(Leafless()), ["left", "left.inner"]),
        (Keyless(1, Leafless()), ["left.1"]),
        (Keyed(1, [Leafless()]), ["left.<second>.0"]),
        (jax.tree_util.Partial(len, Leafless(), key=Leafless()), ["left.0.0", "left.1.key"]),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else None,
)
def test_names_are_fields_indices_and_keys_with_dots_between(node, expected):
    tree = Pair(node)
    assert names(tree) == ["", *expected]
    for place in sub_modules(tree):
        assert place.name == jax.tree_util.keystr(place.path, simple=True, separator=".")
        assert at_path(tree, place.path) is place.module


def test_names_of_a_model_are_those_of_its_leaves_without_the_last_part():
    mlp = eqx.nn.MLP(2, 2, 4, depth=2, key=jax.random.key(0))
    assert names(mlp) == ["", "layers.0", "layers.1", "layers.2"]
    leaves = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(mlp)]
    assert {leaf.rpartition(".")[0] for leaf in leaves if "weight" in leaf} == set(names(mlp)[1:])


def test_model_comes_first_and_parents_before_their_children():
    tree = Pair(Pair(Leafless(), Pair(Leafless())), Pair([Pair(Leafless())]))
    assert names(tree) == [
        "",
        "left",
        "left.left",
        "left.right",
        "left.right.left",
        "right",
        "right.left.0",
        "right.left.0.left",
    ]


def test_container_may_be_the_model():
    assert names([Leafless(), Pair(Leafless())]) == ["0", "1", "1.left"]
    assert names({"encoder": Leafless()}) == ["encoder"]


def test_static_fields_are_not_entered():
    assert names(Pair(1, note=Pair(Leafless()))) == [""]


def test_dataclass_that_is_not_registered_is_a_leaf():
    assert names(Pair(Unregistered(Leafless()))) == [""]
    assert names(Unregistered(Leafless())) == []


@pytest.mark.parametrize("leaf", [3, "text", jnp.ones(2), None, Leafless, jax.ShapeDtypeStruct((2,), jnp.float32)])
def test_leaf_has_no_sub_modules(leaf):
    assert names(leaf) == []
    assert names(Pair(leaf)) == [""]


@pytest.mark.parametrize("tree", [(), [], {}, [[], {}, ()], [None]])
def test_empty_tree_has_no_sub_modules(tree):
    assert names(tree) == []


def test_shared_sub_module_comes_once_under_its_first_name_but_has_all_its_places():
    shared = Pair(Leafless())
    tree = Pair([shared, shared], {"again": shared})
    assert names(tree) == ["", "left.0", "left.0.left"]
    assert [place.name for place in sub_modules(tree)] == [
        "",
        "left.0",
        "left.0.left",
        "left.1",
        "left.1.left",
        "right.again",
        "right.again.left",
    ]


def test_equal_sub_modules_are_not_the_same():
    assert names([Leafless(), Leafless()]) == ["0", "1"]


def test_sub_modules_that_nodes_make_anew_when_they_are_taken_apart_all_come():
    class Fresh:
        pass

    jax.tree_util.register_pytree_node(Fresh, lambda _: ([Leafless()], None), lambda *_: Fresh())
    assert names([Fresh() for _ in range(50)]) == [f"{i}.0" for i in range(50)]


def test_iter_module_goes_on_only_as_far_as_it_is_asked():
    class Forbidden:
        pass

    def flatten(node):
        raise RuntimeError("taken apart")

    jax.tree_util.register_pytree_node(Forbidden, flatten, lambda *_: Forbidden())
    found = iter_module([Leafless(), Forbidden()])
    assert next(found)[0] == "0"
    with pytest.raises(RuntimeError, match="taken apart"):
        next(found)


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        (Pair("here"), GetAttrKey("left")),
        (Result(0, "here"), GetAttrKey("model")),
        (Record("here"), GetAttrKey("inner")),
        ([0, "here"], SequenceKey(1)),
        ((0, "here"), SequenceKey(1)),
        ({"a": 0, "b": "here"}, DictKey("b")),
        (Keyless(0, "here"), FlattenedIndexKey(1)),
        (Keyed(0, "here"), Side("second")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_key_leads_to_its_child(tree, key):
    assert at_path(tree, (key,)) == "here"
    assert at_path([tree], (SequenceKey(0), key)) == "here"


def test_path_without_keys_leads_to_the_tree():
    tree = Pair(1)
    assert at_path(tree, ()) is tree


def test_path_that_leads_nowhere_is_an_error():
    with pytest.raises(KeyError, match="FlattenedIndexKey"):
        at_path(Keyless(0), (FlattenedIndexKey(1),))
    with pytest.raises(AttributeError):
        at_path(Pair(0), (GetAttrKey("middle"),))
