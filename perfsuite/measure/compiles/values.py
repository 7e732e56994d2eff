"""Static values, classes and functions, which JAX compares by equality, described without keeping them alive.

A description outlives its call, so it may not hold the value: a function's closure or an object's fields can hold
arrays. Numbers, strings and the like hold nothing else and are kept as they are.
"""

import contextlib
import dataclasses
import enum
import functools
import math
import re
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from perfsuite.measure.compiles.callsite import innermost
from perfsuite.measure.private.frameworks import record_fields

T = TypeVar("T")

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_LONGEST = 80
_DEEPEST = 4
_GONE = object()
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


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
    """Describe a static value. Works for any object, also where its `__eq__`, `__hash__` or `__repr__` raise."""
    kind = type(value)
    # A record whose fields raise is compared as a whole.
    fields: dict[str, Any] = safely(lambda: record_fields(value), {}) if _depth < _DEEPEST else {}
    return Value(
        _type_name(kind),
        text_of(value),
        plain=_plain(value, _depth),
        by_identity=kind.__eq__ is object.__eq__,
        hash=safely(lambda: hash(value), None),
        reference=safely(lambda: weakref.ref(value), None),
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
    found: dict[str, Any] = {}
    for part in innermost(function):
        if isinstance(part, functools.partial):
            found |= {"partial's args": part.args} if part.args else {}
            found |= {f"partial's {name}": value for name, value in part.keywords.items()}
        if isinstance(part, types.MethodType):
            found["method's self"] = part.__self__
            part = part.__func__
    if isinstance(part, types.FunctionType):
        code, defaults = part.__code__, part.__defaults__ or ()
        for name, cell in zip(code.co_freevars, part.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # A name that is bound later.
                found[f"closed-over {name}"] = cell.cell_contents
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        by_default = dict(zip(names, defaults, strict=True)) | (part.__kwdefaults__ or {})
        found |= {f"default {name}": value for name, value in by_default.items()}
    return found


def _holds(function: types.FunctionType) -> tuple[tuple[str, str], ...]:
    """What could be an argument of the function instead. No text reads an array or runs a user's `__repr__`."""
    brought: dict[str, Any] = safely(lambda: held_by(function), {})
    held = {name: value for name, value in brought.items() if not callable(value)}
    shown = (*_PLAIN, np.generic, np.ndarray, jax.Array)
    return tuple((name, text_of(x) if isinstance(x, shown) else type(x).__qualname__) for name, x in held.items())


def text_of(value: Any) -> str:
    """A short readable text of any object, on one line. It never reads an array's numbers, which would wait."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"{type(value).__name__} of {value.dtype}{list(value.shape)}"
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if name := _attribute(value, "__qualname__") if callable(value) else "":
        return name
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    try:
        text = " ".join(repr(value).split())
    except Exception as problem:
        return f"<{type(value).__qualname__}, whose repr raises {type(problem).__name__}>"
    text = text if isinstance(value, str | bytes) else _ADDRESS.sub("", text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _attribute(value: Any, name: str) -> str:
    """A text among the attributes of any object; "" where it has none, or raises."""
    found = safely(lambda: getattr(value, name, ""), "")
    return found if isinstance(found, str) else ""
