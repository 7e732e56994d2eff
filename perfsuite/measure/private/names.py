"""How a private name is declared and looked up: in a module, on the stack, of an object, or by the interpreter's name.

A private name of another library is written down once, in one of these five kinds, as a constant of the module that
uses it. Nothing is imported before it is used. `missing()` reads the compiled code of the library's module, which runs
nothing. So the loss of a name is the loss of a capability (`capabilities`), and never an error at import.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType, FrameType
from typing import Any

from packaging.version import Version

_REFERENCES = 3
"""Those of a frame, of a variable and of the call that counts them."""


class Moved(Exception):  # noqa: N818  (a state of another library, not a fault of this one)
    """A private name is not where perfsuite knows it. The message names it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Declared:
    """What all kinds have: the library's module, the first version of the library with the name, the first without."""

    module: str
    since: str = dataclasses.field(default="", kw_only=True)
    until: str = dataclasses.field(default="", kw_only=True)

    def missing(self) -> str:
        """That the name has moved; "" where it has not, or is of another version of the library."""
        return self._missing() if self.is_current() else ""

    def is_current(self) -> bool:
        """Whether the installed version of the library has, or had, the name. A library that is not installed has lost
        none.
        """
        library = self.module.partition(".")[0]
        if importlib.util.find_spec(library) is None:
            return False
        if not self.since and not self.until:
            return True
        # The nightly wheels of a release are called 0.13.0.dev20261127, and have what it will have.
        installed = Version(importlib.metadata.version(library)).release
        since, until = Version(self.since or "0").release, Version(self.until or "0").release
        return since <= installed and (not self.until or installed < until)

    def _missing(self) -> str:
        return "" if self._is_there() else f"there is no {self}"

    def _is_there(self) -> bool:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False)
class Name(Declared):
    """A module, or something in it: `Name("jax._src.array")`, `Name("jax._src.array", "ArrayImpl._value")`.

    `called` says that the module's own functions call it: else it may be there, and nobody call it any more.
    """

    path: str = ""
    called: bool = False

    def __str__(self) -> str:
        return ".".join(filter(None, (self.module, self.path)))

    def get(self) -> Any:
        """What the name stands for. Raises `Moved`."""
        owner, last = self._owner()
        return self._attribute(owner, last) if last else owner

    @contextlib.contextmanager
    def replaced(self, make: Callable[[Any], Any]) -> Iterator[None]:
        """Put `make(the present one)` in its place. Raises `Moved`."""
        owner, last = self._owner()
        self._attribute(owner, last)
        before = inspect.getattr_static(owner, last)
        setattr(owner, last, make(before))
        try:
            yield
        finally:
            setattr(owner, last, before)

    def _missing(self) -> str:
        try:
            self.get()
        except Moved as moved:
            return str(moved)
        last = self.path.rpartition(".")[2]
        if self.called and not any(last in code.co_names for code in _codes(self.module)[1:]):
            return f"{self} is there, and no function of its module calls it"
        return ""

    def _owner(self) -> tuple[Any, str]:
        try:
            owner = importlib.import_module(self.module)
        except Exception as error:  # a module that moved may fail in any way when something else imports it
            raise Moved(f"there is no {self.module} ({error})") from None
        *outer, last = self.path.split(".")
        return functools.reduce(self._attribute, outer, owner), last

    def _attribute(self, owner: Any, name: str) -> Any:
        try:
            return getattr(owner, name)
        except AttributeError:
            raise Moved(f"there is no {self}") from None


def local_variables(frame: FrameType) -> dict[str, Any]:
    """A copy of the local variables of a function's frame.

    Before Python 3.13 a frame keeps the dictionary that it is asked for, and so what the variables held, which JAX's
    leak checker finds. It is emptied here, unless somebody else has it: who called `locals()`, or a tracer, after which
    Python sets the variables from it.
    """
    variables = frame.f_locals
    copy = dict(variables)
    is_own = sys.getrefcount(variables) <= _REFERENCES and sys.gettrace() is None and sys.getprofile() is None
    if sys.version_info < (3, 13) and is_own and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        variables.clear()
    return copy


@dataclasses.dataclass(frozen=True, eq=False)
class Frame(Declared):
    """A function of a library's as it stands on the stack, with the local variables that are read of it.

    `Frame("jax._src.pjit", "cache_miss", ("fun", "jit_info"))`.
    """

    function: str
    locals: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"

    def runs(self, frame: FrameType) -> bool:
        """Whether `frame` runs this function."""
        return frame.f_code.co_name == self.function and frame.f_globals.get("__name__") == self.module

    def local(self, frame: FrameType, name: str, default: Any = None) -> Any:
        """A declared local variable of a frame that runs this function; `default` where the frame has none."""
        return local_variables(frame).get(name, default) if name in self.locals else default

    def _missing(self) -> str:
        codes = [code for code in _codes(self.module) if code.co_name == self.function]
        if not codes:
            return f"{self.module} has no function {self.function}"
        variables = [{*code.co_varnames, *code.co_cellvars, *code.co_freevars} for code in codes]
        lost = [name for name in self.locals if all(name not in names for names in variables)]
        return f"{self} has no variable {', '.join(lost)}" if lost else ""


@dataclasses.dataclass(frozen=True, eq=False)
class Attribute(Declared):
    """An attribute of an object that code of `module` makes: `Attribute("jax._src.pjit", "_jit_info")`."""

    name: str

    def __str__(self) -> str:
        return f"{self.module}:.{self.name}"

    def of(self, value: Any, default: Any = None) -> Any:
        """The attribute of an object; `default` where it has none."""
        return getattr(value, self.name, default)

    def put(self, value: Any, new: Any) -> None:
        """Set the attribute of an object."""
        setattr(value, self.name, new)

    def _is_there(self) -> bool:
        return any(self.name in _words(code) for code in _codes(self.module))


@dataclasses.dataclass(frozen=True, eq=False)
class Functions(Declared):
    """Functions by the interpreter's name for them: all of a module whose qualified names begin with `prefix`.

    `Functions("jax._src.api", "device_put")` is every "jax._src.api:device_put...". Without a prefix it is every
    function of the module and of those below it.
    """

    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.module}:{self.prefix}"

    def has(self, function: str) -> bool:
        """Whether "module:qualified.name" is one of them."""
        return function.startswith(str(self) if self.prefix else (f"{self.module}:", f"{self.module}."))

    def runs(self, frame: FrameType) -> bool:
        """Whether `frame` runs one of them."""
        return self.has(f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}")

    def _is_there(self) -> bool:
        return any(code.co_qualname.startswith(self.prefix) for code in _codes(self.module))


@dataclasses.dataclass(frozen=True, eq=False)
class Text(Declared):
    """The beginning of a text that code of `module` logs or sends: `Text("jax._src.compiler", "Persistent ...")`."""

    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.text!r}"

    def _is_there(self) -> bool:
        return any(word.startswith(self.text) for code in _codes(self.module) for word in _words(code))


@functools.cache
def _codes(module: str) -> tuple[CodeType, ...]:
    """The code of a module and of every function and class in it, without running it; empty where there is none."""
    try:
        spec: Any = importlib.util.find_spec(module)
        # pytest loads its plugins by itself, to rewrite their assertions, and that loader gives no code.
        loader = spec.loader if hasattr(spec.loader, "get_code") else SourceFileLoader(module, spec.origin)
        code = loader.get_code(module)
    except (ImportError, AttributeError):  # no such module, or one that is written in C
        return ()
    return tuple(_inner(code)) if code is not None else ()


def _inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _inner(each)


def _words(code: CodeType) -> Iterator[str]:
    """The names and the short texts that a code has: an attribute may be one of a `__slots__`."""
    yield from code.co_names
    yield from code.co_varnames
    for each in code.co_consts:
        yield from (word for word in (each if isinstance(each, tuple) else (each,)) if isinstance(word, str))
