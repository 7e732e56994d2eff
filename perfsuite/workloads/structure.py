"""The part of a pytree besides its arrays, which a compiled function holds static.

Python says `1 == 1.0 == True` and `0.0 == -0.0`, and that not-a-number equals nothing. A compiled function keyed on
plain equality therefore answers `f(x, 1.0)` with the program for `f(x, 1)`, and compiles again for every not-a-number.
Static leaves are compared here by type and, for floats, bit for bit.
"""

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax

Picker = Callable[[Sequence[Any]], Sequence[Any]]


def static_key(leaf: Any) -> Hashable:
    """A key that equals another leaf's key only if a compiled function may take one leaf for the other."""
    kind = type(leaf)
    if kind is float:
        return kind, leaf.hex()
    if kind is complex:
        return kind, leaf.real.hex(), leaf.imag.hex()
    return kind, leaf


def static_keys(leaves: Iterable[Any]) -> tuple[Hashable, ...]:
    """`static_key` of every leaf. Raises `ValueError` for one that is not hashable."""
    keys = tuple(map(static_key, leaves))
    for key in keys:
        try:
            hash(key)
        except TypeError as error:
            raise ValueError(
                f"a {key[0].__qualname__} is neither an array, a container of arrays nor hashable, so nothing can say "  # type: ignore[index]
                f"whether a compiled function still fits it: {key[1]!r}"  # type: ignore[index]
            ) from error
    return keys


def picker(indices: Sequence[int]) -> Picker:
    """A function that takes the items at `indices` out of a list, without a Python loop."""
    if not indices:
        return _nothing
    first, last = indices[0], indices[-1]
    if list(indices) == list(range(first, last + 1)):
        return operator.itemgetter(slice(first, last + 1))
    return operator.itemgetter(*indices)


def _nothing(_: Sequence[Any]) -> Sequence[Any]:
    return ()


def is_array_or_struct(leaf: Any) -> bool:
    """Whether a leaf is an array, or the `jax.ShapeDtypeStruct` that stands for one."""
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def path_name(path: jax.tree_util.KeyPath) -> str:
    """A path in a tree as messages and weight tables show it: `layers.0.attention.query`."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


class Structure:
    """A pytree without its arrays: tree definition, which leaves are arrays, and the leaves that are not.

    `equinox.is_array` defines arrays: JAX and NumPy arrays and NumPy scalars. Two structures are equal when their tree
    definitions are (static fields by `==`, as everywhere in JAX) and their static leaves have the same `static_key`.
    Hashing raises `ValueError` where a static leaf is not hashable.
    """

    __slots__ = ("_join", "_key", "mask", "static", "treedef")

    def __init__(self, treedef: jax.tree_util.PyTreeDef, mask: tuple[bool, ...], static: tuple[Any, ...]) -> None:
        self.treedef = treedef
        self.mask = mask
        self.static = static
        self._key: tuple[Hashable, ...] | None = None
        self._join = picker(_join_order(mask)) if static else None

    @classmethod
    def split(cls, tree: Any) -> "tuple[list[Any], Structure]":
        """The arrays of `tree`, in leaf order, and the rest of it."""
        leaves, treedef = jax.tree.flatten(tree)
        mask = tuple(map(eqx.is_array, leaves))
        arrays = [leaf for leaf, is_array in zip(leaves, mask, strict=True) if is_array]
        static = tuple(leaf for leaf, is_array in zip(leaves, mask, strict=True) if not is_array)
        return arrays, cls(treedef, mask, static)

    def arrays_of(self, tree: Any) -> list[Any]:
        """The arrays of `tree`, in leaf order. Raises `TypeError` if the rest of it is not this structure."""
        arrays, structure = Structure.split(tree)
        if structure != self:
            raise TypeError(f"structure or static leaves differ: expected\n  {self}\ngot\n  {structure}")
        return arrays

    def join(self, arrays: Sequence[Any]) -> Any:
        """The tree again, with `arrays` (anything, one for each array) in the arrays' places."""
        if self._join is None:
            return self.treedef.unflatten(arrays)
        return self.treedef.unflatten(self._join([*arrays, *self.static]))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Structure):
            return NotImplemented
        return self._full_key() == other._full_key()

    def __hash__(self) -> int:
        return hash(self._full_key())

    def __repr__(self) -> str:
        return f"Structure({sum(self.mask)} arrays, static={self.static!r}, {self.treedef})"

    def _full_key(self) -> tuple[Hashable, ...]:
        if self._key is None:
            self._key = (self.treedef, self.mask, static_keys(self.static))
        return self._key


def _join_order(mask: Sequence[bool]) -> list[int]:
    """Each leaf's place in the list of arrays followed by static leaves."""
    arrays, static = iter(range(sum(mask))), iter(range(sum(mask), len(mask)))
    return [next(arrays) if is_array else next(static) for is_array in mask]
