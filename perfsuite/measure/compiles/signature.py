"""What JAX keys its cache on, as a description that keeps no array alive, and the differences between two.

An argument is described as the tree that JAX makes of it. An array is known by shape, dtype, weak type and, where it is
committed to devices, by its sharding. All else that JAX compares by equality is a `Value`: a description outlives its
call, and a function's closure or an object's fields can hold arrays.
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from perfsuite.measure.call import text_of_array
from perfsuite.measure.compiles.callsite import innermost
from perfsuite.measure.private import frameworks
from perfsuite.measure.private.frameworks import graph_children, record_fields

T = TypeVar("T")

_NUMBERS = (bool, int, float, complex)
_PLAIN = (*_NUMBERS, str, bytes, type(None), type(...), range)
_ARRAYS = (jax.Array, np.ndarray)
_LEAVES = (*_ARRAYS, np.generic, jax.ShapeDtypeStruct, *_NUMBERS)
_CONTAINERS = (tuple, list, dict, type(None))
_SEQUENCES = (tuple, list, set, frozenset, collections.deque)
_BRACKETS: dict[type, str] = {tuple: "()", list: "[]", set: "{}", frozenset: "{}", dict: "{}"}
_NAMES: dict[type, Any] = {
    slice: ("start", "stop", "step"),
    functools.partial: ("func", "args", "keywords"),
}
"""The attributes of types that name none in `__slots__`."""
_SHARDINGS = (jax.sharding.Sharding, jax.sharding.Mesh, jax.sharding.AbstractMesh, jax.sharding.PartitionSpec)
_READABLE = (np.generic, np.dtype, *_SHARDINGS, jax.Device)
"""Beside Python's own objects, those whose `__repr__` runs and reads nothing."""

_LONGEST, _LONGEST_PART = 80, 40
_MOST_PARTS = 10_000
_DEEPEST = 4
_COUNTED_AT_A_GLANCE = 3
_DEVICES_SHOWN = 8

_GONE = object()
_ABSENT = "absent"
TRACER = "a tracer"
"""The `source` of a leaf that is an array of a transformation such as `jax.grad`."""

_WHOLE_ARGUMENT = re.compile(r"args\[\d+\]|kwargs\[[^\]]*\]")
_POSITION = re.compile(r"args\[(\d+)\]")


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_METHOD = _type_name(types.MethodType)
_FUNCTIONS = (*map(_type_name, (types.FunctionType, types.BuiltinFunctionType, functools.partial)), _METHOD)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One static value. Two are equal where Python, and so JAX, takes the values as equal: 1 and 1.0 are.

    `plain` is the value itself where it can hold nothing else, such as a number or a string, and the described parts of
    a tuple. Any other value has its hash, its text and a weak reference; type, hash and text decide once the value is
    gone. `fields` are those of a record, to name the one that differs. `holds` names what a function has built in, each
    with a text; it decides nothing.
    """

    type: str
    text: str
    plain: Any = _GONE
    by_identity: bool = False
    hash: int | None = None
    reference: "weakref.ref[Any] | None" = None
    fields: "tuple[tuple[str, Value], ...]" = ()
    module: str = ""
    holds: tuple[tuple[str, str], ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value):
            return NotImplemented
        if self.reference is not None and self.reference is other.reference:
            return True
        mine, theirs = self._alive(), other._alive()
        if mine is not _GONE and theirs is not _GONE:
            # For JAX a NaN equals itself only where it is the same object.
            by_identity = self.by_identity and other.by_identity
            return mine is theirs or (not by_identity and safely(lambda: bool(mine == theirs), False))
        if self.by_identity and (self.reference is not None or other.reference is not None):
            return False  # One is gone, and no other object is equal to it.
        return (self.type, self.hash, self.text) == (other.type, other.hash, other.text)

    def __hash__(self) -> int:
        return 0  # equals may have other types

    def _alive(self) -> Any:
        """The value itself, if it still lives."""
        alive = self.reference and self.reference()
        return self.plain if alive is None else alive


def safely(ask: Callable[[], T], otherwise: T) -> T:
    """What a user's object answers, or `otherwise`: its properties, `__eq__`, `__hash__` or `__repr__` may raise."""
    try:
        return ask()
    except Exception:
        return otherwise


def nature_of(one: Value | None, other: Value | None) -> str:
    """Why two values with the same text are unequal: "function", "optimizer" (Optax's), "method", "identity" or
    "equality".

    Of values with different texts it is "mode" where no array can stand for them, such as strings; "" for others. It is
    "equal" for equal values of other types.
    """
    if one is None or other is None:
        return ""
    if one == other:
        return "equal"
    if any(isinstance(value.plain, str | bytes | bool | None) for value in (one, other)):
        return "mode"
    if one.type != other.type:
        return ""
    if one.text != other.text:
        return "mode" if one.by_identity or one.type in _FUNCTIONS else ""
    if one.type in _FUNCTIONS:
        if one.module.startswith("optax."):
            return "optimizer"
        return "method" if one.type == _METHOD else "function"
    if one.by_identity:
        return "identity"
    return "equality" if one.plain is _GONE or isinstance(one.plain, tuple) else ""


def value_of(value: Any, _depth: int = 0) -> Value:
    """Describe a static value. Works for any object, also where its `__eq__` or `__hash__` raise.

    What holds an array is compared by its type, hash and text, as JAX's cache first does: `==` would read the array.
    """
    kind = type(value)
    by_identity = kind.__eq__ is object.__eq__
    plain = _plain(value, _depth)
    is_read = plain is _GONE and not by_identity and _holds_array(value)
    # A record whose fields raise is compared as a whole.
    fields: dict[str, Any] = safely(lambda: record_fields(value), {}) if _depth < _DEEPEST else {}
    return Value(
        _type_name(kind),
        text_of(value),
        plain=plain,
        by_identity=by_identity,
        hash=safely(lambda: hash(value), None),
        reference=None if is_read else safely(lambda: weakref.ref(value), None),
        fields=tuple((name, value_of(field, _depth + 1)) for name, field in fields.items()),
        module=_attribute(value, "__module__"),
        holds=_holds(value) if kind is types.FunctionType else (),
    )


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, tuple) and type(value).__eq__ is tuple.__eq__ and depth < _DEEPEST:
        return tuple(value_of(part, depth + 1) for part in value)
    return value if type(value) in _PLAIN or isinstance(value, np.number | np.bool_) else _GONE


def identity_of(value: Any) -> Value:
    """Describe a value that equals only itself, such as the function object that `jax.jit` was given."""
    return dataclasses.replace(value_of(value), plain=_GONE, by_identity=True, hash=id(value))


def held_by(function: Any) -> dict[str, Any]:
    """What a function object brings with it, under the names that a message uses."""
    values: dict[str, Any] = {}
    for part in innermost(function):
        if isinstance(part, functools.partial):
            values |= {"partial's args": part.args} if part.args else {}
            values |= {f"partial's {name}": value for name, value in part.keywords.items()}
        if isinstance(part, types.MethodType):
            values["method's self"] = part.__self__
            part = part.__func__
    if isinstance(part, types.FunctionType):
        code, defaults = part.__code__, part.__defaults__ or ()
        for name, cell in zip(code.co_freevars, part.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # A name that is bound later.
                values[f"closed-over {name}"] = cell.cell_contents
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        by_default = dict(zip(names, defaults, strict=True)) | (part.__kwdefaults__ or {})
        values |= {f"default {name}": value for name, value in by_default.items()}
    return values


def _holds(function: types.FunctionType) -> tuple[tuple[str, str], ...]:
    """What could be an argument of the function instead."""
    held: dict[str, Any] = safely(lambda: held_by(function), {})
    return tuple((name, text_of(value)) for name, value in held.items() if not callable(value))


def text_of(value: Any, _depth: int = 0) -> str:
    """A text of any object, on one line. It runs no `__repr__` of others: that may read arrays or run programs."""
    longest = _LONGEST
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if type(value) in _PLAIN:  # most are: to ask whether one is a `jax.Array` costs as much as its text
        text = " ".join(repr(value).split())
    elif isinstance(value, _ARRAYS):
        return f"{type(value).__name__} of {value.dtype}{list(value.shape)}"
    elif isinstance(value, type):
        return value.__qualname__
    elif isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    elif name := _attribute(value, "__qualname__") if callable(value) else "":
        return name
    elif _is_readable(value):
        text = " ".join(repr(value).split())
    else:
        text = safely(lambda: _text_of_parts(value, _depth), type(value).__name__)
        longest = _LONGEST_PART if _depth else _LONGEST
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _is_readable(value: Any) -> bool:
    """Whether the text of an object has no text of a user's in it: of a number, a path, a date, a sharding."""
    if isinstance(value, _READABLE):
        return True
    of_python = type(value).__module__.partition(".")[0] in sys.stdlib_module_names
    holds = isinstance(value, Iterable | Callable | slice | BaseException) or hasattr(value, "__dict__")
    return of_python and not holds


def _text_of_parts(value: Any, depth: int) -> str:
    kind = type(value)
    name, brackets = "" if kind in _BRACKETS else kind.__name__, _BRACKETS.get(kind, "()")
    texts: list[str] = []
    for label, part in _parts(value) if depth < _DEEPEST else ():
        texts.append(label + text_of(part, depth + 1))
        if sum(map(len, texts)) > _LONGEST:
            break
    if name and not texts:
        return name
    comma = "," if kind is tuple and len(texts) == 1 else ""
    return f"{name}{brackets[0]}{', '.join(texts)}{comma}{brackets[1]}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, each with the text in front of it. Runs nothing that the object's class defines."""
    sequence: Any = next((each for each in _SEQUENCES if isinstance(value, each)), None)
    if isinstance(value, dict):
        return ((f"{text_of(key)}: ", part) for key, part in dict.items(value))
    if sequence is None:
        return ((f"{name}=", part) for name, part in _own_attributes(value))
    names = (f"{name}=" for name in getattr(type(value), "_fields", ()))
    return zip(itertools.chain(names, itertools.repeat("")), sequence.__iter__(value), strict=False)


def _holds_array(value: Any) -> bool:
    """Whether an object holds an array, however deep, as far as its first `_MOST_PARTS` parts tell."""
    parts: dict[int, Any] = {}
    waiting = [value]
    while waiting and len(parts) < _MOST_PARTS:
        part = waiting.pop()
        if isinstance(part, _ARRAYS):
            return True
        if id(part) not in parts and type(part) not in _PLAIN:
            parts[id(part)] = part
            with contextlib.suppress(Exception):  # as where a class has `_fields` of its own
                waiting += [each for _, each in _parts(part)]
    return False


def _attribute(value: Any, name: str) -> str:
    """A text among the attributes of any object; "" where it has none, or raises."""
    text = safely(lambda: getattr(value, name, ""), "")
    return text if isinstance(text, str) else ""


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
        mesh, separator, _ = self.text.partition(", spec=")
        return mesh if separator else ""


_NO_PLACEMENT: tuple[Placement | None, tuple[str, ...]] = (None, ())


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """An argument without children.

    `kind` is "array", "scalar" (a Python number: an array for `jax.jit`, static for `filter_jit`) or "static", whose
    `dtype` is its type. All but unhashable arrays have a `value`; `source` says what the argument is. Arrays that are
    committed to their devices have `sharding` and `devices`; JAX moves others as it needs them. `layout` is the order
    of the axes in memory, where it is not the usual one.
    """

    kind: Literal["array", "scalar", "static"]
    shape: tuple[Any, ...] = ()
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
        return _leaf(value) if type(value) is jax.Ref else _static(value)
    named = tuple((suffix, describe(child, (*_above, id(value)))) for suffix, child in children)
    if type(value) in _CONTAINERS:
        return Node(value_of(type(value)), named)
    names = {suffix.removeprefix(".") for suffix, _ in named}
    attributes = tuple((name, value_of(x)) for name, x in _own_attributes(value) if name not in names)
    return Node(value_of(type(value)), named, value_of(auxiliary), attributes)


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
    """The attributes that an object itself has, in its dictionary and its slots."""
    if isinstance(held := safely(lambda: value.__dict__, None), dict):
        yield from ((name, part) for name, part in held.items() if not frameworks.is_own(name))
    for kind in type(value).__mro__:
        slots = _NAMES.get(kind) or kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            part = safely(functools.partial(getattr, value, name, _GONE), _GONE)
            if part is not _GONE:
                yield name, part


def _static(value: Any) -> Leaf:
    """Describe what JAX cannot trace. `jax.typeof` would raise an error with its text."""
    source = type(value).__name__
    return Leaf("static", dtype=source, value=value_of(value), source=source)


def _leaf(value: Any) -> Leaf:
    source = type(value).__name__
    try:
        aval: Any = value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)
        # Not all symbolic sizes can be compared with numbers.
        shape = tuple(size if isinstance(size, int) else str(size) for size in aval.shape)
        dtype, weak_type = str(aval.dtype), bool(aval.weak_type)
    except Exception:  # JAX cannot trace it: an array of texts, or an int that fits no dtype. It must be static.
        return _static(value)
    if isinstance(value, np.generic):  # The only arrays that can be static: the others have no hash.
        return Leaf("array", shape, dtype, weak_type, value=value_of(value), source=f"a NumPy {source}")
    if isinstance(value, _NUMBERS):
        return Leaf("scalar", shape, dtype, weak_type, value=value_of(value), source=f"a Python {source}")
    # A tracer, or an array of another library, has no placement to compare.
    placement = safely(lambda: _placement(value), _NO_PLACEMENT)
    if isinstance(value, jax.core.Tracer):
        return Leaf("array", shape, dtype, weak_type, *placement, source=TRACER)
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


@dataclasses.dataclass(frozen=True)
class Signature:
    """The arguments of one call, as `signature_of` describes them, by their paths: `args[0]`, `kwargs['mask']`."""

    parts: tuple[tuple[str, Item], ...]

    @property
    def leaves(self) -> tuple[tuple[str, Leaf], ...]:
        """Every leaf with its path, such as `args[0]['ids']`, `args[0].layers[3].weight`, `kwargs['mask']`."""

        def below(path: str, item: Item) -> Iterator[tuple[str, Leaf]]:
            if isinstance(item, Leaf):
                yield path, item
            else:
                for suffix, child in item.children:
                    yield from below(path + suffix, child)

        return tuple(leaf for path, item in self.parts for leaf in below(path, item))

    def __str__(self) -> str:
        leaves = self.leaves
        shown = ", ".join(f"{path}: {leaf}" for path, leaf in leaves[:4])
        return f"({shown}, and {len(leaves) - 4} more)" if len(leaves) > 4 else f"({shown})"


@dataclasses.dataclass(frozen=True)
class SignatureChange:
    """One difference between two calls: its kind, its path, and both sides as text.

    `kind` is "shape", "dtype", "layout", "weak type", "static value", "number" (the value of a Python number, which
    matters only where it is static), "structure", "sharding", "committed" or "device"; and of the call as a whole
    "function", "options" or "config". `distance` says how far apart the sides are, to find the nearest of several
    calls. `variant` tells apart what a user would do different things about, such as a "ragged" shape from one that
    "grows", and `hint` completes that advice.
    """

    kind: str
    path: str
    was: str
    now: str
    distance: float = dataclasses.field(default=1.0, compare=False, repr=False)
    variant: str = dataclasses.field(default="", compare=False, repr=False)
    hint: str = dataclasses.field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.path}: {self.difference}"

    @property
    def difference(self) -> str:
        """Both sides in words: `shape was (8,), is (5,)`."""
        what = {"number": "static value "}.get(self.kind, f"{self.kind} ")
        if self.kind in ("structure", "committed", "function", "options", "config"):
            what = ""
        now = f"another {self.now}" if self.was == self.now else self.now
        return f"{what}was {self.was}, is {now}"


Changes = tuple[SignatureChange, ...]


def with_parameters(changes: Iterable[SignatureChange], function: Any) -> Changes:
    """The changes with the names of the function's parameters, where there are too many of these to count.

    `filter_jit` makes keywords positional: without the name, a user who wrote `t1=2.0` would read of `args[3]` only.
    """
    return tuple(dataclasses.replace(change, path=with_parameter(change.path, function)) for change in changes)


def with_parameter(path: str, function: Any) -> str:
    """A path such as `args[3].rate`, with the name of the parameter where there are many; by name alone in a method."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except Exception:  # A callable without a signature, or one of the user's that raises.
        return path
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    match = _POSITION.match(path)
    if match is None or int(match[1]) >= len(names):
        return path
    if names[0] == "self":  # whoever calls a method does not count its object
        return names[int(match[1])] + path[match.end() :]
    if len(names) <= _COUNTED_AT_A_GLANCE:
        return path
    return f"{path} ({'' if match.end() == len(path) else 'of '}{names[int(match[1])]})"


def signature_of(args: tuple, kwargs: dict[str, Any] | None = None) -> Signature:
    """Describe the arguments of a call. Takes any argument, also donated arrays and objects that raise when asked."""
    by_path = {f"args[{n}]": value for n, value in enumerate(args)}
    return signature_of_named(by_path | {f"kwargs[{name!r}]": x for name, x in sorted((kwargs or {}).items())})


def signature_of_named(arguments: dict[str, Any]) -> Signature:
    """Describe arguments that are known by the names of the parameters, whose paths then begin with the name."""
    return Signature(tuple((name, describe(value)) for name, value in arguments.items()))


def changes_between(before: Signature, after: Signature) -> Changes:
    """The differences of `after` from `before`, in the order of `after`'s arguments. Empty where JAX sees none.

    The changes in the opposite direction are the same with `was` and `now` exchanged.
    """
    old, new = dict(before.parts), dict(after.parts)
    lost, gained = old.keys() - new.keys(), new.keys() - old.keys()
    moved: list[SignatureChange] = []
    for positional, keyword, was, now in ((lost, gained, "position", "keyword"), (gained, lost, "keyword", "position")):
        if _are_moved(positional, keyword):
            sides = f"passed by {was}", f"passed by {now}"
            moved = [SignatureChange("structure", path, *sides, 4.0, "keyword") for path in sorted(keyword)]
            old = {path: item for path, item in old.items() if path not in lost}
            new = {path: item for path, item in new.items() if path not in gained}
    return (*moved, *_part_changes(old, new))


def distance(changes: Iterable[SignatureChange]) -> float:
    """How far apart two signatures with these differences are; 0 for equals."""
    return sum(change.distance for change in changes)


def _are_moved(positional: set[str], keyword: set[str]) -> bool:
    """Whether one side passes by position what the other passes by keyword."""
    by_position = all(path.startswith("args[") for path in positional)
    return by_position and all(path.startswith("kwargs[") for path in keyword) and len(positional) == len(keyword) > 0


def _part_changes(old: dict[str, Item], new: dict[str, Item]) -> Iterator[SignatureChange]:
    for path in _both(old, new):
        if path in old and path in new:
            yield from _item_changes(path, old[path], new[path])
        else:
            variant = "argument" if _WHOLE_ARGUMENT.fullmatch(path) else ""
            was, now = str(old.get(path, _ABSENT)), str(new.get(path, _ABSENT))
            yield SignatureChange("structure", path, was, now, 4.0, variant)


def _both(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The names on either side, those of the new side first."""
    return [*new, *(name for name in old if name not in new)]


def _item_changes(path: str, was: Item, now: Item) -> Iterator[SignatureChange]:
    if isinstance(was, Leaf) and isinstance(now, Leaf):
        yield from _leaf_changes(path, was, now)
    elif isinstance(was, Leaf) or isinstance(now, Leaf):
        variant = "None" if "None" in (str(was), str(now)) else ""
        yield SignatureChange("structure", path, str(was), str(now), 4.0, variant)
    elif was.type != now.type:
        again = "class" if was.type.text == now.type.text else ""
        yield SignatureChange("structure", path, was.type.text, now.type.text, 4.0, again)
    else:
        old, new = ({path + suffix: child for suffix, child in side.children} for side in (was, now))
        if old.keys() == new.keys() and was.auxiliary != now.auxiliary:
            yield from _auxiliary_changes(path, was, now)
        yield from _part_changes(old, new)


def _auxiliary_changes(path: str, was: Node, now: Node) -> Iterator[SignatureChange]:
    changes = list(_named_changes(path, was.attributes, now.attributes))
    old, new = was.auxiliary, now.auxiliary
    if not changes and old and new:
        far = 4.0 * _looks_apart(old.text, new.text)
        changes = _field_changes(path, old, new)
        changes = changes or [SignatureChange("structure", path, old.text, new.text, far, nature_of(old, new))]
    yield from changes


def _field_changes(path: str, was: Value, now: Value) -> list[SignatureChange]:
    """The fields in which two records of one type differ; none where they have no fields, or none differs."""
    return list(_named_changes(path, was.fields, now.fields)) if was.type == now.type else []


def _named_changes(
    path: str, was: tuple[tuple[str, Value], ...], now: tuple[tuple[str, Value], ...]
) -> Iterator[SignatureChange]:
    """The changes of the attributes of a node, or of the fields of a record."""
    old, new = dict(was), dict(now)
    for name in _both(old, new):
        one, other = old.get(name), new.get(name)
        if one is None or other is None or one != other:
            texts = (value.text if value else _ABSENT for value in (one, other))
            yield from _static_changes(f"{path}.{name}", one, other, *texts)


def _static_changes(
    path: str, was: Value | None, now: Value | None, was_text: str, now_text: str
) -> Iterator[SignatureChange]:
    """How two static values differ: by their fields, or as a whole; for functions also in what they have built in."""
    if was and now and (fields := _field_changes(path, was, now)):
        yield from fields
        return
    nature = nature_of(was, now)
    held, differ = {}, {}
    if was and now and nature in ("function", "mode"):  # of a mode, such as a string, nothing is held
        old, held = dict(was.holds), dict(now.holds)
        differ = {name: text for name, text in held.items() if old.get(name, text) != text}
    hint = ", ".join(name.rpartition(" ")[2] for name in differ or held)
    far, variant = _looks_apart(was_text, now_text), "closure" if held else nature
    yield SignatureChange("static value", path, was_text, now_text, far, variant, hint)
    for name, text in differ.items():
        yield SignatureChange("static value", f"{path}, {name}", old[name], text, 0.5)


def _leaf_changes(path: str, was: Leaf, now: Leaf) -> Iterator[SignatureChange]:
    if "static" in (was.kind, now.kind):
        if (was.kind, was.dtype, was.value) != (now.kind, now.dtype, now.value):
            yield from _static_changes(path, was.value, now.value, str(was), str(now))
        return
    key = "key" if "key<" in was.dtype + now.dtype else ""
    python = "number" if "scalar" in (was.kind, now.kind) else ""
    if was.shape != now.shape:
        far, variant = _shape_distance(was.shape, now.shape), key or _shape_variant(was.shape, now.shape)
        yield SignatureChange("shape", path, str(was.shape), str(now.shape), far, variant)
    if was.dtype != now.dtype:
        before, after = (f"{leaf.dtype} ({leaf.source})" if python else leaf.dtype for leaf in (was, now))
        hint = _constructor(was, now) if python else ""
        yield SignatureChange("dtype", path, before, after, variant=key or python, hint=hint)
    elif was.shape == now.shape and was.layout != now.layout:
        yield SignatureChange("layout", path, was.layout or "the usual one", now.layout or "the usual one")
    if was.weak_type != now.weak_type:
        before, after = (f"{leaf.weak_type} ({leaf.source})" for leaf in (was, now))
        yield SignatureChange("weak type", path, before, after, 1.0, python, _constructor(was, now))
    if was.value != now.value or was.kind != now.kind:
        flags = [isinstance(leaf.value and leaf.value.plain, bool) for leaf in (was, now)]
        variant = "numpy" if not python else "mode" if all(flags) else ""
        before, after = (leaf.value.text if leaf.value else str(leaf) for leaf in (was, now))
        # A Python number is further from an array than an array of another dtype.
        yield SignatureChange("number", path, before, after, 0.5 if was.kind == now.kind else 2.0, variant)
    yield from _placement_changes(path, was, now)


def _placement_changes(path: str, was: Leaf, now: Leaf) -> Iterator[SignatureChange]:
    if bool(was.devices) != bool(now.devices):
        many = "many" if len(was.devices or now.devices) > 1 else ""
        yield SignatureChange("committed", path, _commitment(was), _commitment(now), 1.0, many)
    elif was.sharding != now.sharding or len(was.devices) != len(now.devices):
        one, other = (leaf.sharding.mesh if leaf.sharding else "" for leaf in (was, now))
        mesh = "mesh" if one and other and one != other else ""
        yield SignatureChange("sharding", path, str(was.sharding or "none"), str(now.sharding or "none"), 1.0, mesh)
    elif was.devices != now.devices:
        yield SignatureChange("device", path, _device_list(was), _device_list(now))


def _are_numbers(was: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Whether two shapes have as many sizes, none of them symbolic."""
    return len(was) == len(now) and not any(isinstance(size, str) for size in (*was, *now))


def _shape_distance(was: tuple[Any, ...], now: tuple[Any, ...]) -> float:
    """1 for sizes that are close, up to 3 for another number of dimensions."""
    if not _are_numbers(was, now):
        return 3.0
    return 1.0 + sum(abs(a - b) / max(a, b, 1) for a, b in zip(was, now, strict=True)) / max(len(was), 1)


def _shape_variant(was: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    """Return "ragged" where only the first axis shrinks, "grows" where only one axis, whichever, grows."""
    other = [axis for axis in range(len(was)) if was[axis] != now[axis]] if _are_numbers(was, now) else []
    if len(other) != 1:
        return ""
    if now[other[0]] > was[other[0]]:
        return "grows"
    return "ragged" if other == [0] else ""


def _looks_apart(was: str, now: str) -> float:
    """Objects with the same text, such as those of the same lambda, are more likely meant to be one."""
    return 0.5 if was == now else 1.0


def _constructor(was: Leaf, now: Leaf) -> str:
    """The constructor, such as `jnp.float32`, of a dtype that both sides fit in."""
    name = now.dtype
    if was.dtype != now.dtype:
        # Under the user's setting "strict" JAX would raise, and it does for the dtypes of keys.
        with jax.numpy_dtype_promotion("standard"):
            name = safely(lambda: str(jnp.promote_types(was.dtype, now.dtype)), now.dtype)
    return f"jnp.{name}{'_' if name == 'bool' else ''}"


def _commitment(leaf: Leaf) -> str:
    if not leaf.devices:
        return "uncommitted"
    devices = leaf.devices[0] if len(leaf.devices) == 1 else f"{len(leaf.devices)} devices ({leaf.sharding})"
    return f"committed to {devices}"


def _device_list(leaf: Leaf) -> str:
    more = f" and {len(leaf.devices) - _DEVICES_SHOWN} more" if len(leaf.devices) > _DEVICES_SHOWN else ""
    return ", ".join(leaf.devices[:_DEVICES_SHOWN]) + more
