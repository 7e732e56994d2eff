"""What JAX's stack says of a compile: no public API says which function compiles, with what, and from where.

When JAX moves one of these names, messages say less: nothing here raises for that.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterable
from types import FrameType, FunctionType
from typing import Any, TypeAlias

import jax
import numpy as np

from perfsuite.measure.private import flax_objects
from perfsuite.measure.private.names import Attribute, Frame, Functions, Moved, Name
from perfsuite.measure.private.probing import fresh_function, hearing, undisturbed

StaticArguments: TypeAlias = tuple[tuple[int, ...], tuple[str, ...]]
"""The positions and the names that `jax.jit` was told are static."""

_MISS = Frame("jax._src.pjit", "cache_miss", ("fun", "jit_info"))
_AHEAD_OF_TIME = tuple(
    Frame("jax._src.pjit", name, ("jit_func",)) for name in ("jit_lower", "jit_trace", "jit_eval_shape")
)
BINDING = tuple(
    Frame("jax._src.pjit", name, ("name", "jaxpr")) for name in ("_pjit_call_impl", "_pjit_call_impl_python")
)
"""They run a program under a transformation."""
_FILTER = Frame("jax._src.traceback_util", "reraise_with_filtered_traceback", ("fun",))

_INFO = Attribute("jax._src.pjit", "_jit_info")
"""What `jax.jit` was told, as a jitted function keeps it."""
_STATIC = Attribute("jax._src.pjit", "static_argnums"), Attribute("jax._src.pjit", "static_argnames")
_DONATED = Attribute("jax._src.pjit", "donate_argnums"), Attribute("jax._src.pjit", "donate_argnames")
_PLAIN = tuple(Attribute("jax._src.pjit", name) for name in ("device", "backend", "keep_unused", "inline"))
_SIDES = tuple(
    Attribute("jax._src.pjit", f"{side}_{what}_leaves") for side in ("in", "out") for what in ("shardings", "layouts")
)
_COMPILER_OPTIONS = Attribute("jax._src.pjit", "compiler_options_kvs")

_WAITING = (
    Functions("jax._src.array", "ArrayImpl._value"),  # float(x) and jax.device_get(x) end here
    Functions("jax._src.array", "ArrayImpl.block_until_ready"),
    Functions("jax._src.api", "block_until_ready"),
    Functions("jax._src.api", "device_get"),
    Functions("jax._src.api", "effects_barrier"),
)
_ITERATING = (
    Functions("jax._src.array", "ArrayImpl.__iter__"),
    Functions("jax._src.numpy.array_methods", "_chunk_iter", until="0.12.0"),
    Functions("jax._src.array", "_chunk_iter", since="0.12.0"),
    Functions("jax._src.array", "_iter", since="0.12.0"),
)
"""What `for row in array` runs."""

PMAP = Functions("jax._src.pmap")
"""`jax.pmap` gives the user's function a module of JAX's."""

_CONTEXT_NAMES = Name("jax._src.config", "trace_context_names", since="0.10.2")
_CONTEXT = Name("jax._src.config", "trace_context")

_JAX = os.path.join(os.path.dirname(jax.__file__), "")

_JITTED = type(jax.jit(lambda: None))
"""What `jax.jit` returns."""


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
        if _MISS.runs(frame) and (function := _MISS.local(frame, "fun")) is not None:
            info = _MISS.local(frame, "jit_info")
            return CompilingFunction(function, _of_info(info) or ((), ()), False, _options_of(info))
        ahead = next((each for each in _AHEAD_OF_TIME if each.runs(frame)), None)
        if ahead is not None and (jitted := ahead.local(frame, "jit_func")) is not None:
            statics = static_arguments(jitted) or ((), ())
            return CompilingFunction(jitted.__wrapped__, statics, True, jit_options(jitted))
    return None


def static_arguments(jitted: Any) -> StaticArguments | None:
    """The static arguments of what `jax.jit` or `nnx.jit` returned; `None` if unknown."""
    return _of_info(_info_of(jitted))


def jit_options(jitted: Any) -> dict[str, Any]:
    """The options that `jax.jit` or `nnx.jit` was given beside the static arguments; empty if unknown."""
    return _options_of(_info_of(jitted))


def _info_of(jitted: Any) -> Any:
    """What JAX knows of a jitted function, asked of what JAX or NNX made.

    `functools.wraps` copies it to a user's function, which may take other arguments.
    """
    made = getattr(jitted, "__func__", jitted)
    if flax_objects.is_nnx(made):
        made = flax_objects.jitted_in(made) or made
    # jax.vmap(step) and the like pass their arguments on as they are.
    by_jax = isinstance(made, _JITTED) or _is_function_of_jax(made)
    return _INFO.of(made) if by_jax else None


def _is_function_of_jax(function: Any) -> bool:
    return isinstance(function, FunctionType) and function.__code__.co_filename.startswith(_JAX)


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


def _of_info(info: Any) -> StaticArguments | None:
    numbers, names = (each.of(info) for each in _STATIC)
    return None if numbers is None or names is None else (tuple(numbers), tuple(names))


def behind_filter(frame: FrameType) -> str:
    """The function that JAX's frame for shorter tracebacks is about to call; empty for other frames."""
    if not _FILTER.runs(frame):
        return ""
    function = _FILTER.local(frame, "fun")
    code, module = getattr(function, "__code__", None), getattr(function, "__globals__", {}).get("__name__", "?")
    return "" if code is None else f"{module}:{code.co_qualname}"


def waits_for_device(frame: FrameType) -> bool:
    """Whether a frame of JAX's waits for the device."""
    return any(each.has(function_of(frame)) for each in _WAITING)


def function_of(frame: FrameType) -> str:
    """The interpreter's name for what a frame runs: "module:qualified.name"."""
    return f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}"


def belongs_to_jax(function: Any) -> bool:
    """Whether JAX itself defined the function: an operation that runs by itself, outside any jitted function."""
    module = getattr(function, "__module__", None) or ""
    return (module == "jax" or module.startswith("jax.")) and not PMAP.has(f"{module}:")


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


def iterates_over_array(frame: FrameType) -> bool:
    """Whether a frame of JAX's is that of `for row in array`."""
    return "__iter__" in frame.f_code.co_qualname or any(each.has(function_of(frame)) for each in _ITERATING)


def context_values() -> dict[str, Any]:
    """What JAX's cache of traces depends on beside the options of `jax.config`, such as `jax.make_user_context`.

    Empty in a jax that does not name them (0.10.0).
    """
    try:
        named = list(zip(_CONTEXT_NAMES.get()(), _CONTEXT.get()(), strict=True))
    except (Moved, NotImplementedError, ValueError):
        return {}
    numbers = itertools.count()
    found = ((f"user context {next(numbers)}" if name == "user_context" else name, value) for name, value in named)
    known = ("jax_", "mesh", "abstract_mesh", "axis_env")
    return {name.removesuffix("_context_manager"): value for name, value in found if not name.startswith(known)}


def probe() -> None:
    """Compile a function. Raises `Moved` unless the stack has it at each stage, with what `jax.jit` was told."""
    function = fresh_function()
    jitted = jax.jit(function, static_argnums=1, keep_unused=True)
    seen: list[CompilingFunction | None] = []
    with undisturbed(), hearing(lambda event, facts, frames: seen.append(compiling_function(frames))):
        jitted(np.float32(1), 2)
    found = [each for each in seen if each is not None and each.function is function]
    if len(found) < len(seen) or not seen:
        raise Moved("the stack does not say which function JAX compiles")
    options = jit_options(jitted)
    if any(each.statics != ((1,), ("n",)) for each in found) or not options.get("keep_unused"):
        raise Moved("a jitted function does not say what jax.jit was told")
