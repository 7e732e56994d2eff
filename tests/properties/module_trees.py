"""Modules with everything in them that JAX can take apart, sub-modules in several places, and plans for them."""

import collections
import dataclasses
import fnmatch
import functools
import glob
from typing import Any

import equinox as eqx
import jax
import numpy as np
from hypothesis import strategies as st

from perfsuite.workloads.surgery.module_paths import sub_modules

from .strategies import Branch, Leafless, Named, Tagged, arrays, statics


@functools.partial(jax.tree_util.register_dataclass, data_fields=["inner", "other"], meta_fields=["note"])
@dataclasses.dataclass(eq=False)
class Record:
    """A sub-module that is no Equinox module."""

    inner: Any
    other: Any
    note: str = "note"


@dataclasses.dataclass(eq=False)
class Loose:
    """A dataclass that nobody registered: a leaf, whatever is in it."""

    inner: Any


class Keyless:
    """A node registered without keys: JAX counts its children."""

    def __init__(self, children, label):
        self.children, self.label = tuple(children), label

    def __repr__(self):
        return f"Keyless({self.children}, {self.label!r})"


jax.tree_util.register_pytree_node(
    Keyless, lambda node: (node.children, node.label), lambda label, children: Keyless(children, label)
)


@eqx.filter_jit
def wrapper(leaf):
    """A module that has a name of its own beside its fields."""
    return leaf


LEAVES = st.one_of(
    arrays(), statics(), st.none(), st.just(()), st.builds(Leafless), st.just(wrapper), st.builds(Loose, arrays())
)
TAGS = st.sampled_from(["tag", 1, 1.5, None, (1, "x")])


def nodes(children):
    """A module or a container of `children`. What is in a dict may have a name with wildcards in it."""
    by_name = st.dictionaries(st.sampled_from(["a", "b*", "[c]", "?"]), children, max_size=3)
    return st.one_of(
        modules(children),
        modules(children),
        st.lists(children, max_size=3),
        st.tuples(children, children),
        by_name,
        by_name.map(lambda items: collections.OrderedDict(reversed(items.items()))),
        st.dictionaries(st.integers(0, 10), children, max_size=3),
        st.builds(Named, children, children),
        st.builds(Keyless, st.lists(children, max_size=2), TAGS),
    )


def modules(children):
    """A sub-module that has `children`."""
    return st.one_of(
        st.builds(Branch, children, children),
        st.builds(Branch, children),
        st.builds(Tagged, children, TAGS),
        st.builds(Record, children, children),
    )


# One value in each example, wherever it is drawn.
SHARED = st.shared(modules(st.recursive(LEAVES, nodes, max_leaves=3)), key="shared sub-module")
CHILDREN = st.recursive(st.booleans().flatmap(lambda shared: SHARED if shared else LEAVES), nodes, max_leaves=10)


def module_trees():
    """An Equinox module. Some sub-modules and leaves are in it more than once."""
    return st.one_of(
        st.builds(Branch, CHILDREN, CHILDREN),
        st.builds(Branch, CHILDREN, SHARED),
        st.builds(Tagged, CHILDREN, TAGS),
    )


def same(module):
    """Nothing new."""
    return module


def renewed(module):
    """Other arrays of the same shapes."""
    return jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf, module)


def wrapped(module):
    """The same one level deeper."""
    return Tagged(module, "wrapped")


def emptied(module):
    """Nothing of it is left."""
    return Leafless()


def numbered(module):
    """No module any more."""
    return 7


def reshaped(module):
    """All arrays with a dimension more."""
    return jax.tree.map(lambda leaf: np.ones((1, *leaf.shape), leaf.dtype) if eqx.is_array(leaf) else leaf, module)


def forgetful(module):
    """A transform without `return`."""


def failing(module):
    """A transform that raises."""
    raise KeyError("no such thing")


KEEPS_SHAPES = (same, renewed, wrapped, emptied, numbered)


class Change:
    """A transform that answers with the identical object when it sees a module again, so that runs can be compared."""

    def __init__(self, kind):
        self.kind, self.seen = kind, {}

    def __repr__(self):
        return f"Change({self.kind.__name__})"

    def __call__(self, module):
        if id(module) not in self.seen:
            self.seen[id(module)] = module, self.kind(module)
        return self.seen[id(module)][1]


@st.composite
def patterns(draw, tree):
    """A pattern that matches at least one sub-module."""
    names = [place.name for place in sub_modules(tree)]
    name = draw(st.sampled_from(names[:0:-1] or names))
    kind = draw(st.sampled_from([*["exact"] * 6, "one character", "start", "end", "both"]))
    start = draw(st.integers(0, len(name)))
    stop = draw(st.integers(start, len(name)))
    match kind:
        case "one character" if name:
            start = min(start, len(name) - 1)
            return glob.escape(name[:start]) + "?" + glob.escape(name[start + 1 :])
        case "start":
            return glob.escape(name[:start]) + "*"
        case "end":
            return "*" + glob.escape(name[stop:])
        case "both":
            return glob.escape(name[:start]) + "*" + glob.escape(name[stop:])
    return glob.escape(name)


def matched(tree, pattern):
    """The paths of the sub-modules that `pattern` matches."""
    return [place.path for place in sub_modules(tree) if fnmatch.fnmatchcase(place.name, pattern)]


def separate(paths):
    """Whether no path is there twice, or leads through another."""
    return not any(one == other[: len(one)] for i, one in enumerate(paths) for j, other in enumerate(paths) if i != j)


@st.composite
def fitting_plans(draw, kinds=KEEPS_SHAPES):
    """A module, and a plan every pattern of which matches, but none where another does, or inside of that."""
    tree = draw(module_trees())
    plan, paths = {}, []
    for pattern in draw(st.lists(patterns(tree), min_size=3, max_size=8)):
        more = paths + matched(tree, pattern)
        if pattern not in plan and separate(more):
            paths = more
            plan[pattern] = Change(draw(st.sampled_from(kinds)))
    return tree, plan


@st.composite
def any_plans(draw, kinds=(*KEEPS_SHAPES, reshaped, forgetful, failing)):
    """A module, and a plan that may overlap with itself, or miss the module."""
    tree = draw(module_trees())
    some = st.one_of(patterns(tree), patterns(tree), st.sampled_from(["", "*.weight", "lef", "[!a]"]))
    return tree, {
        pattern: Change(draw(st.sampled_from(kinds)))
        for pattern in draw(st.lists(some, min_size=1, max_size=3, unique=True))
    }
