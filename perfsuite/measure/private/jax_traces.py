"""JAX's traces as they happen: each time that it runs a Python function to make a program of it.

No public API tells. `jax.monitoring` sends its trace event also around calls whose trace is cached, such as
`jax.eval_shape(f, x)` after `f(x)`, and none under `jax.grad` or `jax.vmap`. JAX's own tests count traces by a call of
`test_event("trace_to_jaxpr")`, which this module replaces.
"""

import sys
from collections.abc import Callable
from types import FrameType

import jax

from perfsuite.measure.private.names import Frame, Moved, Name
from perfsuite.measure.private.probing import fresh_function, undisturbed

TRACING = (
    Frame("jax._src.interpreters.partial_eval", "trace_to_jaxpr", ("debug_info",), until="0.11.1"),
    Frame("jax._src.interpreters.partial_eval", "trace_to_jaxpr_nocache", ("debug_info",), since="0.11.0"),
)
"""The function that runs a Python function to make a program of it."""
MAKING_MODULE = Frame("jax._src.interpreters.mlir", "lower_jaxpr_to_module")
"""When JAX lowers, the rules of some operations trace functions of their own."""
_TRACER = Name("jax._src.interpreters.partial_eval")
_EVENT = Name("jax._src.interpreters.partial_eval", "test_event")


class _Heard:
    """Stands for JAX's `test_event`, and calls it too."""

    def __init__(self, listener: Callable[[FrameType], None], event: Callable[..., None]):
        self.listener = listener
        self.event = event

    def __call__(self, name: str, *args: object) -> None:
        __tracebackhide__ = True
        if name == "trace_to_jaxpr":
            self.listener(sys._getframe(1))
        self.event(name, *args)


_present: _Heard | None = None


def hear_traces(listener: Callable[[FrameType], None]) -> None:
    """Call `listener` with JAX's frame before each trace, in its thread. What it raises ends the trace."""
    global _present
    silence_traces()
    _present = _TRACER.get().test_event = _Heard(listener, _EVENT.get())


def silence_traces() -> None:
    """Call no listener any more."""
    global _present
    if _present is not None and traces_are_heard():
        _TRACER.get().test_event = _present.event
    _present = None


def traces_are_heard() -> bool:
    """Whether a listener is called."""
    return _present is not None and _EVENT.get() is _present


def traced_name(frame: FrameType) -> str:
    """The name of the function that is traced, from the frame that the listener got."""
    return str(getattr(_debug_info(frame), "func_name", "?"))


def traced_function(frame: FrameType) -> tuple[str, str, int]:
    """The name, file and line of the function that a frame traces."""
    info = _debug_info(frame)
    place = getattr(info, "func_filename", None) or "", getattr(info, "func_lineno", None) or 0
    return traced_name(frame), *place


def is_tracing(frame: FrameType) -> bool:
    """Whether a frame runs a Python function to make a program of it."""
    return any(each.runs(frame) for each in TRACING)


def is_inner(frame: FrameType) -> bool:
    """Whether the trace is part of another one or of a lowering: of the body of a scan, or of a jit inside a jit."""
    outer = frame.f_back
    while outer is not None:
        if is_tracing(outer) or MAKING_MODULE.runs(outer):
            return True
        outer = outer.f_back
    return False


def probe() -> None:
    """Trace a function twice. Raises `Moved` unless the first time is heard once with its name, and the second not."""
    function, names = fresh_function(), []
    heard = _Heard(lambda frame: names.append(traced_name(frame)), lambda *_: None)  # JAX's own counter hears nothing
    with undisturbed(), _EVENT.replaced(lambda _: heard):
        for _ in range(2):
            jax.make_jaxpr(function)(1.0)
    if (times := names.count(function.__name__)) != 1:  # another thread may trace, too
        raise Moved(f"JAX traces a function once and calls {_EVENT} {times} times with its name")


def _debug_info(frame: FrameType) -> object:
    return next((each.local(frame, "debug_info") for each in TRACING if each.runs(frame)), None)
