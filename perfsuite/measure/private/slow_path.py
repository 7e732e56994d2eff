"""JAX's slow path for calls of jitted functions, as a profiler sees it: no public API says that a call took it."""

from types import FrameType
from typing import Any

import jax
import numpy as np

from perfsuite.measure.private.names import Attribute, Frame, Moved
from perfsuite.measure.private.probing import fresh_function, hearing, undisturbed

MISS = Frame("jax._src.pjit", "cache_miss", ("fun", "args_flat", "jaxpr"))
_INNER_MISS = Frame("jax._src.pjit", "call_impl_cache_miss", ("name", "jaxpr", "args"))
_AHEAD_OF_TIME = Frame("jax._src.stages", "call", ("params", "args"))
"""Of a function that was compiled ahead of time."""
PLACING = Frame("jax._src.interpreters.pxla", "cc_shard_arg")
_EXECUTABLE = Attribute("jax._src.stages", "executable")
_UNSAFE_CALL = Attribute("jax._src.interpreters.pxla", "unsafe_call")

_MISSES = (MISS, _INNER_MISS, _AHEAD_OF_TIME)


def misses_fast_path(frame: FrameType) -> bool:
    """Whether JAX's C++ calls this frame where it has no fast path for a call."""
    return any(each.runs(frame) for each in _MISSES)


def places_argument(frame: FrameType) -> bool:
    """Whether JAX's C++ calls this frame for an argument that is not where the program needs it."""
    return PLACING.runs(frame)


def jitted_function(frame: FrameType) -> Any:
    """The function that was jitted, of a frame that runs a call of it; None for other frames."""
    return MISS.local(frame, "fun") if MISS.runs(frame) else None


def missed_function(frame: FrameType) -> Any:
    """The function whose call missed, of a frame that `misses_fast_path`; its name where the frame has only that."""
    if (function := jitted_function(frame)) is not None:  # a user's callable may be false, or have no truth value
        return function
    if _INNER_MISS.runs(frame):
        return _INNER_MISS.local(frame, "name") or "?"
    compiled = _UNSAFE_CALL.of(_EXECUTABLE.of(_AHEAD_OF_TIME.local(frame, "params")))
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
    if missed is _AHEAD_OF_TIME:
        return "it was compiled ahead of time and has effects or callbacks"
    if isinstance(returned, tuple) and len(returned) == 3 and returned[1] is None:
        return "JAX keeps no fast path for it"
    return ""


def probe() -> None:
    """Compile a function. Raises `Moved` unless its call is seen to miss the fast path, which it has not yet."""
    function = fresh_function()
    seen: list[Any] = []

    def hear(_: str, __: object, frames: list[FrameType]) -> None:
        seen.extend(missed_function(frame) for frame in frames if misses_fast_path(frame))

    with undisturbed(), hearing(hear):
        jax.jit(function)(np.float32(1))
    if not any(each is function for each in seen):
        raise Moved("the call of a function that JAX compiles is not on the stack")
