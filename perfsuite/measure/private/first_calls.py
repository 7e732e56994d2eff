"""JAX's frames in a first call, as a profiler sees them: where it traces and lowers, and what comes of that.

No public API gives the trace and the program of a call that is not one jitted function, nor tells when they are made.
When JAX moves one of these functions, `tests/private/test_first_calls.py` fails and names it.
"""

from collections.abc import Iterator
from types import FrameType
from typing import Any, Literal

from jax._src.interpreters import mlir, pxla

from perfsuite.measure.private.jax_stack import TRACING

Step = Literal["trace", "lower", "module", "uncounted"]

CONTEXT = (mlir.__name__, "_create_ir_context")
"""Makes what programs are lowered in. From jax 0.12 on a thread makes one for every eleventh program, whichever that
is. Before, every program has its own, and there is no function of this name."""

_STEPS: dict[tuple[str, str], Step] = {
    **dict.fromkeys(TRACING, "trace"),
    (pxla.__name__, "lower_sharding_computation"): "lower",
    (mlir.__name__, "lower_jaxpr_to_module"): "module",
    CONTEXT: "uncounted",
}
NAMES = frozenset(name for _, name in _STEPS)
"""No frame with another name begins a step."""


def step_of(frame: FrameType) -> Step | None:
    """What JAX begins with this frame: to trace a function, to lower a program, to make its module of StableHLO.

    Or what is not counted, because other programs of the process decide whether it happens.
    """
    return _STEPS.get((frame.f_globals.get("__name__", ""), frame.f_code.co_name))


def traced_function(frame: FrameType) -> tuple[str, str, int]:
    """The name, file and line of the function that a frame traces."""
    info = frame.f_locals.get("debug_info")
    return (
        str(getattr(info, "func_name", "?")),
        getattr(info, "func_filename", None) or "",
        getattr(info, "func_lineno", None) or 0,
    )


def lowered_jaxpr(frame: FrameType) -> Any:
    """The closed jaxpr that a frame lowers, as it was traced."""
    return frame.f_locals["closed_jaxpr"]


def module_of(returned: Any) -> Any:
    """The module of StableHLO, from what the function returns that makes it."""
    return returned.module


def frames_of(equation: Any) -> Iterator[tuple[str, str, int]]:
    """The file, function and line of each frame in which an equation was traced, the innermost first."""
    traceback = equation.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        yield frame.file_name, frame.function_name, frame.line_num
