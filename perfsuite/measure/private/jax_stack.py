"""JAX's private names, read from its stack: no public API says which function compiles, or that a call is slow.

Two are not read from the stack: `stages.Traced.lower`, in which every wrapper's `.lower` ends and which alone can lower
for a platform that is not present; and `Lowering._compiler_options_kvs`. When JAX moves a name, messages say less, and
`tests/private/test_jax_stack.py` fails and names it. When JAX moves one of the modules that are imported here,
perfsuite cannot be imported.
"""

import contextlib
import dataclasses
import itertools
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeAlias

import jax
from jax._src import config
from jax._src.interpreters import partial_eval

StaticArguments: TypeAlias = tuple[tuple[int, ...], tuple[str, ...]]
"""The positions and the names that `jax.jit` was told are static."""

_AHEAD_OF_TIME = ("jit_lower", "jit_trace", "jit_eval_shape")

_WAITING = ("_value", "block_until_ready", "device_get", "effects_barrier")
"""Functions that wait for the device: float(x) and jax.device_get(x) end in `_value`."""

_MISSES = {
    ("jax._src.pjit", "cache_miss"),
    ("jax._src.pjit", "call_impl_cache_miss"),
    ("jax._src.stages", "call"),  # of a function that was compiled ahead of time
}
TRACING = {
    (partial_eval.__name__, "trace_to_jaxpr"),
    (partial_eval.__name__, "trace_to_jaxpr_nocache"),  # from jax 0.11 on
}
"""The function that runs a Python function to make a program of it."""

_BINDING = ("_pjit_call_impl", "_pjit_call_impl_python")
"""Functions of `jax._src.pjit` that run a program and know its `name` and its `jaxpr`."""

_ITERATING = ("_iter", "_chunk_iter")
"""Generators of `jax._src.array`, and functions that return one: `for row in array` runs them."""

_JAX = os.path.join(os.path.dirname(jax.__file__), "")

_JITTED = type(jax.jit(lambda: None))
"""What `jax.jit` returns."""

_PLACING = ("jax._src.interpreters.pxla", "cc_shard_arg")


@dataclasses.dataclass(frozen=True)
class CompilingFunction:
    """The function that a stack is compiling, its static arguments and the other options of `jax.jit`, by name.

    `ahead_of_time` is true for `.lower`, `.trace` and `.eval_shape`, whose own first argument is the jitted function.
    """

    function: Any
    statics: StaticArguments
    ahead_of_time: bool
    options: dict[str, Any]


def compiling_function(frames: Iterable[FrameType]) -> CompilingFunction | None:
    """The function being compiled, from the innermost frame that knows it; `None` where no frame does."""
    for frame in frames:
        if not frame.f_globals.get("__name__", "").startswith("jax."):
            continue
        name = frame.f_code.co_name
        if name == "cache_miss" and "fun" in (held := frame.f_locals):
            info = held.get("jit_info")
            return CompilingFunction(held["fun"], _of_info(info), False, _options_of(info))
        if name in _AHEAD_OF_TIME and "jit_func" in (held := frame.f_locals):
            jitted = held["jit_func"]
            statics = static_arguments(jitted) or ((), ())
            return CompilingFunction(jitted.__wrapped__, statics, True, jit_options(jitted))
    return None


def static_arguments(jitted: Any) -> StaticArguments | None:
    """The static arguments of what `jax.jit` or `nnx.jit` returned; `None` if unknown."""
    info = _info_of(jitted)
    return None if info is None else _of_info(info)


def jit_options(jitted: Any) -> dict[str, Any]:
    """The options that `jax.jit` or `nnx.jit` was given beside the static arguments; empty if unknown."""
    return _options_of(_info_of(jitted))


def _info_of(jitted: Any) -> Any:
    """What JAX knows of a jitted function, asked of what JAX or NNX made.

    `functools.wraps` copies it to a user's function, which may take other arguments.
    """
    made = getattr(jitted, "__func__", jitted)
    made = made.jitted_fn if type(made).__module__.startswith("flax.") and hasattr(made, "jitted_fn") else made
    # jax.vmap(step) and the like pass their arguments on as they are.
    by_jax = isinstance(made, _JITTED) or _is_function_of_jax(made)
    return getattr(made, "_jit_info", None) if by_jax else None


def _is_function_of_jax(function: Any) -> bool:
    return isinstance(function, FunctionType) and function.__code__.co_filename.startswith(_JAX)


def _options_of(info: Any) -> dict[str, Any]:
    if info is None:
        return {}
    # JAX adds the names of donated positions.
    donated = "donate_argnums" if info.donate_argnums else "donate_argnames"
    plain = {name: getattr(info, name) for name in (donated, "device", "backend", "keep_unused", "inline")}
    sides = {
        f"{side}_{what}": getattr(info, f"{side}_{what}_leaves")
        for side in ("in", "out")
        for what in ("shardings", "layouts")
    }
    return plain | sides | {"compiler_options": dict(info.compiler_options_kvs)}


def without_statics(
    args: tuple, kwargs: dict[str, Any], statics: StaticArguments | None
) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a call, with None in place of the static ones, so that the others keep their positions."""
    numbers, names = statics or ((), ())
    left_out = {number % len(args) for number in numbers if -len(args) <= number < len(args)}
    dynamic = tuple(None if place in left_out else arg for place, arg in enumerate(args))
    return dynamic, {name: value for name, value in kwargs.items() if name not in names}


def _of_info(info: Any) -> StaticArguments:
    return tuple(getattr(info, "static_argnums", ())), tuple(getattr(info, "static_argnames", ()))


def behind_filter(frame: FrameType) -> str:
    """The function that JAX's frame for shorter tracebacks is about to call; empty for other frames."""
    if frame.f_globals.get("__name__") != "jax._src.traceback_util":
        return ""
    function = frame.f_locals.get("fun")
    code, module = getattr(function, "__code__", None), getattr(function, "__globals__", {}).get("__name__", "?")
    return "" if code is None else f"{module}:{code.co_qualname}"


def waits_for_device(code: CodeType) -> bool:
    """Whether a function of JAX's, with this code, waits for the device."""
    return code.co_name in _WAITING


def belongs_to_jax(function: Any) -> bool:
    """Whether JAX itself defined the function: an operation that runs by itself, outside any jitted function."""
    module = getattr(function, "__module__", None) or ""
    return (module == "jax" or module.startswith("jax.")) and module != "jax._src.pmap"


@dataclasses.dataclass(frozen=True)
class BoundProgram:
    """The program that JAX binds under a transformation. `of_jax` says that JAX defined the function, or that nobody
    gave it a name.
    """

    name: str
    of_jax: bool


def bound_program(frame: FrameType) -> BoundProgram | None:
    """The program that a frame of JAX's binds; `None` for other frames."""
    if frame.f_code.co_name not in _BINDING or frame.f_globals.get("__name__") != "jax._src.pjit":
        return None
    held = frame.f_locals
    filename = held["jaxpr"].jaxpr.debug_info.func_filename
    return BoundProgram(held["name"], filename is None or filename.startswith(_JAX))


def iterates_over_array(frame: FrameType) -> bool:
    """Whether a frame of JAX's is that of `for row in array`."""
    name = frame.f_code.co_qualname
    outermost = name.partition(".")[0]
    return "__iter__" in name or (frame.f_globals.get("__name__") == "jax._src.array" and outermost in _ITERATING)


def misses_fast_path(frame: FrameType) -> bool:
    """Whether JAX's C++ calls this frame where it has no fast path for a call."""
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _MISSES


def places_argument(frame: FrameType) -> bool:
    """Whether JAX's C++ calls this frame for an argument that is not where the program needs it."""
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) == _PLACING


def missed_function(frame: FrameType) -> Any:
    """The function whose call missed, of a frame that `misses_fast_path`; its name where the frame has only that."""
    held = frame.f_locals
    if (function := held.get("fun")) is not None:  # a user's callable may be false, or have no truth value
        return function
    compiled = getattr(getattr(held.get("params"), "executable", None), "unsafe_call", None)
    return held.get("name") or getattr(compiled, "name", None) or "?"


def why_missed(frame: FrameType, returned: Any) -> str:
    """Why JAX has no fast path, from a frame that `misses_fast_path` and what it returns; "" where JAX has one."""
    held = frame.f_locals
    if any(isinstance(arg, jax.core.Tracer) for arg in held.get("args_flat") or held.get("args") or ()):
        return "called with tracers: a transformation such as jax.grad or jax.vmap is around it, outside of any jit"
    if effects := getattr(held.get("jaxpr"), "effects", ()):
        kinds = ", ".join(sorted({type(effect).__name__ for effect in effects}))
        return f"it has effects ({kinds}): jax.debug.print, jax.debug.callback, io_callback or a mutable reference"
    if "params" in held:
        return "it was compiled ahead of time and has effects or callbacks"
    if isinstance(returned, tuple) and len(returned) == 3 and returned[1] is None:
        return "JAX keeps no fast path for it"
    return ""


@dataclasses.dataclass
class Lowering:
    """What `lowering` saw: the trace that was lowered, and its leaves in the order of `Lowered.args_info`.

    `leaves` is None where they could not be told from static arguments.
    """

    traced: jax.stages.Traced | None = None
    leaves: list[Any] | None = None


@contextlib.contextmanager
def lowering(platform: str | None) -> Iterator[Lowering]:
    """Lower for `platform` whatever this thread lowers inside; None is the platform of the arguments.

    `jax.jit(f).trace(...).lower(lowering_platforms=...)` is public, but `filter_jit`, `nnx.jit` and a project's own
    wrappers have `.lower` only. All of them end in `Traced.lower`, which this context replaces.
    """
    seen, thread, original = Lowering(), threading.get_ident(), jax.stages.Traced.lower

    def lower(self: jax.stages.Traced, **options: Any) -> jax.stages.Lowered:
        if threading.get_ident() == thread:
            seen.traced, seen.leaves = self, _leaves(sys._getframe(1).f_locals)
            if platform is not None:
                options["lowering_platforms"] = (platform,)
        return original(self, **options)

    jax.stages.Traced.lower = lower  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        jax.stages.Traced.lower = original  # type: ignore[method-assign]


def context_values() -> dict[str, Any]:
    """What JAX's cache of traces depends on beside the options of `jax.config`, such as `jax.make_user_context`.

    Empty in a jax that does not name them (0.10.0).
    """
    try:
        named = list(zip(config.trace_context_names(), config.trace_context(), strict=True))
    except (AttributeError, NotImplementedError, ValueError):
        return {}
    numbers = itertools.count()
    found = ((f"user context {next(numbers)}" if name == "user_context" else name, value) for name, value in named)
    known = ("jax_", "mesh", "abstract_mesh", "axis_env")
    return {name.removesuffix("_context_manager"): value for name, value in found if not name.startswith(known)}


def compiler_options(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """The `compiler_options` that `jax.jit` was given. The lowered text does not contain them."""
    return dict(getattr(lowered._lowering, "_compiler_options_kvs", None) or ())


def _leaves(held: dict[str, Any]) -> list[Any] | None:
    """The leaves of the arguments that the caller of `Traced.lower` was given, without the static ones."""
    # Not `held.keys()`: for a frame of Python 3.13 it is a list.
    if not {"jit_func", "args", "kwargs"} <= set(held) or (statics := static_arguments(held["jit_func"])) is None:
        return None
    return jax.tree.leaves(without_statics(held["args"], held["kwargs"], statics))
