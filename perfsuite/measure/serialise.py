"""Dataclasses to plain values and back: for JSON files, for pytest-xdist, and for fresh processes."""

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def plain(value: Any) -> Any:
    """The value in what JSON has: dicts, lists, texts, numbers, booleans and None.

    A member of an enumeration becomes its text; so does an infinite number or a NaN, which JSON lacks.
    """
    if isinstance(value, enum.Enum):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_plain(kind: type[T], value: Any) -> T:
    """The inverse of `plain`: a value of the type `kind`, by the type hints of its dataclasses.

    Types: dataclasses, tuples, lists, dicts with texts as keys, `X | None`, literals, enumerations, and what JSON has.
    Raises `ValueError` alone where the value does not fit.
    """
    try:
        return _from_plain(kind, value)
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def from_json(kind: type[T], content: bytes | str) -> T:
    """A value of the type `kind` from JSON that another process wrote.

    Raises `ValueError` alone, whatever the content is: not UTF-8, no JSON, nested too deep, or of other types.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return from_plain(kind, value)


def _from_plain(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _from_plain(next(each for each in arguments if each is not type(None)), value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        if unknown := sorted(value.keys() - hints.keys()):
            raise TypeError(f"{kind.__name__} has no {', '.join(unknown)}")
        return kind(**{name: _from_plain(hints[name], each) for name, each in value.items()})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {str(each): each for each in kind}[value]
    if origin in (tuple, list):
        parts = _checked(value, list, tuple)
        if origin is list or arguments[1:] == (...,):
            return origin(_from_plain(arguments[0], each) for each in parts)
        return tuple(_from_plain(each, part) for each, part in zip(arguments, parts, strict=True))
    if origin in (dict, Mapping):
        return {name: _from_plain(arguments[1], each) for name, each in value.items()}
    if origin is typing.Literal and value not in arguments:
        raise ValueError(f"{value!r:.40} is none of {arguments}")
    if kind is float:
        return float(value) if isinstance(value, str) else _checked(value, int, float)
    return _checked(value, kind) if kind in (str, int, bool) else value


def _checked(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{value!r:.40} is no {kinds[0].__name__}")
    return value
