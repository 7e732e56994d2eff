"""What JAX does while it compiles, as it happens: the stages of a compile, each trace, and the steps of a first call.

- `jax.monitoring` is public, the names of its events are not.
- No public API tells of a trace: each time that JAX runs a Python function to make a program of it. `jax.monitoring`
  sends its trace event also around calls whose trace is cached, such as `jax.eval_shape(f, x)` after `f(x)`, and none
  under `jax.grad` or `jax.vmap`. JAX's own tests count traces by a call of `test_event("trace_to_jaxpr")`, which
  `hear_traces` replaces.
- No public API gives the trace and the program of a call that is not one jitted function, nor tells when they are made:
  a profiler sees JAX's frames.
"""

import contextlib
import functools
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Literal

import jax
import numpy as np

from perfsuite.measure.private.capabilities import COMPILE_EVENTS, FIRST_CALLS, TRACES
from perfsuite.measure.private.names import Attribute, Frame, Moved, Name, Text

Stage = Literal["trace", "lower", "compile"]
Step = Literal["trace", "lower", "module", "uncounted"]

_STAGES = COMPILE_EVENTS.needs(
    (
        Text("jax._src.dispatch", "/jax/core/compile/jaxpr_trace_duration"),  # also around a call whose trace is cached
        Text("jax._src.dispatch", "/jax/core/compile/jaxpr_to_mlir_module_duration"),
        Text("jax._src.dispatch", "/jax/core/compile/backend_compile_duration"),
    )
)
_STAGE_NAMES: tuple[Stage, ...] = ("trace", "lower", "compile")
_HIT = COMPILE_EVENTS.needs(Text("jax._src.compiler", "/jax/compilation_cache/cache_hits"))

_TRACING = TRACES.needs(
    (
        Frame("jax._src.interpreters.partial_eval", "trace_to_jaxpr", ("debug_info",), until="0.11.1"),
        Frame("jax._src.interpreters.partial_eval", "trace_to_jaxpr_nocache", ("debug_info",), since="0.11.0"),
    )
)
"""The function that runs a Python function to make a program of it."""
_MAKING_MODULE = TRACES.needs(Frame("jax._src.interpreters.mlir", "lower_jaxpr_to_module"))
"""When JAX lowers, the rules of some operations trace functions of their own."""
_AROUND = (*_TRACING, _MAKING_MODULE)
_TRACER = TRACES.needs(Name("jax._src.interpreters.partial_eval"))
_EVENT = TRACES.needs(Name("jax._src.interpreters.partial_eval", "test_event"))

_LOWERING = FIRST_CALLS.needs(Frame("jax._src.interpreters.pxla", "lower_sharding_computation", ("closed_jaxpr",)))
_CONTEXT = FIRST_CALLS.needs(Frame("jax._src.interpreters.mlir", "_create_ir_context", since="0.11.1"))
"""Makes what programs are lowered in. From jax 0.11.1 on a thread makes one for every eleventh program, whichever that
is. Before, every program has its own, and there is no function of this name."""
_MODULE = FIRST_CALLS.needs(Attribute("jax._src.interpreters.mlir", "module"))
_SOURCE = FIRST_CALLS.needs(Attribute("jax._src.core", "source_info"))
_USER_CONTEXT = FIRST_CALLS.needs(Name("jax", "make_user_context"))
"""Not in JAX's own documentation."""

_STEPS: tuple[tuple[Frame, Step], ...] = (
    *((each, "trace") for each in _TRACING),
    (_LOWERING, "lower"),
    (_MAKING_MODULE, "module"),
    (_CONTEXT, "uncounted"),
)


def stage_of(event: str) -> Stage | None:
    """The stage that an event of `jax.monitoring` is about; None for any other event."""
    return next((stage for each, stage in zip(_STAGES, _STAGE_NAMES, strict=True) if each.text == event), None)


def is_cache_hit(event: str) -> bool:
    """Whether an event says that a program came from the persistent cache."""
    return event == _HIT.text


# Traces.


class _Listener:
    """Stands for JAX's `test_event`, and calls it too."""

    def __init__(self, listener: Callable[[FrameType], None], event: Callable[..., None]):
        self.listener = listener
        self.event = event

    def __call__(self, name: str, *args: object) -> None:
        __tracebackhide__ = True
        if name == "trace_to_jaxpr":
            self.listener(sys._getframe(1))
        self.event(name, *args)


_present: _Listener | None = None


def hear_traces(listener: Callable[[FrameType], None]) -> None:
    """Call `listener` with JAX's frame before each trace, in its thread. What it raises ends the trace."""
    global _present
    silence_traces()
    _present = _TRACER.get().test_event = _Listener(listener, _EVENT.get())


def silence_traces() -> None:
    """Call no listener any more."""
    global _present
    if _present is not None and traces_are_heard():
        _TRACER.get().test_event = _present.event
    _present = None


def traces_are_heard() -> bool:
    """Whether a listener is called."""
    return _present is not None and _EVENT.get() is _present


def traced_function(frame: FrameType) -> tuple[str, str, int]:
    """The name, file and line of the function that a frame traces."""
    info = next((each.local(frame, "debug_info") for each in _TRACING if each.runs(frame)), None)
    file, line = getattr(info, "func_filename", None), getattr(info, "func_lineno", None)
    return str(getattr(info, "func_name", "?")), file or "", line or 0


def traced_name(frame: FrameType) -> str:
    """The name of the function that is traced, from the frame that the listener got."""
    return traced_function(frame)[0]


def is_inner(frame: FrameType) -> bool:
    """Whether the trace is part of another one or of a lowering: of the body of a scan, or of a jit inside a jit."""
    outer = frame.f_back
    while outer is not None:
        if any(each.runs(outer) for each in _AROUND):
            return True
        outer = outer.f_back
    return False


# First calls.


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


def step_functions() -> frozenset[str]:
    """The names of functions that begin a step: no frame with another name does."""
    return frozenset(each.function for each, _ in _STEPS)


def step_of(frame: FrameType) -> Step | None:
    """What JAX begins with this frame: to trace a function, to lower a program, to make its module of StableHLO.

    Or what is not counted, because other programs of the process decide whether it happens.
    """
    return next((step for each, step in _STEPS if each.runs(frame)), None)


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
    stack = traceback_of(equation)
    for frame in () if stack is None else stack.frames:
        yield frame.file_name, frame.function_name, frame.line_num


# Probes.

_MINUTES = "jax_persistent_cache_min_compile_time_secs"
_NEVER = 1e9

_numbers = itertools.count(1)


def fresh_function() -> Callable[..., Any]:
    """A function that nothing knows yet, with a name of its own: other threads may trace and run what they like."""

    def probed(x: Any, n: int = 0) -> Any:
        return x

    probed.__name__ = probed.__qualname__ = f"perfsuite_probe_{next(_numbers)}"
    return probed


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, jitted functions compile and run, and put nothing into a persistent cache."""
    before = getattr(jax.config, _MINUTES, None)
    with jax.disable_jit(False), jax.no_tracing(False), jax.transfer_guard("allow"):
        try:
            if before is not None:
                jax.config.update(_MINUTES, _NEVER)
            yield
        finally:
            if before is not None:
                jax.config.update(_MINUTES, before)


@contextlib.contextmanager
def hearing(hear: Callable[[str, dict[str, Any], list[FrameType]], None]) -> Iterator[None]:
    """Call `hear` with the event, its facts and the stack for each stage that this thread begins inside."""
    thread = threading.get_ident()

    def on_start(event: str, value: float, **facts: str | int) -> None:
        if threading.get_ident() == thread:
            hear(event, facts, [frame for frame, _ in traceback.walk_stack(sys._getframe(1))])

    jax.monitoring.register_scalar_listener(on_start)
    try:
        yield
    finally:
        with contextlib.suppress(AssertionError, ValueError):  # something has removed all listeners
            jax.monitoring.unregister_scalar_listener(on_start)


@COMPILE_EVENTS.probed_by
def _probe_events() -> None:
    """Compile a function. Raises `Moved` where the start of a stage, or its end, is not heard with its name."""
    function = fresh_function()
    stages: dict[str, list[Stage]] = {"start": [], "end": []}

    def hear(what: str, event: str, facts: dict[str, Any]) -> None:
        if function.__name__ in str(facts.get("fun_name")) and (stage := stage_of(event)):
            stages[what].append(stage)

    def end(event: str, duration_secs: float, **facts: str | int) -> None:
        hear("end", event, facts)

    jax.monitoring.register_event_duration_secs_listener(end)
    try:
        with undisturbed(), hearing(lambda event, facts, _: hear("start", event, facts)):
            jax.jit(function)(np.float32(1))
    finally:
        jax.monitoring.unregister_event_duration_listener(end)
    for what, names in stages.items():
        if tuple(names) != _STAGE_NAMES:
            raise Moved(f"jax.monitoring tells the {what} of these stages of a compile: {names}")


@TRACES.probed_by
def _probe_traces() -> None:
    """Trace a function twice. Raises `Moved` unless the first time is heard once with its name, and the second not."""
    function, names = fresh_function(), []
    # JAX's own counter hears nothing.
    listener = _Listener(lambda frame: names.append(traced_name(frame)), lambda *_: None)
    with undisturbed(), _EVENT.replaced(lambda _: listener):
        for _ in range(2):
            jax.make_jaxpr(function)(1.0)
    if (times := names.count(function.__name__)) != 1:  # another thread may trace, too
        raise Moved(f"JAX traces a function once and calls {_EVENT} {times} times with its name")


@FIRST_CALLS.probed_by
def _probe_first_calls() -> None:
    """Lower a function. Raises `Moved` unless each step is seen once, with what comes of it."""
    function, steps, results = fresh_function(), [], []
    begun: dict[int, Step] = {}

    def watch(frame: FrameType, event: str, returned: Any) -> None:
        if event == "call" and (step := step_of(frame)) not in (None, "uncounted"):
            steps.append(step)
            begun[id(frame)] = step
            results.append(traced_name(frame) == function.__name__ if step == "trace" else True)
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
