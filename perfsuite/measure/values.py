"""What JAX compares by equality, described without keeping it alive: static values, classes and functions.

A description outlives the call that it was made for, so it may not hold the value: a function's closure or an object's
fields can hold arrays. Numbers, strings and the like hold nothing and are kept as they are.
"""

import dataclasses
import enum
import math
import weakref
from typing import Any

import jax
import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_LONGEST = 80


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One static value. Two are equal where JAX would take the values as equal.

    `plain` is the value itself where it can hold nothing else. Of any other value there are its hash, its text and a
    weak reference: they decide once the value is gone.
    """

    type: str
    text: str
    plain: Any = None
    is_plain: bool = False
    by_identity: bool = False
    hash: int | None = None
    reference: "weakref.ref[Any] | None" = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value):
            return NotImplemented
        if self.type != other.type or self.is_plain != other.is_plain:
            return False
        if self.is_plain:
            # A not-a-number equals itself for JAX only where it is the same object.
            return self.plain is other.plain or bool(self.plain == other.plain)
        if self.reference is not None and self.reference is other.reference:
            return True
        mine = None if self.reference is None else self.reference()
        theirs = None if other.reference is None else other.reference()
        if mine is not None and theirs is not None:
            return mine is theirs or (not self.by_identity and _equal(mine, theirs))
        if self.by_identity and (self.reference is not None or other.reference is not None):
            return False  # One is gone, and no other object is equal to it.
        return self.hash == other.hash and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.type)


def value_of(value: Any) -> Value:
    """Describe a static value. Works for any object, also where its `__eq__`, `__hash__` or `__repr__` raise."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind in _PLAIN:
        return Value(name, text_of(value), plain=value, is_plain=True)
    try:
        reference = weakref.ref(value)
    except TypeError:
        reference = None
    return Value(
        name,
        text_of(value),
        by_identity=kind.__eq__ is object.__eq__,
        hash=_hash(value),
        reference=reference,
    )


def identity_of(value: Any) -> Value:
    """Describe a value that only itself is equal to, such as the function object that `jax.jit` was given."""
    return dataclasses.replace(value_of(value), plain=None, is_plain=False, by_identity=True, hash=id(value))


def text_of(value: Any) -> str:
    """A short readable text of any object, on one line. Never reads an array's numbers: that would wait for them."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"{type(value).__name__} of {value.dtype}{list(value.shape)}"
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if name := getattr(value, "__qualname__", None) if callable(value) else None:
        return str(name)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    try:
        text = " ".join(repr(value).split())
    except Exception as problem:  # A repr may raise anything; the text is for a message about something else.
        return f"<{type(value).__qualname__}, whose repr raises {type(problem).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _hash(value: Any) -> int | None:
    try:
        return hash(value)
    except Exception:  # Unhashable, or a __hash__ of the user's that fails.
        return None


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # Arrays with many elements, or an __eq__ of the user's that fails.
        return False
