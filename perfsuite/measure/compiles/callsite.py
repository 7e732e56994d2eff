"""Where a compile comes from, read from the stack inside a monitoring listener: the user's line, and the call.

From the listener outwards there are JAX's frames, those of a library around it, and then the user's. The outermost
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
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal, TypeAlias

import jax

from perfsuite.measure.io import from_here, short_path
from perfsuite.measure.private import frameworks, jax_stack, libraries
from perfsuite.measure.private.frameworks import bound_by_filter_jit, is_filter_jit, is_nnx_jit, wraps_jit
from perfsuite.measure.private.jax_stack import behind_bound, is_jitted, unbound
from perfsuite.measure.private.libraries import API
from perfsuite.measure.private.names import local_variables

_FRAMEWORKS = frozenset({"jax", "jaxlib", "equinox", "flax", "optax", "haiku", "chex"})
_BUILT_ON_THEM = frozenset({"diffrax", "distrax", "lineax", "optimistix", "orbax", "quax"})
LIBRARIES = _FRAMEWORKS | _BUILT_ON_THEM
"""Their frames belong to the call, as do those of any object around a jitted function. A library that is built on the
frameworks counts where it is installed: in a checkout of diffrax, its code is the user's own."""

_MOST_LAYERS = 100

_CHECKERS = ("jaxtyping", "beartype", "typeguard")
"""Their frames pass arguments on as they are."""

STANDARD_LIBRARY = tuple(
    os.path.join(path, "") for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
"""The folders of Python's own modules, and on some systems of installed packages."""

_PRIVATE = jax_stack.__name__.rpartition(".")[0]

CodeKind: TypeAlias = Literal["python", "harness", "stand-in", "checker", "library", "package", "user"]
"""Whose code a frame runs: of Python's own modules; of what measures, and there of what stands in for a function of
JAX's; of a checker of types around a function; of `LIBRARIES`; of another installed package; or the user's."""

_PASSED_OVER = ("python", "harness", "stand-in", "checker")


@dataclasses.dataclass(frozen=True)
class Statics:
    """Which arguments are compared by value: all that are not arrays, or those at positions and with names."""

    all: bool = False
    argnums: tuple[int, ...] = ()
    argnames: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the static arguments, such as `args[1]` and `kwargs['n']`."""
        return (*(f"args[{n}]" for n in self.argnums), *(f"kwargs[{name!r}]" for name in self.argnames))

    def __contains__(self, path: object) -> bool:
        """Whether the argument at a path such as `args[0]['rate']` or `kwargs['n']` is static."""
        return self.all or str(path).startswith(self.paths)


@dataclasses.dataclass(frozen=True)
class CallSite:
    """A call that compiles, for as long as its frames are on the stack: it holds the arguments themselves.

    `location` is the user's `file:line`. `args` and `kwargs` are the call's own. Where the compile came through a
    library's function instead, such as `zeros`, `through` is its name and `named` has its arguments. `function` is what
    the user jitted, and `compared` says that JAX compares it by equality, not identity. `statics` is `None` where
    nobody can tell. `frame` is the identity of the library's outermost frame, the same for every stage of one call.
    `caller` is the user's function with the named line: its name, and its place as `code_of` gives it. `options` are
    those of `jax.jit` beside the static arguments, by name; empty where unknown. `via` is the line of an installed
    package that the user's line led to, such as "blackjax/util.py:9". `maker` is the library that made `function` and
    passed it to JAX, such as "flax", or what traces it outside jit, such as "jax.checkpoint"; "" where the user did.
    """

    location: str = ""
    args: tuple = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    named: dict[str, Any] | None = None
    through: str = ""
    function: Any = None
    compared: bool = False
    eager: bool = False
    statics: Statics | None = None
    frame: int = 0
    caller: tuple[str, str] = ("", "")
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    via: str = ""
    maker: str = ""

    @property
    def mark(self) -> int:
        """Identifies this call while its arguments live, at a much lower cost than a description."""
        arguments = (*self.args, *self.kwargs.values(), *(self.named or {}).values())
        return hash((self.frame, *map(id, arguments)))


def on_stack(frame: FrameType) -> CallSite:
    """The call that is compiling, from the stack at `frame`."""
    library, caller, user = _frames(frame)
    compiling = jax_stack.compiling_function(library)
    function = compiling.function if compiling else None
    site = _jitted_call(library, compiling) or dataclasses.replace(_through(library), function=function)
    # Under `filter_grad` and its like, the user called that. In a backward pass nobody calls the function any more.
    bound = next(filter(None, map(jax_stack.bound_program, library)), None) if function is None else None
    eager = jax_stack.belongs_to_jax(function) or (bound is not None and bound.of_jax)
    in_shard_map = eager and any(jax_stack.SHARD_MAP.runs(each) for each, _ in traceback.walk_stack(frame))
    options = compiling.options if compiling and not site.compared else {}
    # What an installed package compiles is the user's to move: the message names the line that leads to it.
    return dataclasses.replace(
        site,
        eager=eager,
        through="shard_map" if eager and in_shard_map else site.through,
        location=_line_of(user),
        via="" if caller is user else _line_of(caller),
        frame=id(library[-1]) if library else 0,
        caller=(user.f_code.co_name, _place(user.f_code, user.f_code.co_firstlineno)) if user else ("", ""),
        # `filter_jit` and `nnx.jit` give JAX a function of their own, around the user's.
        maker=(compiling and compiling.maker) or (_maker(library, function) if site.function is function else ""),
        # The jitted function inside of `filter_jit` is not known to `of_function`.
        options=options | jax_stack.lowering_platforms(library),
    )


def location(frame: FrameType) -> str:
    """The user's `file:line` that the stack at `frame` comes from."""
    return _line_of(_frames(frame)[2])


def outside_of_python(frame: FrameType) -> FrameType:
    """The innermost frame that is in none of Python's own modules; `frame` itself where that is what measures."""
    for outer, _ in traceback.walk_stack(frame):
        kind = code_kind(outer.f_globals.get("__name__") or "", outer.f_code.co_filename)
        if kind != "python":
            return frame if kind in ("harness", "stand-in") else outer
    return frame


def of_function(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> CallSite:
    """The call `fn(*args, **kwargs)` as `on_stack` would find it if it were compiling now.

    Of a partial, a bound method or an object whose `__call__` is jitted it is that of the jitted function.
    """
    inner, inner_args, inner_kwargs = behind_bound(fn, args, kwargs)
    if is_jitted(inner):
        fn, args, kwargs = inner, inner_args, inner_kwargs
    if is_filter_jit(fn):
        return _filter_jit_call(fn, args, kwargs)
    function = fn if is_nnx_jit(fn) else getattr(fn, "__wrapped__", fn)
    statics = _statics(jax_stack.static_arguments(fn), args)
    return CallSite("", args, kwargs, function=function, statics=statics, options=jax_stack.jit_options(fn))


def code_of(function: Any) -> str:
    """Where a function is defined, as `file:line`; its type's name where it has no Python code."""
    code = code_behind(function)
    return type(function).__qualname__ if code is None else _place(code, code.co_firstlineno)


def code_behind(function: Any) -> CodeType | None:
    """The Python code that a call comes to, behind partials, wrappers, methods and objects; None where it is in C."""
    for _ in range(_MOST_LAYERS):
        *_, function = innermost(function)
        if isinstance(function, FunctionType):
            return function.__code__
        if (bound := unbound(function)) is not None:
            function = bound[0]
            continue
        called = getattr(function, "__init__", None) if isinstance(function, type) else type(function).__call__
        if not (isinstance(called, FunctionType) or hasattr(called, "__wrapped__") or unbound(called)):
            return None
        function = called
    return None


def innermost(function: Any) -> Iterator[Any]:
    """A function, then each function behind it where it is a partial or a wrapper. The last one has the code."""
    yield function
    for _ in range(_MOST_LAYERS):  # A wrapper that wraps itself must not hang a user's compile.
        if isinstance(function, functools.partial):
            function = function.func
        elif (inner := getattr(function, "__wrapped__", None)) is not None:
            function = inner
        else:
            return
        yield function


def wrapper_of(frame: FrameType) -> Any:
    """The object around a jitted function whose `__call__` or `lower` this frame runs; `None` for other frames."""
    code = frame.f_code
    if code.co_name not in ("__call__", "lower", "trace", "eval_shape") or not code.co_argcount:
        return None
    wrapper = local_variables(frame).get(code.co_varnames[0])
    return wrapper if wrapper is not None and wraps_jit(wrapper) else None


def is_harness(module: str) -> bool:
    """Whether a module measures. The workloads of this package do not: they are measured as a user's code is."""
    packages = module.split(".", 2)[:2]
    return packages[0] == "perfsuite" and packages[1:] != ["workloads"]


@functools.cache
def code_kind(module: str, filename: str) -> CodeKind:
    """Whose code a function is, by its module and its file."""
    package, installed = module.partition(".")[0], "-packages" in filename
    if filename.startswith("<frozen") or (filename.startswith(STANDARD_LIBRARY) and not installed):
        return "python"
    if is_harness(module):
        return "stand-in" if module.startswith(_PRIVATE) else "harness"
    if package in _CHECKERS:
        return "checker"
    if package in _FRAMEWORKS or (package in _BUILT_ON_THEM and installed):
        return "library"
    return "package" if installed else "user"


def _frames(frame: FrameType) -> tuple[list[FrameType], FrameType | None, FrameType | None]:
    """The library's frames, innermost first; the frame that called it; and the user's, whose line a message names.

    They are two where an installed package called: then the first frame further out that runs the user's own code.
    """
    library: list[FrameType] = []
    caller: FrameType | None = None
    called = measured = False
    for outer, _ in traceback.walk_stack(frame):
        kind = code_kind(outer.f_globals.get("__name__") or "", outer.f_code.co_filename)
        # What measures may call a library's function itself. Then no library frame further out belongs to that call.
        measured = measured or (bool(library) and kind == "harness")
        if kind in _PASSED_OVER:
            continue
        if caller is None:
            if not called and (kind == "library" or wrapper_of(outer) is not None):
                library += [] if measured else [outer]
                continue
            called = True
            # For a user's helper that hides from tracebacks, a message names the line that calls it.
            if "__tracebackhide__" in outer.f_code.co_varnames:
                continue
            caller = outer
        if kind == "user":
            return library, caller, outer
    return library, caller, caller


def _line_of(frame: FrameType | None) -> str:
    """The `file:line` that a frame runs: "train.py:12", or "flax/nnx/nn/attention.py:660" of an installed package."""
    if frame is None:
        return "a thread that runs no code but JAX's"
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _maker(library: list[FrameType], function: Any) -> str:
    """The library whose code gave JAX a function of the library's own."""
    code = getattr(function, "__code__", None)
    package = str(getattr(function, "__module__", None) or "").partition(".")[0]
    if code is None or package in ("jax", "jaxlib") or code_kind(package, code.co_filename) != "library":
        return ""
    callers = ((frame.f_globals.get("__name__") or "").partition(".")[0] for frame in library)
    return package if package == next((each for each in callers if each not in ("jax", "jaxlib")), "") else ""


def _jitted_call(library: list[FrameType], compiling: jax_stack.CompilingFunction | None) -> CallSite | None:
    """The call of a jitted function, if the user's frame made one."""
    # Equinox binds a method that was jitted in its class first, with a frame of its own.
    outer = [frame for frame in reversed(library) if not libraries.MODULES[0].runs(frame)]
    if not outer:
        return None
    _, varargs, keywords = inspect.getargs(outer[0].f_code)
    held = local_variables(outer[0])
    args, kwargs = tuple(held.get(varargs or "", ())), dict(held.get(keywords or "", {}))
    if (wrapper := wrapper_of(outer[0])) is not None:
        if is_filter_jit(wrapper):
            return _filter_jit_call(wrapper, args, kwargs)
        arguments = compiling.statics if compiling and frameworks.jitted_in(wrapper) is not None else None
        return CallSite("", args, kwargs, function=wrapper, statics=_statics(arguments, args))
    # jax.jit: a frame that shortens tracebacks, and in it the function that is called where the cache misses.
    function = next(frame for frame in outer if not jax_stack.FILTER.runs(frame))
    misses = jax_stack.PMAP.runs(function) or jax_stack.jitted_function(function) is not None
    if compiling is None or not _passes_on(outer[0]) or not (misses or compiling.ahead_of_time):
        return None
    if compiling.ahead_of_time and not _passes_on(function):  # called with the user's function before its arguments
        args = args[1:]
    return CallSite("", args, kwargs, function=compiling.function, statics=_statics(compiling.statics, args))


def _filter_jit_call(wrapper: Any, args: tuple, kwargs: dict[str, Any]) -> CallSite:
    args, kwargs = bound_by_filter_jit(wrapper, args, kwargs)
    return CallSite("", args, kwargs, function=wrapper.__wrapped__, compared=True, statics=Statics(all=True))


def _through(library: list[FrameType]) -> CallSite:
    """The call of the library's function that the user called."""
    if not library:
        return CallSite()
    outer = library[-1]
    function = next(frame for frame in reversed(library) if not jax_stack.FILTER.runs(frame))
    names, varargs, keywords = inspect.getargs(outer.f_code)
    held = local_variables(outer)
    # Of JAX's own objects only arrays count.
    named = {
        name: held[name] for name in names if name in held and (name != "self" or isinstance(held[name], jax.Array))
    }
    named |= {"args": held.get(varargs, ())} if varargs else {}
    named |= {"kwargs": held.get(keywords, {})} if keywords else {}
    if "primals" in (differentiated := local_variables(function)) and API.runs(function):
        named = {"args": differentiated["primals"]}  # of jax.jvp, jax.vjp and jax.linearize
    # What jax.grad and its like are called with is traced.
    statics = Statics() if API.runs(function) else None
    through = "__iter__" if jax_stack.iterates_over_array(function) else function.f_code.co_name
    if any(each.runs(function) for each in libraries.TRANSFORMING):  # `grad.<locals>.grad_f`, to users `grad`
        through = function.f_code.co_qualname.partition(".")[0].lstrip("_")
    return CallSite(named=named, through=through, statics=statics)


def _passes_on(frame: FrameType) -> bool:
    """Whether the frame's function names no argument and passes on its `*args, **kwargs`."""
    return not frame.f_code.co_argcount and bool(frame.f_code.co_flags & inspect.CO_VARARGS)


def _statics(static: jax_stack.StaticArguments | None, args: tuple) -> Statics | None:
    if static is None:
        return None
    argnums, argnames = static
    return Statics(argnums=tuple(n + len(args) if n < 0 else n for n in argnums), argnames=argnames)


def _place(code: CodeType, line: int) -> str:
    return f"{from_here(code.co_filename)}:{line}"
