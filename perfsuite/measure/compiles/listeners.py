"""The listeners that JAX calls for every stage of every compile, and the contexts that are told.

JAX calls them in the thread that compiles, before each trace and at the start and at the end of each stage, and never
for a call that its cache answers. They are registered while any context is open.

Lowerings and compiles are told by `jax.monitoring`, which is public. Traces are told by a private name of JAX
(`private.jax_traces`), to contexts that count or forbid. Where JAX has moved it, traces are counted as `jax.monitoring`
sends them, around calls whose trace is cached too, and no trace is refused: what it leads to is.
"""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax

from perfsuite.measure.compiles import callsite, explanation
from perfsuite.measure.compiles.causes import HISTORY, Cause, Sighting, key_of, recompile_cause, sighting_of
from perfsuite.measure.compiles.identities import identities_on_stack
from perfsuite.measure.compiles.tally import (
    BUILDING_INPUTS,
    STAGES,
    TRACING_ON_PURPOSE,
    CompileEvent,
    Compiles,
    EagerOperation,
)
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.private import error_repairs, jax_traces
from perfsuite.measure.private.capabilities import REPAIRS, STACK, TRACES, probing
from perfsuite.measure.private.compile_events import is_cache_hit, stage_of

_HEARTBEAT = "/perfsuite/heartbeat"
_MOST_PENDING = 256


# Replaced on every change, so that a listener in any thread can read it without a lock.
_open: tuple[Compiles, ...] = ()
# Reentrant, because the handler of an interrupt may open a context too.
_lock = threading.RLock()


@dataclasses.dataclass(frozen=True)
class _Pending:
    """An error that has to wait until JAX can be interrupted: see `_refused`."""

    stage: str
    function: str
    watches: list[Compiles]
    error: RecompilationError


class _ThreadState(threading.local):
    """What the listeners know of one thread."""

    def __init__(self) -> None:
        self.busy = False
        self.heard = False
        self.started: list[tuple[str, str, float]] = []
        self.seen: dict[tuple[str, ...], _CompilingCall] = {}
        self.pending: _Pending | None = None
        self.refusing: list[Compiles] = []


_here = _ThreadState()


def open_contexts() -> tuple[Compiles, ...]:
    """The contexts that are told of compiles right now."""
    return _open


@contextlib.contextmanager
def telling(watch: Compiles) -> Iterator[None]:
    """Tell `watch` of every stage of a compile that begins inside, in any thread."""
    global _open
    if watch.counts or watch.forbids:
        TRACES.lost()  # probes before the lock is taken, by a compile in a thread of its own
    try:
        with _lock:
            _open = (*_open, watch)
            if not is_heard():
                _register()
        yield
    finally:
        with _lock:
            _open = tuple(other for other in _open if other is not watch)
            if not _open:
                _unregister()
            elif not _wants_traces():
                jax_traces.silence_traces()


@contextlib.contextmanager
def telling_nobody() -> Iterator[None]:
    """Tell no context of what compiles inside, and make no call for it: a measurement counts calls while it traces."""
    try:
        with _lock:
            _unregister()
        yield
    finally:
        with _lock:
            if _open:
                _register()


def _register() -> None:
    _unregister()
    jax.monitoring.register_scalar_listener(_on_start)
    jax.monitoring.register_event_duration_secs_listener(_on_end)
    jax.monitoring.register_event_listener(_on_event)
    if _wants_traces():
        jax_traces.hear_traces(_on_trace)


def _wants_traces() -> bool:
    """Whether some context asks for each trace, and this jax tells of it."""
    if not any(watch.counts or watch.forbids for watch in _open):
        return False
    if TRACES.lost():
        TRACES.falls_back("no trace is refused, only what it leads to, and a cached one counts too")
    return not TRACES.lost()


def _unregister() -> None:
    jax_traces.silence_traces()
    ours: tuple[tuple[Any, Any], ...] = (
        (jax.monitoring.unregister_scalar_listener, _on_start),
        (jax.monitoring.unregister_event_duration_listener, _on_end),
        (jax.monitoring.unregister_event_listener, _on_event),
    )
    for unregister, listener in ours:
        # Something may have removed all listeners, perfsuite's too; JAX then asserts.
        with contextlib.suppress(AssertionError, ValueError):
            unregister(listener)


def is_heard() -> bool:
    """Whether JAX still calls perfsuite's listeners."""
    _here.heard = False
    jax.monitoring.record_event_duration_secs(_HEARTBEAT, 0.0)
    return _here.heard and (jax_traces.traces_are_heard() or not _wants_traces())


def _is_deaf() -> bool:
    """Whether what this thread compiles is nobody's: of a description, or of a probe."""
    return _here.busy or probing()


def _on_trace(frame: FrameType) -> None:
    __tracebackhide__ = True
    if _is_deaf():
        return
    if jax_traces.is_inner(frame):
        if not BUILDING_INPUTS.get():
            for watch in _open:
                watch.add_inner_trace()
        return
    began = time.perf_counter()
    function = jax_traces.traced_name(frame)
    error = _seen("trace", function)
    if _here.started and stage_of((last := _here.started[-1])[0]) == "trace":
        _here.started[-1] = (*last[:2], last[2] + time.perf_counter() - began)
    elif error is not None and error_repairs.has_other_traces(frame):
        _here.pending = _Pending("trace", function, _here.refusing, error)
        return
    if error is not None:
        raise error


def _on_start(event: str, value: float, **kwargs: str | int) -> None:
    __tracebackhide__ = True
    stage = stage_of(event)
    if stage is None or _is_deaf():
        return
    began = time.perf_counter()
    function = str(kwargs.get("fun_name", ""))
    error = None if stage == "trace" and jax_traces.traces_are_heard() else _seen(stage, function)
    if error is not None:
        raise error
    # JAX's clock for the stage runs already, so the listener's own time is subtracted at its end.
    _here.started.append((event, function, time.perf_counter() - began))
    del _here.started[:-_MOST_PENDING]


def _on_end(event: str, duration_secs: float, **kwargs: str | int) -> None:
    __tracebackhide__ = True
    if event == _HEARTBEAT:
        _here.heard = True
    stage = stage_of(event)
    if stage is None or _is_deaf():
        return
    function = str(kwargs.get("fun_name", ""))
    own = _own_seconds(event, function)
    # A stage whose start was not seen began before a context was opened, or in a JAX that reports ends only.
    error = _seen(stage, function) if own is None and stage != "trace" else None
    if not BUILDING_INPUTS.get():
        for watch in _open:
            watch.add_seconds(max(0.0, duration_secs - (own or 0.0)))
    if error is not None:
        raise error


def _on_event(event: str, **kwargs: str | int) -> None:
    if is_cache_hit(event) and not _is_deaf() and not BUILDING_INPUTS.get():
        for watch in _open:
            watch.add_cache_hit()


def _own_seconds(event: str, function: str) -> float | None:
    """What the listener took at the start of this stage; `None` where it was not called then."""
    started = _here.started
    for place in reversed(range(len(started))):
        if started[place][:2] == (event, function):
            own = started[place][2]
            # An exception ended what started later and never ended.
            del started[place:]
            return own
    return None


def _seen(stage: str, name: str) -> RecompilationError | None:
    """Count and remember one stage that begins; the error to raise if it is forbidden."""
    __tracebackhide__ = True
    watches = _open
    if stage != "compile" and TRACING_ON_PURPOSE.get():  # a description would be part of what is measured
        watches = tuple(watch for watch in watches if watch.counts)
    if not watches:
        return None
    # The later stages say `jit(f)` for `f`.
    outer, bracket, inner = name.partition("(")
    function = inner[:-1] if bracket and outer.isidentifier() and inner.endswith(")") else name
    _here.busy = True
    try:
        call = _call_that_compiles(stage, function, explain=any(watch.counts for watch in watches))
    finally:
        _here.busy = False
    if BUILDING_INPUTS.get():
        watches = ()
    changes = tuple(map(str, call.cause.changes))
    for watch in watches:
        if watch.counts:
            watch.add(CompileEvent(stage, function, call.cause.location, changes))
    refusable = stage != "trace" or not TRACES.lost()
    forbidding = [watch for watch in watches if refusable and stage in watch.refused]
    if any(watch.only for watch in forbidding):
        called = identities_on_stack(sys._getframe(1))
        forbidding = [watch for watch in forbidding if not watch.only or watch.only & called]
    if forbidding and explanation.runs_alone(function, call.cause):
        for watch in forbidding:
            watch.add_eager(EagerOperation(function, stage, call.cause))
    elif forbidding:
        return _refused(stage, function, call, forbidding)
    call.remember()
    return None


def _refused(stage: str, function: str, call: "_CompilingCall", watches: list[Compiles]) -> RecompilationError | None:
    """The error to raise now, before the stage begins; None where it has to wait.

    After an error while JAX lowers, it would lower and compile this signature again in every later call, because its
    lowering cache keeps the failed entry (jax 0.10.2). So the error is raised when the compile begins; where none
    follows, when the context closes. The same holds for a trace under a transformation, of a function that has other
    traces: after an error JAX would trace it again in every later call, or these others too.
    """
    _here.refusing = watches
    pending, _here.pending = _here.pending, None
    if pending is not None and pending.watches == watches:
        if stage == "lower" and pending.stage == "trace":
            _here.pending = dataclasses.replace(pending, stage=stage, function=function)
            return None
        if stage == "compile" and pending.stage == "lower" and pending.function == function:
            return pending.error
    changes = tuple(map(str, call.cause.changes))
    message = explanation.recompilation(function, stage, call.cause)
    error = RecompilationError(message, function=function, stage=stage, changes=changes)
    if REPAIRS.lost():
        REPAIRS.falls_back("a function whose compile was refused may take JAX's slow path from then on")
    for watch in watches:
        watch.refuse(error, error_repairs.repairs(sys._getframe(1)))
    if stage != "lower":
        return error
    _here.pending = _Pending(stage, function, watches, error)
    return None


@dataclasses.dataclass(frozen=True)
class _CompilingCall:
    """A call that JAX is compiling, as far as the stack says. Keeps none of its objects alive."""

    cause: Cause
    sighting: Sighting | None = None
    key: tuple[str, ...] = ()
    mark: int = 0
    order: int = 0

    def remember(self) -> None:
        if self.sighting is not None:
            HISTORY.remember(self.key, self.sighting)
            if len(_here.seen) > _MOST_PENDING:
                _here.seen.clear()
            _here.seen[self.key] = self


def _call_that_compiles(stage: str, function: str, *, explain: bool) -> _CompilingCall:
    order = STAGES.index(stage)
    cause = Cause("an unknown line")
    try:
        if STACK.lost():
            unknown = f"cause unknown with this jax ({jax.__version__}): {STACK.lost()}"
            return _CompilingCall(Cause(callsite.location(sys._getframe(1)), problem=unknown))
        site = callsite.on_stack(sys._getframe(1))
        cause = Cause(site.location)
        key, mark = key_of(site, function), site.mark
        last = _here.seen.get(key)
        if last is not None and last.order < order and last.mark == mark:
            # A later stage of the same call, which is in the history by now. To describe it again would take as long as
            # the first time: 18 ms for the 600 arrays of a BERT-base train state.
            return dataclasses.replace(last, order=order)
        sighting = sighting_of(site)
        cause = recompile_cause(site, sighting, key) if explain else cause
        return _CompilingCall(cause, sighting, key, mark, order)
    except Exception as problem:
        # A user's object that cannot be described must not fail the user's compile.
        problem_text = f"perfsuite could not describe the call: {problem!r}"
        return _CompilingCall(dataclasses.replace(cause, problem=problem_text))
