"""What a value is, as text: the same in every process, and another for what may take another time.

Numbers, texts and containers count by what they hold, arrays by shape, dtype and place, small ones by their numbers
too. An object of the project's own counts by its attributes, one of a library by its type.
"""

import dataclasses
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from perfsuite.measure.fingerprint import code
from perfsuite.measure.fingerprint.owners import library_of
from perfsuite.measure.private.frameworks import wraps_jit

SMALL_BYTES = 1 << 16
"""The numbers of a larger array do not count."""
MOST_PARTS = 100_000
"""Of one value: what has more cannot be told apart from another in a moment."""

_PLAIN = (bool, int, float, complex, type(None), type(...), type(NotImplemented), range, slice)
_BY_REPR = frozenset({"operator", "_operator", "re", "datetime", "decimal", "fractions", "pathlib", "uuid"})
"""Modules whose objects show all that they are."""
_LONGEST = 200
_CACHED = type(functools.cache(len))
_METHODS = (types.FunctionType, staticmethod, classmethod, property, types.MemberDescriptorType)
_DESCRIPTORS = (*_METHODS, types.GetSetDescriptorType, type, functools.cached_property)


class Unknown(Exception):  # noqa: N818  (a report, not a fault)
    """What runs, or what it reads, cannot be told. The message says why, and can follow a colon."""


class Describer:
    """Describes values, each once. `functions` are the Python functions among them, by their code.

    `cached` are those behind `functools.cache`. Without `contents`, no array counts by its numbers.
    """

    def __init__(self, *, contents: bool = True) -> None:
        self.functions: dict[types.CodeType, types.FunctionType] = {}
        self.cached: list[Any] = []
        self._contents = contents
        self._known: dict[int, tuple[Any, str]] = {}  # with the values, so that no other gets their identity
        self._open: list[int] = []

    def __call__(self, value: Any) -> str:
        """The text of a value. Raises `Unknown` for one of too many parts, or with parts too deep inside."""
        if isinstance(value, str | bytes):
            return _shortened(f"{_type(value)} {value!r}")
        if type(value) in _PLAIN:
            return f"{_type(value)} {value!r}"
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        if id(value) in self._open:
            return f"the value {len(self._open) - self._open.index(id(value))} around it"
        if len(self._known) + len(self._open) > MOST_PARTS:
            raise Unknown(f"a value has more than {MOST_PARTS:,} parts")
        self._open.append(id(value))
        try:
            text = _shortened(self._text(value))
        except RecursionError:
            raise Unknown("a value has parts too deep inside") from None
        finally:
            self._open.pop()
        self._known[id(value)] = value, text
        return text

    def _text(self, value: Any) -> str:
        if isinstance(value, jax.Array):
            return self._array(value)
        if isinstance(value, np.ndarray | np.generic):
            return self._numpy(value)
        if isinstance(value, enum.Enum):
            return f"{_type(value)}.{value.name} {self(value.value)}"
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type):
            return f"class {_name(value)}{self._class(value)}"
        if callable(value) and (text := self._callable(value)):
            return text
        return self._object(value)

    def _callable(self, value: Any) -> str:
        """A function by its name: what it does counts where it runs. Empty for an object that can be called."""
        if isinstance(value, types.FunctionType):
            self.functions.setdefault(value.__code__, value)
            return f"function {_name(value)}{self._function(value)}"
        if isinstance(value, types.MethodType):
            return f"method {self(value.__func__)} of {self(value.__self__)}"
        if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            of = value.__self__
            return f"{_name(value)} of {'' if isinstance(of, types.ModuleType) else self(of)}"
        if isinstance(value, functools.partial):
            return f"partial {self(value.func)} {self(value.args)} {self(value.keywords)}"
        if isinstance(value, _CACHED):
            # What it returns was made before, so what makes it counts like code that runs.
            self.cached.append(value.__wrapped__)
            return f"cached {self(value.__wrapped__)}"
        if (isinstance(value, jax.stages.Wrapped) or wraps_jit(value)) and _is_of_library(type(value)):
            return f"jitted {_name(value)}"  # its program says what it does
        return ""

    def _function(self, value: types.FunctionType) -> str:
        """What a function of the project's own was made with."""
        if library_of(value.__code__.co_filename, value.__module__ or "") is not None:
            return ""
        return f" {self(value.__defaults__)} {self(value.__kwdefaults__)} {self._parts(cells(value))}"

    def _class(self, value: type) -> str:
        if _is_of_library(value):
            return ""
        own = ((name, each) for name, each in vars(value).items() if not name.startswith(("__", "_abc_")))
        kept = self._parts((name, each) for name, each in own if not isinstance(each, _DESCRIPTORS))
        return f"{kept} {self([base for base in value.__bases__ if not _is_of_library(base)])}"

    def _object(self, value: Any) -> str:
        name = _type(value)
        if isinstance(value, tuple | list):
            parts = list(tuple.__iter__(value) if isinstance(value, tuple) else list.__iter__(value))
            return f"{name} [{', '.join(map(self, parts))}]"
        if isinstance(value, dict | types.MappingProxyType):
            return f"{name} {self._parts(value.items())}"
        if isinstance(value, set | frozenset):
            return f"{name} {sorted(map(self, value))}"
        if isinstance(value, types.CodeType):
            return f"code {code.read(value).digest}"
        if type(value).__module__.partition(".")[0] in _BY_REPR or isinstance(value, np.dtype):
            return f"{name} {value!r}"
        if dataclasses.is_dataclass(value):
            fields = [field.name for field in dataclasses.fields(value)]
            parts = [(each, getattr(value, each)) for each in fields if hasattr(value, each)]
            return f"{name} {self._parts(parts)} {self(type(value))}"
        if not _is_of_library(type(value)):
            return f"{name} {self._parts(_attributes(value))} {self(type(value))}"
        return f"{name} {self._node(value)}"

    def _node(self, value: Any) -> str:
        """The parts of a node of a library's in a tree; empty for what is none."""
        children, structure = jax.tree.flatten(value, is_leaf=lambda each: each is not value)
        data = structure.node_data()  # type: ignore[attr-defined]  # jaxlib's stubs name the class alone
        return "" if data is None else f"{self(data[1])} {self(children)}"

    def _parts(self, named: Iterable[tuple[Any, Any]]) -> str:
        return "{" + ", ".join(f"{self(name)}: {self(each)}" for name, each in named) + "}"

    def _array(self, value: jax.Array) -> str:
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = "" if value.is_deleted() else self._array(jax.random.key_data(value))
            return f"key {value.shape} {value.dtype} {data}"
        held = f"array {value.shape} {value.dtype} weak {value.weak_type} in {_place(value)}"
        if value.is_deleted() or not value.is_fully_addressable:
            return held
        return held + self._numbers(value)

    def _numpy(self, value: np.ndarray | np.generic) -> str:
        held = f"{_type(value)} {np.shape(value)} {value.dtype}"
        return f"{held} {self(value.tolist())}" if value.dtype.hasobject else held + self._numbers(value)

    def _numbers(self, value: Any) -> str:
        if not self._contents or value.nbytes > SMALL_BYTES:
            return ""
        return f" {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"


def cells(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The names and values in a function's closure."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            continue


def _attributes(value: Any) -> Iterator[tuple[Hashable, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _place(value: jax.Array) -> str:
    """Where an array is: one that was committed to its device makes another program."""
    return f"{value.sharding} {'committed' if value.committed else 'uncommitted'}"


def _is_of_library(kind: type) -> bool:
    module = kind.__module__ or ""
    if module in ("builtins", "abc", "typing", "types"):
        return True
    functions = (each for each in vars(kind).values() if isinstance(each, types.FunctionType))
    files = {each.__code__.co_filename for each in functions if each.__module__ == module}
    files |= {getattr(sys.modules.get(module), "__file__", None) or ""}
    return any(library_of(file, module) is not None for file in files) or not any(files)


def _type(value: Any) -> str:
    return _name(type(value))


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__qualname__
    return f"{getattr(value, '__module__', None) or ''}:{name}"


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
