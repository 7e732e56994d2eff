"""The private names of JAX that perfsuite uses, all of them here.

They are local variables of functions on its stack, because nothing public says which function object is being
compiled and which of its arguments are static, nor that a call takes the slow path; one method, to repair what an error
does to a fast path; and the way from any wrapper's `.lower` to `jax.stages.Traced.lower`, which alone can lower for a
platform that is not here. Where a name has moved, messages say less, and `tests/measure/compat/test_jax_stack.py`
fails and says which.
"""

import contextlib
import dataclasses
import gc
import sys
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

import jax

_AHEAD_OF_TIME = ("jit_lower", "jit_trace", "jit_eval_shape")

_WAITING = ("_value", "block_until_ready", "device_get", "effects_barrier")
"""Functions that wait for the device: `_value` is what float(x) and jax.device_get(x) end in."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The function that a stack is compiling, and which of its arguments `jax.jit` was told are static.

    `ahead_of_time` is true for `.lower`, `.trace` and `.eval_shape`, whose own first argument is the jitted function.
    """

    function: Any
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    ahead_of_time: bool


def compiled_function(frames: Iterable[FrameType]) -> Compiled | None:
    """The function being compiled, from the innermost frame that knows it; `None` where no frame does."""
    for frame in frames:
        if not frame.f_globals.get("__name__", "").startswith("jax."):
            continue
        name = frame.f_code.co_name
        if name == "cache_miss" and "fun" in (held := frame.f_locals):
            return _compiled(held["fun"], held.get("jit_info"), False)
        if name in _AHEAD_OF_TIME and "jit_func" in (held := frame.f_locals):
            return _compiled(held["jit_func"].__wrapped__, getattr(held["jit_func"], "_jit_info", None), True)
    return None


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """The positions and names of the static arguments of what `jax.jit` or `nnx.jit` returned; `None` if unknown."""
    info = getattr(getattr(jitted, "jitted_fn", jitted), "_jit_info", None)
    found = None if info is None else _compiled(None, info, False)
    return None if found is None else (found.static_argnums, found.static_argnames)


def behind_filter(frame: FrameType) -> str:
    """The function that a frame of JAX's which only shortens tracebacks is about to call; empty for other frames."""
    if frame.f_globals.get("__name__") != "jax._src.traceback_util":
        return ""
    function = frame.f_locals.get("fun")
    code, module = getattr(function, "__code__", None), getattr(function, "__globals__", {}).get("__name__", "?")
    return "" if code is None else f"{module}:{code.co_qualname}"


def waits_for_device(code: CodeType) -> bool:
    """Whether a function of JAX's, of this code, waits for the device."""
    return code.co_name in _WAITING


def belongs_to_jax(function: Any) -> bool:
    """Whether JAX itself defined the function: an operation that runs by itself, outside any jitted function."""
    module = getattr(function, "__module__", None) or ""
    return (module == "jax" or module.startswith("jax.")) and module != "jax._src.pmap"


def restore_fast_path(functions: Iterable[Any]) -> None:
    """Let calls of these functions use JAX's fast path again, after errors that were raised while they compiled.

    A `jax.jit` call that ends with an error marks its signature, and from then on every such call takes the slow path,
    with some 140 Python calls instead of 1 (jax 0.10.2). Nothing that was compiled is dropped: the next call of each
    signature takes the slow path once.
    """
    functions = [function for function in functions if function is not None]
    if not functions:
        return
    # Nothing leads from a function to its jitted objects. Looking through all objects takes 25 ms, after an error only.
    for holder in gc.get_referrers(*functions):
        clear = getattr(holder, "_clear_cache", None) if type(holder).__name__ == "PjitFunction" else None
        if clear is not None:
            clear()


_MISSES = {
    ("jax._src.pjit", "cache_miss"),
    ("jax._src.pjit", "call_impl_cache_miss"),
    ("jax._src.stages", "call"),  # of what was compiled ahead of time
}
_PLACING = ("jax._src.interpreters.pxla", "cc_shard_arg")


def misses_fast_path(frame: FrameType) -> bool:
    """Whether this frame is what JAX's C++ calls where it has no fast path for a call."""
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _MISSES


def places_argument(frame: FrameType) -> bool:
    """Whether this frame is what JAX's C++ calls for an argument that does not lie where the program wants it."""
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) == _PLACING


def missed_function(frame: FrameType) -> Any:
    """The function whose call missed, of a frame that `misses_fast_path`; its name where that is all there is."""
    held = frame.f_locals
    compiled = getattr(getattr(held.get("params"), "executable", None), "unsafe_call", None)
    if (function := held.get("fun")) is not None:  # a user's callable may be false, or have no truth value
        return function
    return held.get("name") or getattr(compiled, "name", None) or "?"


def why_missed(frame: FrameType, returned: Any) -> str:
    """Why JAX has no fast path, from a frame that `misses_fast_path` and what it is returning; "" where it has one."""
    held = frame.f_locals
    if any(isinstance(arg, jax.core.Tracer) for arg in held.get("args_flat") or held.get("args") or ()):
        return "called with tracers: a transformation such as jax.grad or jax.vmap is around it, outside of any jit"
    effects = getattr(held.get("jaxpr"), "effects", ())
    if effects:
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
    """Lower for `platform` whatever is lowered inside, in this thread; None is the platform of the arguments.

    `jax.jit(f).trace(...).lower(lowering_platforms=...)` is public, but `filter_jit`, `nnx.jit` and a project's own
    wrappers have `.lower` only. All of them end in `Traced.lower`, which is replaced in the meantime.
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


def compiler_options(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """The `compiler_options` that the function was given to `jax.jit` with, which are not in its text."""
    return dict(getattr(lowered._lowering, "_compiler_options_kvs", None) or ())


def _leaves(held: dict[str, Any]) -> list[Any] | None:
    """The leaves of the arguments that the caller of `Traced.lower` was given, without the static ones."""
    if not {"jit_func", "args", "kwargs"} <= set(held):  # of a frame of Python 3.13 `keys()` is a list
        return None
    static = static_arguments(held["jit_func"])
    if static is None:
        return None
    numbers, names = static
    count = len(held["args"])
    left_out = {number % count for number in numbers if -count <= number < count}
    args = [arg for i, arg in enumerate(held["args"]) if i not in left_out]
    return jax.tree.leaves((args, {name: value for name, value in held["kwargs"].items() if name not in names}))


def _compiled(function: Any, info: Any, ahead_of_time: bool) -> Compiled:
    argnums = tuple(getattr(info, "static_argnums", ()))
    argnames = tuple(getattr(info, "static_argnames", ()))
    return Compiled(function, argnums, argnames, ahead_of_time)
