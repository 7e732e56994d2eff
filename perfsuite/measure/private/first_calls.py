"""JAX's frames in a first call, as a profiler sees them: where it traces and lowers, and what comes of that.

No public API gives the trace and the program of a call that is not one jitted function, nor tells when they are made.
"""

import functools
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Literal

import jax
import numpy as np

from perfsuite.measure.private.jax_traces import MAKING_MODULE, TRACING, traced_function
from perfsuite.measure.private.names import Attribute, Frame, Moved, Name
from perfsuite.measure.private.probing import fresh_function, undisturbed

Step = Literal["trace", "lower", "module", "uncounted"]

_LOWERING = Frame("jax._src.interpreters.pxla", "lower_sharding_computation", ("closed_jaxpr",))
_CONTEXT = Frame("jax._src.interpreters.mlir", "_create_ir_context", since="0.11.1")
"""Makes what programs are lowered in. From jax 0.11.1 on a thread makes one for every eleventh program, whichever that
is. Before, every program has its own, and there is no function of this name."""
_MODULE = Attribute("jax._src.interpreters.mlir", "module")
_SOURCE = Attribute("jax._src.core", "source_info")
_USER_CONTEXT = Name("jax", "make_user_context")
"""Not in JAX's own documentation."""


@functools.cache
def make_context() -> Any:
    """Make the context of JAX's in which a first call is a first one, once; None where JAX makes none.

    JAX compiles everything once more after any context is made. So a session with --perf makes it before it collects
    tests, and a process that counts no first call never does.
    """
    try:
        return _USER_CONTEXT.get()(None)
    except Exception:  # whatever it wants now: every session with --perf comes here
        return None


@functools.cache
def _steps() -> dict[str, list[tuple[Frame, Step]]]:
    """By the name of the function, which is all that is looked at of most frames."""
    steps: dict[str, list[tuple[Frame, Step]]] = {}
    known: list[tuple[Frame, Step]] = [(_LOWERING, "lower"), (MAKING_MODULE, "module"), (_CONTEXT, "uncounted")]
    for frame, step in [*((each, "trace") for each in TRACING), *known]:
        steps.setdefault(frame.function, []).append((frame, step))
    return steps


def names() -> frozenset[str]:
    """No frame with another name begins a step."""
    return frozenset(_steps())


def step_of(frame: FrameType) -> Step | None:
    """What JAX begins with this frame: to trace a function, to lower a program, to make its module of StableHLO.

    Or what is not counted, because other programs of the process decide whether it happens.
    """
    return next((step for each, step in _steps().get(frame.f_code.co_name, ()) if each.runs(frame)), None)


def lowered_jaxpr(frame: FrameType) -> Any:
    """The closed jaxpr that a frame lowers, as it was traced."""
    return _LOWERING.local(frame, "closed_jaxpr")


def module_of(returned: Any) -> Any:
    """The module of StableHLO, from what the function returns that makes it."""
    return _MODULE.of(returned)


def traceback_of(equation: Any) -> Any:
    """Where an equation was traced. Many equations of one line have equal ones."""
    return getattr(_SOURCE.of(equation), "traceback", None)


def frames_of(equation: Any) -> Iterator[tuple[str, str, int]]:
    """The file, function and line of each frame in which an equation was traced, the innermost first."""
    traceback = traceback_of(equation)
    for frame in () if traceback is None else traceback.frames:
        yield frame.file_name, frame.function_name, frame.line_num


def probe() -> None:
    """Lower a function. Raises `Moved` unless each step is seen once, with what comes of it."""
    function, steps, results = fresh_function(), [], []
    begun: dict[int, Step] = {}

    def watch(frame: FrameType, event: str, returned: Any) -> None:
        if event == "call" and (step := step_of(frame)) not in (None, "uncounted"):
            steps.append(step)
            begun[id(frame)] = step
            results.append(traced_function(frame)[0] == function.__name__ if step == "trace" else True)
            results.append(lowered_jaxpr(frame) is not None if step == "lower" else True)
        elif event == "return" and begun.pop(id(frame), None) == "module":
            results.append(hasattr(module_of(returned), "operation"))

    if make_context() is None:
        raise Moved(f"JAX makes no context by {_USER_CONTEXT}")
    jitted, argument, before = jax.jit(function), np.float32(1), sys.getprofile()
    with undisturbed():
        sys.setprofile(watch)
        try:
            jitted.lower(argument)
        finally:
            sys.setprofile(before)
    if steps != ["trace", "lower", "module"] or not all(results):
        raise Moved(f"of tracing, lowering and making a module these are seen, or not all that comes of them: {steps}")
