"""Three ways to put other values at some paths of a tree. They give the same tree, at very different cost to the host.

| function | takes apart and builds again |
|---|---|
| `replace_one_by_one` | the whole tree, several times for every path: the reference |
| `replace_at_once` | the whole tree, several times |
| `replace_on_paths` | the nodes on the paths, once |

`replacements` maps paths (see `module_paths`) to new values; no path may lead through another. The tree itself does not
change; the result shares with it every leaf that was not replaced. As in `equinox.tree_at`, no `__init__` and no
`__check_init__` of an Equinox module runs.
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
from jax.tree_util import KeyPath

from perfsuite.workloads.surgery.module_paths import at_path, children_of


def replace_one_by_one(tree: Any, replacements: Mapping[KeyPath, Any]) -> Any:
    """One `equinox.tree_at` for every path: each time, all of the tree."""
    for path, value in replacements.items():
        tree = eqx.tree_at(partial(at_path, path=path), tree, value)
    return tree


def replace_at_once(tree: Any, replacements: Mapping[KeyPath, Any]) -> Any:
    """One `equinox.tree_at` for all paths."""
    if not replacements:
        return tree
    return eqx.tree_at(lambda tree: [at_path(tree, path) for path in replacements], tree, list(replacements.values()))


def replace_on_paths(tree: Any, replacements: Mapping[KeyPath, Any]) -> Any:
    """New nodes on the paths, and the old ones everywhere else."""
    if () in replacements:
        return replacements[()]
    branches = _Branches()
    for path, value in replacements.items():
        at = branches
        for key in path[:-1]:
            below = at.get(key)
            if below is None:
                below = at[key] = _Branches()
            at = below
        at[path[-1]] = value
    return _rebuilt(tree, branches) if branches else tree


class _Branches(dict[Any, Any]):
    """By key: the new value, or the branches below. A class of its own, because a value may be a dict."""


def _rebuilt(node: Any, branches: _Branches) -> Any:
    kind = type(node)
    fields = _fields(kind)  # type: ignore[arg-type]  # mypy takes a class for unhashable
    # With a cached value or a wrapper's `__name__` there is more than fields, and Equinox decides what to keep of it.
    if fields is not None and vars(node).keys() <= fields:
        new = object.__new__(kind)  # what unflattening does, too
        values = vars(new)
        values.update(vars(node))
        for key, branch in branches.items():
            name = key.name
            values[name] = _rebuilt(values[name], branch) if type(branch) is _Branches else branch
        return new
    if kind is tuple or kind is list:
        items = list(node)
        for key, branch in branches.items():
            index = key.idx
            items[index] = _rebuilt(items[index], branch) if type(branch) is _Branches else branch
        return tuple(items) if kind is tuple else items
    children = dict(children_of(node))
    for key, branch in branches.items():
        children[key] = _rebuilt(children[key], branch) if type(branch) is _Branches else branch
    structure = jax.tree.structure(node, is_leaf=lambda part: part is not node)
    return jax.tree.unflatten(structure, children.values())


@cache
def _fields(kind: type) -> frozenset[str] | None:
    """The fields of an Equinox module's class, `None` for any other class."""
    return frozenset(kind.__dataclass_fields__) if issubclass(kind, eqx.Module) else None
