"""Where the sub-modules of a model are: `iter_module`, and the paths behind it.

A sub-module is an Equinox module or any other dataclass that is a pytree node. Its path leads through everything that
JAX can take apart: modules, lists, tuples, dicts, dataclasses, nodes that a library has registered; but not through
static fields, a dataclass that is not registered (for JAX a leaf), or a function that `equinox.filter_jit` has wrapped.

A path is a `jax.tree_util.KeyPath`; its name is that of `jax.tree_util.keystr`: `layers.0.attention.query`. The model
itself has the name "". Two paths can have one name, as in `{"a.b": ..., "a": {"b": ...}}`: a pattern chooses both.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.tree_util import DictKey, GetAttrKey, KeyPath, SequenceKey, is_tree_node, keystr, tree_leaves_with_path


class SubModule(NamedTuple):
    """A sub-module at one of its paths."""

    path: KeyPath
    name: str
    module: Any


def iter_module(module: Any) -> Iterator[tuple[str, Any]]:
    """The name and the value of every sub-module, `module` first, parents before children, in the order of the leaves.

    A sub-module that is in there several times comes once, under its first name.
    """
    seen: dict[int, Any] = {}  # by id; it keeps the modules, so that no other object gets the id of one
    for _, name, sub_module in sub_modules(module):
        if id(sub_module) not in seen:
            seen[id(sub_module)] = sub_module
            yield name, sub_module


def sub_modules(module: Any) -> Iterator[SubModule]:
    """Every path to every sub-module, in the order of `iter_module`: a shared one has several."""
    waiting = [SubModule((), "", module)] if is_tree_node(type(module)) else []
    while waiting:
        found = waiting.pop()
        path, name, node = found
        if dataclasses.is_dataclass(node):
            yield found
        prefix = f"{name}." if name else ""
        waiting += [
            SubModule((*path, key), prefix + keystr((key,), simple=True), child)
            for key, child in reversed(children_of(node))
            if child is not None and is_tree_node(type(child))
        ]


def at_path(tree: Any, path: KeyPath) -> Any:
    """The part of `tree` at `path`."""
    for key in path:
        match key:
            case GetAttrKey():
                tree = getattr(tree, key.name)
            case SequenceKey():
                tree = tree[key.idx]
            case DictKey():
                tree = tree[key.key]
            case _:
                tree = dict(children_of(tree))[key]
    return tree


def children_of(node: Any) -> list[tuple[Any, Any]]:
    """The key and the value of every child of a pytree node, in the order of the leaves."""
    return [(path[0], child) for path, child in tree_leaves_with_path(node, is_leaf=lambda part: part is not node)]
