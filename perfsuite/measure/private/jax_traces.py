"""JAX's traces as they happen: each time that it runs a Python function to make a program of it.

No public API tells. `jax.monitoring` sends its trace event also around calls whose trace is cached, such as
`jax.eval_shape(f, x)` after `f(x)`, and none under `jax.grad` or `jax.vmap`. JAX's own tests count traces by a call of
`test_event("trace_to_jaxpr")`, which this module replaces. When JAX moves it, `tests/private/test_jax_traces.py`
fails and says so.
"""

import sys
from collections.abc import Callable
from types import FrameType

from jax._src.interpreters import mlir, partial_eval

from perfsuite.measure.private.jax_stack import TRACING

_OUTER = {*TRACING, (mlir.__name__, "lower_jaxpr_to_module")}
"""When JAX lowers, the rules of some operations trace functions of their own."""


class _Heard:
    """Stands for JAX's `test_event`, and calls it too."""

    def __init__(self, listener: Callable[[FrameType], None]):
        self.listener = listener
        self.test_event = partial_eval.test_event

    def __call__(self, name: str, *args: object) -> None:
        __tracebackhide__ = True
        if name == "trace_to_jaxpr":
            self.listener(sys._getframe(1))
        self.test_event(name, *args)


def hear_traces(listener: Callable[[FrameType], None]) -> None:
    """Call `listener` with JAX's frame before each trace, in its thread. What it raises ends the trace."""
    silence_traces()
    partial_eval.test_event = _Heard(listener)


def silence_traces() -> None:
    """Call no listener any more."""
    if isinstance(heard := partial_eval.test_event, _Heard):
        partial_eval.test_event = heard.test_event


def traces_are_heard() -> bool:
    """Whether a listener is called."""
    return isinstance(partial_eval.test_event, _Heard)


def traced_name(frame: FrameType) -> str:
    """The name of the function that is traced, from the frame that the listener got."""
    return str(getattr(frame.f_locals.get("debug_info"), "func_name", "?"))


def is_inner(frame: FrameType) -> bool:
    """Whether the trace is part of another one or of a lowering: of the body of a scan, or of a jit inside a jit."""
    outer = frame.f_back
    while outer is not None:
        if (outer.f_globals.get("__name__"), outer.f_code.co_name) in _OUTER:
            return True
        outer = outer.f_back
    return False
