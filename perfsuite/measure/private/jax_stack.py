"""What JAX's frames and jitted functions tell: which function compiles, with what, from where, and by which path.

No public API tells any of it. Where JAX moves one of these names, messages say less: only the probes raise for that.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import os
import types
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, TypeAlias

import jax
import numpy as np

from perfsuite.measure.private.capabilities import CHANCE_CALLS, SLOW_PATH, STACK
from perfsuite.measure.private.compile_events import fresh_function, hearing, undisturbed
from perfsuite.measure.private.frameworks import is_bound_method, is_filter_jit, is_nnx, is_partial, jitted_in
from perfsuite.measure.private.names import Attribute, Frame, Functions, Moved, Name

StaticArguments: TypeAlias = tuple[tuple[int, ...], tuple[str, ...]]
"""The positions and the names that `jax.jit` was told are static."""

Bound: TypeAlias = tuple[Any, tuple, dict[str, Any]]
"""A function with the arguments that are bound to it."""

Profile: TypeAlias = Callable[[FrameType, str, Any], None]
"""What `sys.setprofile` takes."""

_JAX = os.path.join(os.path.dirname(jax.__file__), "")
_JITTED = type(jax.jit(lambda: None))
"""What `jax.jit` returns."""
_MOST_LAYERS = 100
"""A partial that holds itself must not hang."""

_COMPILING = STACK.needs(Frame("jax._src.pjit", "cache_miss", ("fun", "jit_info")))
_AHEAD_OF_TIME = STACK.needs(
    tuple(Frame("jax._src.pjit", name, ("jit_func",)) for name in ("jit_lower", "jit_trace", "jit_eval_shape"))
)
BINDING = STACK.needs(
    tuple(Frame("jax._src.pjit", name, ("name", "jaxpr")) for name in ("_pjit_call_impl", "_pjit_call_impl_python"))
)
"""They run a program under a transformation."""
FILTER = STACK.needs(Frame("jax._src.traceback_util", "reraise_with_filtered_traceback", ("fun",)))
"""It shortens tracebacks: it names no argument, and calls the function behind it."""

_INFO = STACK.needs(Attribute("jax._src.pjit", "_jit_info"))
"""What `jax.jit` was told, as a jitted function keeps it."""
_STATIC = STACK.needs(tuple(Attribute("jax._src.pjit", f"static_{what}") for what in ("argnums", "argnames")))
_DONATED = STACK.needs(tuple(Attribute("jax._src.pjit", f"donate_{what}") for what in ("argnums", "argnames")))
_PLAIN = STACK.needs(tuple(Attribute("jax._src.pjit", name) for name in ("device", "backend", "keep_unused", "inline")))
_SIDES = STACK.needs(
    tuple(
        Attribute("jax._src.pjit", f"{side}_{what}_leaves")
        for side in ("in", "out")
        for what in ("shardings", "layouts")
    )
)
_COMPILER_OPTIONS = STACK.needs(Attribute("jax._src.pjit", "compiler_options_kvs"))

_ITERATING = STACK.needs(
    (
        Functions("jax._src.array", "ArrayImpl.__iter__"),
        Functions("jax._src.numpy.array_methods", "_chunk_iter", until="0.12.0"),
        Functions("jax._src.array", "_chunk_iter", since="0.12.0"),
        Functions("jax._src.array", "_iter", since="0.12.0"),
    )
)
"""What `for row in array` runs."""
PMAP = STACK.needs(Functions("jax._src.pmap"))
_OF_USERS = PMAP, STACK.needs(Functions("jax._src.checkify"))
"""`jax.pmap` and `checkify` give the user's function a module of JAX's."""
_PMAPPED = STACK.needs(Frame("jax._src.pmap", "wrapped", ("infer_params",)))
_INFERRING = STACK.needs(Frame("jax._src.pmap", "infer_params", ("wrapped_fun", "static_broadcasted_tuple")))
_WRAPPED = STACK.needs(Attribute("jax._src.linear_util", "f"))
"""What `jax.pmap` returned, its closure that has the user's function, and that function."""
_TRACING = {
    "jax.checkpoint": STACK.needs(Frame("jax._src.ad_checkpoint", "_trace_to_jaxpr", ("fun",))),
    "checkify": STACK.needs(Frame("jax._src.checkify", "checked_fun", ("f",))),
}
"""They trace a function outside jit too."""
SHARD_MAP = STACK.needs(Functions("jax._src.shard_map"))
_LOWERING = STACK.needs(Frame("jax._src.stages", "lower", ("lowering_platforms",)))
_CONTEXT_NAMES = STACK.needs(Name("jax._src.config", "trace_context_names", since="0.10.2"))
_CONTEXT = STACK.needs(Name("jax._src.config", "trace_context"))

MISS = SLOW_PATH.needs(Frame("jax._src.pjit", "cache_miss", ("fun", "args_flat", "jaxpr")))
_INNER_MISS = SLOW_PATH.needs(Frame("jax._src.pjit", "call_impl_cache_miss", ("name", "jaxpr", "args")))
_COMPILED_CALL = SLOW_PATH.needs(Frame("jax._src.stages", "call", ("params", "args")))
"""Of a function that was compiled ahead of time."""
PLACING = SLOW_PATH.needs(Frame("jax._src.interpreters.pxla", "cc_shard_arg", ("x",)))
"""JAX's C++ calls it for an argument that is not where the program needs it."""
_EXECUTABLE = SLOW_PATH.needs(Attribute("jax._src.stages", "executable"))
UNSAFE_CALL = SLOW_PATH.needs(Attribute("jax._src.interpreters.pxla", "unsafe_call"))
_MISSES = (MISS, _INNER_MISS, _COMPILED_CALL)

_CALL_CACHES = CHANCE_CALLS.needs(
    (
        Name("jax._src.lib", "_jax.PjitFunctionCache.clear_all"),  # of all objects that were jitted
        Name("jax._src.pjit", "_cpp_pjit_cache_fun_only.clear"),  # of those that will be, and calls under jax.grad
        Name("jax._src.pjit", "_cpp_pjit_cache_explicit_attributes.clear"),
    )
)

_BY_CHANCE = CHANCE_CALLS.needs(
    (
        Frame("jax._src.callback", "_wrapped_callback"),
        Frame("jax._src.buffer_callback", "wrapped_callback"),
        Frame("jax._src.core", "_create"),
        Frame("jax._src.mesh", "_create"),
        Frame("jax._src.partition_spec", "_create", since="0.10.1"),
    )
)
"""The outermost frame of a callback, which JAX's C++ calls; and what makes a type of arrays, a mesh or such,
where no equal one lives. A copy to several devices keeps its array, and so its type, until it ends (jax 0.10.2)."""


# What compiles.


@dataclasses.dataclass(frozen=True)
class CompilingFunction:
    """The function that a stack is compiling, its static arguments and the other options of `jax.jit`, by name.

    `ahead_of_time` is true for `.lower`, `.trace` and `.eval_shape`. `maker` is what traces it, where no jit does.
    """

    function: Any
    statics: StaticArguments
    ahead_of_time: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    maker: str = ""


def compiling_function(frames: Iterable[FrameType]) -> CompilingFunction | None:
    """The function being compiled, from the innermost frame that knows it; `None` where no frame does."""
    outwards = iter(frames)
    for frame in outwards:
        if _COMPILING.runs(frame) and (function := _COMPILING.local(frame, "fun")) is not None:
            info = _COMPILING.local(frame, "jit_info")
            compiling = CompilingFunction(function, _statics_of(info) or ((), ()), options=_options_of(info))
            return _pmapped(outwards) or compiling
        ahead = next((each for each in _AHEAD_OF_TIME if each.runs(frame)), None)
        if ahead is not None and (jitted := ahead.local(frame, "jit_func")) is not None:
            statics = static_arguments(jitted) or ((), ())
            return CompilingFunction(jitted.__wrapped__, statics, True, jit_options(jitted))
        for maker, each in _TRACING.items():
            if each.runs(frame) and (function := each.local(frame, each.locals[0])) is not None:
                return CompilingFunction(function, ((), ()), maker=maker)
    return None


def _pmapped(outwards: Iterator[FrameType]) -> CompilingFunction | None:
    """The function that the user gave to `jax.pmap`, where that made the one that compiles."""
    frame = next((each for each in outwards if not FILTER.runs(each)), None)
    if frame is None or not _PMAPPED.runs(frame):
        return None
    held = inspect.getclosurevars(_PMAPPED.local(frame, "infer_params")).nonlocals
    wrapped, static = (held.get(name) for name in _INFERRING.locals)
    return CompilingFunction(_WRAPPED.of(wrapped), (tuple(static or ()), ()))


def lowering_platforms(frames: Iterable[FrameType]) -> dict[str, Any]:
    """The platforms that code asks to lower a function for, as an option of the call."""
    platforms = (_LOWERING.local(frame, "lowering_platforms") for frame in frames if _LOWERING.runs(frame))
    return next(({"lowering_platforms": tuple(each)} for each in platforms if each), {})


def static_arguments(jitted: Any) -> StaticArguments | None:
    """The static arguments of what `jax.jit` or `nnx.jit` returned; `None` if unknown."""
    return _statics_of(_info_of(jitted))


def jit_options(jitted: Any) -> dict[str, Any]:
    """The options that `jax.jit` or `nnx.jit` was given beside the static arguments; empty if unknown."""
    return _options_of(_info_of(jitted))


def _info_of(jitted: Any) -> Any:
    """What JAX knows of a jitted function, asked of what JAX or NNX made.

    `functools.wraps` copies it to a user's function, which may take other arguments.
    """
    jitted = getattr(jitted, "__func__", jitted)
    if is_nnx(jitted):
        jitted = jitted_in(jitted) or jitted
    # jax.vmap(step) and the like pass their arguments on as they are.
    transformed = isinstance(jitted, types.FunctionType) and jitted.__code__.co_filename.startswith(_JAX)
    return _INFO.of(jitted) if transformed or isinstance(jitted, _JITTED) else None


def _statics_of(info: Any) -> StaticArguments | None:
    numbers, names = (each.of(info) for each in _STATIC)
    return None if numbers is None or names is None else (tuple(numbers), tuple(names))


def _options_of(info: Any) -> dict[str, Any]:
    if info is None:
        return {}
    argnums, argnames = _DONATED  # JAX adds the names of donated positions
    donated = argnums if argnums.of(info) else argnames
    options = {each.name.removesuffix("_leaves"): each.of(info) for each in (donated, *_PLAIN, *_SIDES)}
    return options | {"compiler_options": dict(_COMPILER_OPTIONS.of(info) or ())}


def without_statics(
    args: tuple, kwargs: dict[str, Any], statics: StaticArguments | None
) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a call, with None in place of the static ones, so that the others keep their positions."""
    numbers, names = statics or ((), ())
    left_out = {number % len(args) for number in numbers if -len(args) <= number < len(args)}
    dynamic = tuple(None if place in left_out else arg for place, arg in enumerate(args))
    return dynamic, {name: value for name, value in kwargs.items() if name not in names}


def belongs_to_jax(function: Any) -> bool:
    """Whether JAX itself defined the function: an operation that runs by itself, outside any jitted function."""
    module = getattr(function, "__module__", None) or ""
    return (module == "jax" or module.startswith("jax.")) and not any(each.has(f"{module}:") for each in _OF_USERS)


@dataclasses.dataclass(frozen=True)
class BoundProgram:
    """The program that JAX binds under a transformation. `of_jax` says that JAX defined the function, or that nobody
    gave it a name.
    """

    name: str
    of_jax: bool


def bound_program(frame: FrameType) -> BoundProgram | None:
    """The program that a frame of JAX's binds; `None` for other frames."""
    binding = next((each for each in BINDING if each.runs(frame)), None)
    if binding is None or (jaxpr := binding.local(frame, "jaxpr")) is None:
        return None
    filename = jaxpr.jaxpr.debug_info.func_filename
    return BoundProgram(binding.local(frame, "name", "?"), filename is None or filename.startswith(_JAX))


def behind_filter(frame: FrameType) -> str:
    """The function that JAX's frame for shorter tracebacks is about to call; empty for other frames."""
    function = FILTER.local(frame, "fun") if FILTER.runs(frame) else None
    code, module = getattr(function, "__code__", None), getattr(function, "__globals__", {}).get("__name__", "?")
    return "" if code is None else f"{module}:{code.co_qualname}"


def iterates_over_array(frame: FrameType) -> bool:
    """Whether a frame of JAX's is that of `for row in array`."""
    return "__iter__" in frame.f_code.co_qualname or any(each.runs(frame) for each in _ITERATING)


def context_values() -> dict[str, Any]:
    """What JAX's cache of traces depends on beside the options of `jax.config`, such as `jax.make_user_context`.

    Empty in a jax that does not name them (0.10.0).
    """
    try:
        named = list(zip(_CONTEXT_NAMES.get()(), _CONTEXT.get()(), strict=True))
    except (Moved, NotImplementedError, ValueError):
        return {}
    numbers = itertools.count()
    values = ((f"user context {next(numbers)}" if name == "user_context" else name, value) for name, value in named)
    listed_by_config = ("jax_", "abstract_mesh", "axis_env")
    return {name.removesuffix("_manager"): value for name, value in values if not name.startswith(listed_by_config)}


# What a callable calls, where it is no function of its own: a partial, a bound method, or an object with `__call__`.
# JAX knows the jitted function alone, with all of its arguments: for it a method's object is the first of them.


def is_jitted(fn: Any) -> bool:
    """Whether `fn` is what `jax.jit`, `filter_jit` or `nnx.jit` returned, so that its arguments are the program's."""
    return is_filter_jit(fn) or static_arguments(fn) is not None


def unbound(fn: Any) -> Bound | None:
    """What calling `fn` calls, with the arguments that this adds in front; None where `fn` adds none.

    Of objects these are only those whose class jits `__call__`.
    """
    if isinstance(fn, types.MethodType) or is_bound_method(fn):
        return fn.__func__, (fn.__self__,), {}
    if isinstance(fn, functools.partial) or is_partial(fn):
        # A partial with a `.lower` of its own is a jitted function to whoever made it.
        return None if hasattr(fn, "lower") else (fn.func, tuple(fn.args), dict(fn.keywords))
    called = type(fn).__call__
    return (called, (fn,), {}) if is_jitted(called) and not hasattr(fn, "lower") else None


def behind_bound(fn: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Bound:
    """The function behind partials, bound methods and objects, with all of its arguments."""
    kwargs = kwargs or {}
    for _ in range(_MOST_LAYERS):
        if (inner := unbound(fn)) is None:
            break
        fn, args, kwargs = inner[0], (*inner[1], *args), {**inner[2], **kwargs}
    return fn, args, kwargs


def calls_the_same(one: Any, other: Any) -> bool:
    """Whether two callables are one: a bound method is made anew each time that somebody asks for it."""
    if one is other:
        return True
    (fn, args, kwargs), (other_fn, other_args, other_kwargs) = behind_bound(one), behind_bound(other)
    return (
        fn is other_fn
        and len(args) == len(other_args)
        and kwargs.keys() == other_kwargs.keys()
        and all(mine is its for mine, its in zip(args, other_args, strict=True))
        and all(kwargs[name] is other_kwargs[name] for name in kwargs)
    )


# JAX's slow path for calls of jitted functions, as a profiler sees it.


def misses_fast_path(frame: FrameType) -> bool:
    """Whether JAX's C++ calls this frame where it has no fast path for a call."""
    return any(each.runs(frame) for each in _MISSES)


def jitted_function(frame: FrameType) -> Any:
    """The function that was jitted, of a frame that runs a call of it; None for other frames."""
    return MISS.local(frame, "fun") if MISS.runs(frame) else None


def missed_function(frame: FrameType) -> Any:
    """The function whose call missed, of a frame that `misses_fast_path`; its name where the frame has only that."""
    if (function := jitted_function(frame)) is not None:  # a user's callable may be false, or have no truth value
        return function
    if _INNER_MISS.runs(frame):
        return _INNER_MISS.local(frame, "name") or "?"
    compiled = UNSAFE_CALL.of(_EXECUTABLE.of(_COMPILED_CALL.local(frame, "params")))
    return getattr(compiled, "name", None) or "?"


def why_missed(frame: FrameType, returned: Any) -> str:
    """Why JAX has no fast path, from a frame that `misses_fast_path` and what it returns; "" where JAX has one."""
    missed = next(each for each in _MISSES if each.runs(frame))
    arguments = missed.local(frame, "args_flat") or missed.local(frame, "args") or ()
    if any(isinstance(arg, jax.core.Tracer) for arg in arguments):
        return "called with tracers: a transformation such as jax.grad or jax.vmap is around it, outside of any jit"
    if effects := getattr(missed.local(frame, "jaxpr"), "effects", ()):
        kinds = ", ".join(sorted({type(effect).__name__ for effect in effects}))
        return f"it has effects ({kinds}): jax.debug.print, jax.debug.callback, io_callback or a mutable reference"
    if missed is _COMPILED_CALL:
        return "it was compiled ahead of time and has effects or callbacks"
    if isinstance(returned, tuple) and len(returned) == 3 and returned[1] is None:
        return "JAX keeps no fast path for it"
    return ""


# JAX's caches of calls.


def forget_calls() -> None:
    """Empty the caches in which JAX's C++ looks for a call first. It drops no program: a call takes the slow path once.

    A call that raises marks its signature there, and every later one takes the slow path: some 140 Python calls instead
    of 1 (jax 0.10.2). And a static argument is compared in Python with the equal one that an earlier test passed. Does
    nothing where JAX has moved a name.
    """
    with contextlib.suppress(Moved, TypeError):
        for clear in _CALL_CACHES:
            clear.get()()


def without_chance(profile: Profile) -> Profile:
    """`profile`, which hears nothing of what JAX does in some runs of the same call and not in others.

    The program of `jax.pure_callback`, `io_callback`, `jax.debug.callback` or `jax.debug.print` calls Python in the
    thread that called the program, where its inputs are ready, and else in a thread of XLA's. A callback outside any
    program, as of `jax.debug.print` outside `jit`, always runs in the thread that asks for it, and counts. What JAX
    makes once, such as the type of an array, it makes again when the last array of that type is gone.
    """
    chance: FrameType | None = None

    def hear(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal chance
        if chance is not None:
            if event == "return" and frame is chance:
                chance = None
        elif event == "call" and any(each.runs(frame) for each in _BY_CHANCE):
            chance = frame
        else:
            profile(frame, event, argument)

    return hear


# Probes.


@STACK.probed_by
def _probe_stack() -> None:
    """Compile a function. Raises `Moved` unless the stack has it at each stage, with what `jax.jit` was told."""
    function = fresh_function()
    jitted = jax.jit(function, static_argnums=1, keep_unused=True)
    compiling: list[CompilingFunction | None] = []
    with undisturbed(), hearing(lambda event, facts, frames: compiling.append(compiling_function(frames))):
        jitted(np.float32(1), 2)
    if not compiling or any(each is None or each.function is not function for each in compiling):
        raise Moved("the stack does not say which function JAX compiles")
    if any(each.statics != ((1,), ("n",)) for each in compiling if each) or not jit_options(jitted).get("keep_unused"):
        raise Moved("a jitted function does not say what jax.jit was told")


@SLOW_PATH.probed_by
def _probe_slow_path() -> None:
    """Compile a function. Raises `Moved` unless its call is seen to miss the fast path, which it has not yet."""
    function = fresh_function()
    functions: list[Any] = []

    def hear(_: str, __: object, frames: list[FrameType]) -> None:
        functions.extend(missed_function(frame) for frame in frames if misses_fast_path(frame))

    with undisturbed(), hearing(hear):
        jax.jit(function)(np.float32(1))
    if not any(each is function for each in functions):
        raise Moved("the call of a function that JAX compiles is not on the stack")
