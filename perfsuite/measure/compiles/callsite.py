"""Where a compile comes from, read from the stack inside a monitoring listener: the user's line, and the call.

Outwards from the listener there are JAX's frames, those of a library around it, and then the user's. The outermost
library frame has the arguments as the user passed them, whichever library it is: of `jax.jit`, `filter_jit`,
`nnx.jit` or an operation such as `jnp.zeros`.
"""

import dataclasses
import functools
import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax

from perfsuite.measure.compat import jax_stack as _jax_internals
from perfsuite.measure.compat.frameworks import as_passed_on, is_filter_jit, wraps_jit

_FRAMEWORKS = frozenset({"jax", "jaxlib", "equinox", "flax", "optax", "haiku", "chex"})
_BUILT_ON_THEM = frozenset({"diffrax", "distrax", "lineax", "optimistix", "orbax", "quax"})
LIBRARIES = _FRAMEWORKS | _BUILT_ON_THEM
"""Their frames belong to the call, as do those of objects around a jitted function, whoever made them. Of what is built
on the frameworks that is so where it is installed: in a checkout of diffrax, its code is the user's own."""

_TRANSPARENT = ("jaxtyping", "beartype", "typeguard")
"""Their frames pass arguments on as they are."""

_STANDARD_LIBRARY = tuple(
    os.path.join(path, "") for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)


@dataclasses.dataclass(frozen=True)
class Statics:
    """Which arguments are compared by value: all that are not arrays, or those at positions and with names."""

    all: bool = False
    argnums: tuple[int, ...] = ()
    argnames: tuple[str, ...] = ()

    def __contains__(self, path: object) -> bool:
        """Whether the argument at a path such as `args[0]['rate']` or `kwargs['n']` is static."""
        named = any(str(path).startswith(f"kwargs[{name!r}]") for name in self.argnames)
        return self.all or named or any(str(path).startswith(f"args[{n}]") for n in self.argnums)


@dataclasses.dataclass(frozen=True)
class CallSite:
    """A call that compiles, for as long as its frames are on the stack: it holds the arguments themselves.

    `location` is the user's `file:line`. `args` and `kwargs` are the call's own; `named` are the arguments of a
    library's function `through` which the compile came instead, such as `zeros`. `function` is what the user jitted,
    `compared` whether JAX compares it by equality rather than identity, and `compiled` what JAX compiles for it, a
    function of the library's own for `filter_jit`. `statics` is `None` where nobody can tell. `frame` is the identity
    of the library's outermost frame, the same for every stage of one call. `caller` is the user's function whose
    line is named: its name, and its place as `code_of` gives it. `maker` is the library that made `function` and had
    JAX take it, such as "flax"; "" where the user did.
    """

    location: str
    args: tuple = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    named: dict[str, Any] | None = None
    through: str = ""
    function: Any = None
    compared: bool = False
    eager: bool = False
    statics: Statics | None = None
    compiled: Any = None
    frame: int = 0
    caller: tuple[str, str] = ("", "")
    maker: str = ""

    @property
    def mark(self) -> int:
        """Tells this call from another, as long as its arguments live; much cheaper than a description."""
        values = self.args, self.kwargs, self.named
        # JAX warns of an iterator that it is not told to take for a leaf.
        leaves = jax.tree.leaves(values, is_leaf=lambda node: isinstance(node, Iterator))
        return hash((self.frame, *map(id, leaves)))


def read(frame: FrameType) -> CallSite:
    """Read the call that is compiling from the stack at `frame`."""
    library, user = _split(frame)
    where = _location(user)
    compiled = _jax_internals.compiled_function(library)
    function = compiled.function if compiled else None
    site = _wrapped_call(library, where, compiled)
    if site is None and library:
        through, named = _through(library)
        eager = _jax_internals.belongs_to_jax(function)
        site = CallSite(where, named=named, through=through, function=function, eager=eager)
    outermost = id(library[-1]) if library else 0
    code = user and user.f_code
    caller = (code.co_name, f"{_shortened(code.co_filename)}:{code.co_firstlineno}") if code else ("", "")
    # `filter_jit` and `nnx.jit` give JAX a function of their own, around the user's.
    maker = _maker(library, function) if site is None or site.function is function else ""
    return dataclasses.replace(site or CallSite(where), compiled=function, frame=outermost, caller=caller, maker=maker)


def location(frame: FrameType) -> str:
    """The user's `file:line` that the stack at `frame` comes from."""
    return _location(_split(frame)[1])


def of_function(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> CallSite:
    """The call `fn(*args, **kwargs)` as `read` would find it, were it compiling now."""
    args, kwargs = as_passed_on(fn, args, kwargs)
    if is_filter_jit(fn):
        return CallSite("", args, kwargs, function=_wrapped(fn), compared=True, statics=Statics(all=True))
    known = _jax_internals.static_arguments(fn)
    function = fn if wraps_jit(fn) and hasattr(fn, "jitted_fn") else getattr(fn, "__wrapped__", fn)
    return CallSite("", args, kwargs, function=function, statics=_statics(known, args))


def code_of(function: Any) -> str:
    """Where a function was defined, as `file:line`, also behind partials and wrappers; its type's name otherwise."""
    *_, function = innermost(function)
    code = getattr(function, "__code__", None)
    if code is None and callable(function):
        code = getattr(type(function).__call__, "__code__", None)
    return type(function).__qualname__ if code is None else f"{_shortened(code.co_filename)}:{code.co_firstlineno}"


def innermost(function: Any) -> Iterator[Any]:
    """A function, and what is behind it where it is a partial or a wrapper, the function with the code last."""
    yield function
    for _ in range(100):  # A wrapper that wraps itself must not hang a user's compile.
        if isinstance(function, functools.partial):
            function = function.func
        elif (inner := getattr(function, "__wrapped__", None)) is not None:
            function = inner
        else:
            return
        yield function


def belongs_to_library(module: str, filename: str) -> bool:
    """Whether code is a library's rather than the user's, by its module and its file."""
    package = module.partition(".")[0]
    return package in _FRAMEWORKS or (package in _BUILT_ON_THEM and "-packages" in filename)


def wraps_call(frame: FrameType) -> bool:
    """Whether a frame of a library hands a call of the user's on to what was jitted, as those of `filter_jit` do."""
    module = frame.f_globals.get("__name__") or ""
    return _wrapper_of(frame) is not None or module.startswith(("equinox._jit", "flax.nnx.transforms"))


def is_harness(module: str) -> bool:
    """Whether a module is of what measures; the workloads of this package are measured as a user's code is."""
    packages = module.split(".", 2)[:2]
    return packages[0] == "perfsuite" and packages[1:] != ["workloads"]


def _split(frame: FrameType) -> tuple[list[FrameType], FrameType | None]:
    """The library's frames, innermost first, and the user's frame whose line to name."""
    library: list[FrameType] = []
    called = False
    for found, _ in traceback.walk_stack(frame):
        module = found.f_globals.get("__name__") or ""
        if _is_transparent(module, found.f_code.co_filename):
            continue
        of_library = belongs_to_library(module, found.f_code.co_filename)
        if not called and (of_library or _wrapper_of(found) is not None):
            library.append(found)
            continue
        called = True
        # Helpers of the user's that hide from tracebacks want the line that called them to be named.
        if "__tracebackhide__" not in found.f_code.co_varnames:
            return library, found
    return library, None


def _maker(library: list[FrameType], function: Any) -> str:
    """The library whose own function JAX was given, by a line of that library's."""
    code = getattr(function, "__code__", None)
    package = str(getattr(function, "__module__", None) or "").partition(".")[0]
    if code is None or package in ("jax", "jaxlib") or not belongs_to_library(package, code.co_filename):
        return ""
    for frame in library:
        called_by = str(frame.f_globals.get("__name__") or "").partition(".")[0]
        if called_by not in ("jax", "jaxlib"):
            return package if called_by == package else ""
    return ""


def _is_transparent(module: str, filename: str) -> bool:
    if is_harness(module) or module.partition(".")[0] in _TRANSPARENT:
        return True
    return filename.startswith("<frozen") or (filename.startswith(_STANDARD_LIBRARY) and "-packages" not in filename)


def _wrapper_of(frame: FrameType) -> Any:
    """The object around a jitted function whose `__call__` or `lower` this frame runs; `None` for other frames."""
    code = frame.f_code
    if code.co_name not in ("__call__", "lower", "trace", "eval_shape") or not code.co_argcount:
        return None
    wrapper = frame.f_locals.get(code.co_varnames[0])
    return wrapper if wrapper is not None and wraps_jit(wrapper) else None


def _wrapped_call(library: list[FrameType], where: str, compiled: _jax_internals.Compiled | None) -> CallSite | None:
    """The call of a jitted function, if that is what the user's frame did."""
    # A method that was jitted in its class is bound by Equinox first, with a frame of its own.
    outer = [frame for frame in reversed(library) if not frame.f_globals["__name__"].startswith("equinox._module")]
    if not outer:
        return None
    if (wrapper := _wrapper_of(outer[0])) is not None:
        args, kwargs = as_passed_on(wrapper, *_passed(outer[0]))
        if is_filter_jit(wrapper):
            return CallSite(where, args, kwargs, None, "", _wrapped(wrapper), True, False, Statics(all=True))
        known = None
        if compiled is not None and hasattr(wrapper, "jitted_fn"):
            known = compiled.static_argnums, compiled.static_argnames
        return CallSite(where, args, kwargs, function=wrapper, statics=_statics(known, args))
    # jax.jit: the frame that shortens tracebacks, and in it the function that is called where the cache misses.
    inner = outer[1].f_code.co_name if len(outer) > 1 else ""
    if compiled is None or _is_named(outer[0]) or not (inner == "cache_miss" or compiled.ahead_of_time):
        return None
    args, kwargs = _passed(outer[0])
    args = args[1:] if compiled.ahead_of_time else args
    statics = _statics((compiled.static_argnums, compiled.static_argnames), args)
    eager = _jax_internals.belongs_to_jax(compiled.function)
    return CallSite(where, args, kwargs, function=compiled.function, eager=eager, statics=statics)


def _through(library: list[FrameType]) -> tuple[str, dict[str, Any]]:
    """The name and arguments of the library's function that the user called."""
    outer = library[-1]
    name = outer.f_code.co_name
    if not _is_named(outer) and len(library) > 1:
        name = library[-2].f_code.co_name  # Behind the frame that shortens tracebacks.
    found = inspect.getargvalues(outer)
    named = {parameter: found.locals[parameter] for parameter in found.args if parameter in found.locals}
    if found.varargs:
        named["args"] = found.locals.get(found.varargs, ())
    if found.keywords:
        named["kwargs"] = found.locals.get(found.keywords, {})
    return name, named


def _is_named(frame: FrameType) -> bool:
    """Whether the frame's function names its arguments, rather than passing on `*args, **kwargs`."""
    return bool(frame.f_code.co_argcount) or not frame.f_code.co_flags & inspect.CO_VARARGS


def _passed(frame: FrameType) -> tuple[tuple, dict[str, Any]]:
    found = inspect.getargvalues(frame)
    args = found.locals.get(found.varargs, ()) if found.varargs else ()
    kwargs = found.locals.get(found.keywords, {}) if found.keywords else {}
    return tuple(args), dict(kwargs)


def _statics(known: tuple[tuple[int, ...], tuple[str, ...]] | None, args: tuple) -> Statics | None:
    if known is None:
        return None
    argnums, argnames = known
    return Statics(argnums=tuple(n + len(args) if n < 0 else n for n in argnums), argnames=argnames)


def _wrapped(wrapper: Any) -> Any:
    return getattr(wrapper, "__wrapped__", wrapper)


def _location(user: FrameType | None) -> str:
    if user is None:
        return "a thread that runs no code but JAX's"
    return f"{_shortened(user.f_code.co_filename)}:{user.f_lineno}"


def _shortened(filename: str) -> str:
    try:
        relative = os.path.relpath(filename)
    except (ValueError, OSError):  # Another drive, or a working directory that is gone.
        return filename
    return filename if relative.startswith("..") else relative
