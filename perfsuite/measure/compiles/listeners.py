"""The listeners that JAX calls for every stage of every compile, and the contexts that are told.

JAX calls them in the thread that compiles, at the start and at the end of each stage, and never for a call that its
cache answers. They are registered while any context is open.
"""

import contextlib
import dataclasses
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import jax

from perfsuite.measure.compiles import callsite, explanation
from perfsuite.measure.compiles.causes import HISTORY, Cause, Sighting, key_of, recompile_cause, sighting_of
from perfsuite.measure.compiles.tally import BUILDING_INPUTS, STAGES, CompileEvent, Compiles
from perfsuite.measure.errors import RecompilationError

_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_HEARTBEAT = "/perfsuite/heartbeat"
_MOST_PENDING = 256


# Replaced on every change, so that a listener in any thread can read it without a lock.
_open: tuple[Compiles, ...] = ()
# Reentrant, because the handler of an interrupt may open a context too.
_lock = threading.RLock()


class _ThreadState(threading.local):
    """What the listeners know of one thread."""

    def __init__(self) -> None:
        self.busy = False
        self.heard = False
        self.started: list[tuple[str, str, float]] = []
        self.seen: dict[tuple[str, ...], _CompilingCall] = {}
        self.pending: tuple[str, list[Compiles], RecompilationError] | None = None


_here = _ThreadState()


def open_contexts() -> tuple[Compiles, ...]:
    """The contexts that are told of compiles right now."""
    return _open


@contextlib.contextmanager
def telling(watch: Compiles) -> Iterator[None]:
    """Tell `watch` of every stage of a compile that begins inside, in any thread."""
    global _open
    try:
        with _lock:
            if not _open or not is_heard():
                _unregister()
                jax.monitoring.register_scalar_listener(_on_start)
                jax.monitoring.register_event_duration_secs_listener(_on_end)
                jax.monitoring.register_event_listener(_on_event)
            _open = (*_open, watch)
        yield
    finally:
        with _lock:
            _open = tuple(other for other in _open if other is not watch)
            if not _open:
                _unregister()


def _unregister() -> None:
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
    return _here.heard


def _on_start(event: str, value: float, **kwargs: str | int) -> None:
    __tracebackhide__ = True
    stage = _EVENTS.get(event)
    if stage is None or _here.busy:
        return
    began = time.perf_counter()
    function = str(kwargs.get("fun_name", ""))
    if (error := _seen(stage, function)) is not None:
        raise error
    # JAX's clock for the stage runs already, so the listener's own time is subtracted at its end.
    _here.started.append((event, function, time.perf_counter() - began))
    del _here.started[:-_MOST_PENDING]


def _on_end(event: str, duration_secs: float, **kwargs: str | int) -> None:
    __tracebackhide__ = True
    if event == _HEARTBEAT:
        _here.heard = True
    stage = _EVENTS.get(event)
    if stage is None or _here.busy:
        return
    function = str(kwargs.get("fun_name", ""))
    own = _own_seconds(event, function)
    # A stage whose start was not seen began before a context was opened, or in a JAX that reports ends only.
    error = _seen(stage, function) if own is None else None
    if not BUILDING_INPUTS.get():
        for watch in _open:
            watch.add_seconds(max(0.0, duration_secs - (own or 0.0)))
    if error is not None:
        raise error


def _on_event(event: str, **kwargs: str | int) -> None:
    if event == _CACHE_HIT and not _here.busy and not BUILDING_INPUTS.get():
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
    forbidding = [watch for watch in watches if watch.forbids]
    if forbidding:
        return _refused(stage, function, call, forbidding)
    call.remember()
    return None


def _refused(stage: str, function: str, call: "_CompilingCall", watches: list[Compiles]) -> RecompilationError | None:
    pending, _here.pending = _here.pending, None
    if stage == "compile" and pending is not None and pending[:2] == (function, watches):
        return pending[2]
    changes = tuple(map(str, call.cause.changes))
    message = explanation.recompilation(function, stage, call.cause)
    error = RecompilationError(message, function=function, stage=stage, changes=changes)
    for watch in watches:
        watch.refuse(error, call.compiled)
    if stage != "lower":
        return error
    # After an error while JAX lowers, it would lower and compile this signature again in every later call, because its
    # lowering cache keeps the failed entry (jax 0.10.2). So the error is raised when the compile begins; where none
    # follows, when the context closes.
    _here.pending = function, watches, error
    return None


@dataclasses.dataclass(frozen=True)
class _CompilingCall:
    """A call that JAX is compiling, as far as the stack says. Keeps none of its objects alive."""

    cause: Cause
    sighting: Sighting | None = None
    key: tuple[str, ...] = ()
    mark: int = 0
    order: int = 0
    compiled: "weakref.ref[Any] | None" = None

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
        compiled = None if site.compiled is None else weakref.ref(site.compiled)
        return _CompilingCall(cause, sighting, key, mark, order, compiled)
    except Exception as problem:
        # A user's object that cannot be described must not fail the user's compile.
        problem_text = f"perfsuite could not describe the call: {problem!r}"
        return _CompilingCall(dataclasses.replace(cause, problem=problem_text))
