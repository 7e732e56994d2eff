"""One argument of a call, described as the tree that JAX makes of it, with no array kept alive.

An array is known by shape, dtype, weak type and, where it is committed to devices, by its sharding. Whatever else JAX
compares by equality is a `Value`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from perfsuite.measure.compiles.values import Value, safely, value_of
from perfsuite.measure.private import flax_objects
from perfsuite.measure.private.frameworks import graph_children, is_graph_node

_SCALARS = (bool, int, float, complex)
_LEAVES = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, *_SCALARS)
_CONTAINERS = (tuple, list, dict, type(None))
_TRACER = "a tracer"


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """The sharding that an array of `ndim` axes is committed to. It holds devices, and no array.

    Two are equal where one program serves both: JAX takes P("data") and P("data", None) for one, and a mesh axis of
    size 1 for none. On another mesh everything is another sharding; `typed` is what belongs to the type of the array,
    where axes are explicit.
    """

    text: str
    sharding: jax.sharding.Sharding
    ndim: int
    typed: Any = None

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return self.text == other.text or (self.ndim == other.ndim and safely(lambda: self._serves(other), False))

    def __hash__(self) -> int:
        return 0  # equals may have other texts

    def _serves(self, other: "Placement") -> bool:
        meshes = [getattr(each.sharding, "mesh", None) for each in (self, other)]
        if meshes[0] is None or meshes[0] != meshes[1] or self.typed != other.typed:
            return False
        return self.sharding.is_equivalent_to(other.sharding, self.ndim)

    @property
    def mesh(self) -> str:
        """The mesh of a sharding that has one, as text; "" for others."""
        mesh, found, _ = self.text.partition(", spec=")
        return mesh if found else ""


_NO_PLACEMENT: tuple[Placement | None, tuple[str, ...]] = (None, ())


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """An argument without children.

    `kind` is "array", "scalar" (a Python number: an array for `jax.jit`, static for `filter_jit`) or "static", whose
    `dtype` is its type. All but
    unhashable arrays have a `value`; `source` says what the argument is. Arrays that are committed to their devices
    have `sharding` and `devices`; JAX moves others as it needs them. `layout` is the order of the axes in memory,
    where it is not the usual one.
    """

    kind: Literal["array", "scalar", "static"]
    shape: tuple[int, ...] = ()
    dtype: str = ""
    weak_type: bool = False
    sharding: Placement | None = None
    devices: tuple[str, ...] = ()
    value: Value | None = None
    source: str = dataclasses.field(default="", compare=False)
    layout: str = ""

    def __str__(self) -> str:
        if self.kind == "array":
            return text_of_array(self)
        return self.value.text if self.value else self.source


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """An argument with children, by the text that a path adds for each: `['ids']`, `[0]`, `.weight`.

    `auxiliary` is what the node itself adds to the tree structure, such as a module's static fields, which JAX compares
    by `==`; `attributes` name what differs in it.
    """

    type: Value
    children: tuple[tuple[str, "Leaf | Node"], ...]
    auxiliary: Value | None = None
    attributes: tuple[tuple[str, Value], ...] = dataclasses.field(default=(), compare=False)

    def __str__(self) -> str:
        return "None" if self.type.text == "NoneType" else f"{self.type.text} of {len(self.children)}"


Item: TypeAlias = Leaf | Node


def describe(value: Any, _above: tuple[int, ...] = ()) -> Item:
    """Describe one argument as the tree that JAX makes of it."""
    if isinstance(value, _LEAVES):
        return _leaf(value)
    children, auxiliary = _one_level(value)
    # An NNX module may hold itself; so may a node whose flattening is wrong.
    if children is None or id(value) in _above:
        return _leaf(value)
    named = tuple((suffix, describe(child, (*_above, id(value)))) for suffix, child in children)
    if type(value) in _CONTAINERS:
        return Node(value_of(type(value)), named)
    names = {suffix.removeprefix(".") for suffix, _ in named}
    attributes = tuple((name, value_of(x)) for name, x in _own_attributes(value) if name not in names)
    return Node(value_of(type(value)), named, value_of(auxiliary), attributes)


def text_of_array(value: Any) -> str:
    """Shape and dtype of an array or of its description: "float32[8,128]"."""
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def is_traced(leaf: Leaf) -> bool:
    """Whether the leaf is an array of a transformation such as `jax.grad`."""
    return leaf.source == _TRACER


def leaves_below(path: str, item: Item) -> Iterator[tuple[str, Leaf]]:
    """Every leaf of `item`, which is at `path`, with its own path."""
    if isinstance(item, Leaf):
        yield path, item
    else:
        for suffix, child in item.children:
            yield from leaves_below(path + suffix, child)


def shared_places(arguments: dict[str, Any]) -> dict[str, str]:
    """The second and further paths of each NNX variable or module that has several, each with its first path."""
    first: dict[int, str] = {}
    again: dict[str, str] = {}

    def visit(path: str, value: Any, above: tuple[int, ...]) -> None:
        if is_graph_node(value) and first.setdefault(id(value), path) != path:
            again[path] = first[id(value)]
        elif not isinstance(value, _LEAVES) and id(value) not in above:
            for suffix, child in _one_level(value)[0] or ():
                visit(path + suffix, child, (*above, id(value)))

    for name, value in arguments.items():
        visit(name, value, ())
    return again


def _one_level(value: Any) -> tuple[list[tuple[str, Any]] | None, Any]:
    """The children of a node with their part of the path, and its auxiliary data; `None` for a leaf."""
    if isinstance(value, Iterator):
        return None, None  # JAX would warn that it takes it for a leaf
    # JAX asks about the value first, and only that is taken apart.
    # (`jax.tree_util.flatten_one_level_with_keys` does the same, but jax 0.10.0 lacks it.)
    is_leaf = iter([False])
    structure: Any
    try:
        keyed, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: next(is_leaf, True))
    except Exception:  # Unsortable keys, or a flattening of the user's that fails: JAX will say so itself.
        return None, None
    if (data := structure.node_data()) is None:
        graph = graph_children(value)
        return (None, None) if graph is None else ([(f".{name}", child) for name, child in graph.items()], None)
    return [(jax.tree_util.keystr(path), child) for path, child in keyed], data[1]


def _own_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(held := getattr(value, "__dict__", None), dict):
        yield from ((name, x) for name, x in held.items() if not flax_objects.is_own(name))
    elif dataclasses.is_dataclass(value):
        yield from ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))


def _leaf(value: Any) -> Leaf:
    source = type(value).__name__
    try:
        aval: Any = value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)
        shape, dtype, weak_type = tuple(aval.shape), str(aval.dtype), bool(aval.weak_type)
    except Exception:  # JAX cannot trace it: a string, or an int that fits no dtype. It must be static.
        return Leaf("static", dtype=source, value=value_of(value), source=source)
    if isinstance(value, np.generic):  # The only arrays that can be static: the others have no hash.
        return Leaf("array", shape, dtype, weak_type, value=value_of(value), source=f"a NumPy {source}")
    if isinstance(value, _SCALARS):
        return Leaf("scalar", shape, dtype, weak_type, value=value_of(value), source=f"a Python {source}")
    # A tracer, or an array of another library, has no placement to compare.
    placement = safely(lambda: _placement(value), _NO_PLACEMENT)
    if isinstance(value, jax.core.Tracer):
        return Leaf("array", shape, dtype, weak_type, *placement, source=_TRACER)
    layout = safely(lambda: _layout(value), "")
    return Leaf("array", shape, dtype, weak_type, *placement, source="an array", layout=layout)


def _layout(value: Any) -> str:
    order = tuple(value.format.layout.major_to_minor)
    return "" if order == tuple(range(len(order))) else f"major_to_minor={order}"


def _placement(value: Any) -> tuple[Placement | None, tuple[str, ...]]:
    """The sharding and devices that an array is committed to; none where JAX is free to move it."""
    sharding = value.sharding
    if sharding is None or not getattr(value, "committed", True):
        return _NO_PLACEMENT
    mesh = getattr(sharding, "mesh", None)
    devices = [
        f"{device.platform}:{device.id}" for device in (mesh.devices.flat if mesh is not None else sharding.device_set)
    ]
    if mesh is None:
        devices.sort()
    one = mesh is None and len(devices) == 1
    text = f"one device, {sharding.memory_kind} memory" if one else str(sharding)
    return Placement(text, sharding, len(value.shape), jax.typeof(value).sharding), tuple(devices)
