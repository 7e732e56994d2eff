"""Traces, lowerings and backend compiles: counted, forbidden, or only remembered.

JAX calls the listeners in the thread that compiles, before each trace and at the start and at the end of each stage,
and never for a call that its cache answers: a warm call pays nothing. They are registered while any context is open.

Lowerings and compiles are told by `jax.monitoring`, which is public. Traces are told by a private name of JAX
(`private.compile_events`), to contexts that count or refuse. Where JAX has moved it, traces are counted as
`jax.monitoring` sends them, around calls whose trace is cached too, and no trace is refused: what it leads to is.
"""

import contextlib
import dataclasses
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any

import jax

from perfsuite.measure.call import label_of
from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.causes import (
    HISTORY,
    Cause,
    Sighting,
    history_key,
    operations_message,
    recompilation_message,
    recompile_cause,
    runs_alone,
    sighting_of,
)
from perfsuite.measure.errors import MeasurementError, RecompilationError
from perfsuite.measure.private import compile_events, jax_stack
from perfsuite.measure.private.capabilities import COMPILE_EVENTS, STACK, TRACES, probing
from perfsuite.measure.private.compile_events import is_cache_hit, stage_of
from perfsuite.measure.switches import switches_first

STAGES = ("trace", "lower", "compile")

BUILDING_INPUTS: ContextVar[bool] = ContextVar("perfsuite_building_inputs", default=False)
"""Whether this thread is inside some context's `building_inputs()`."""

TRACING_ON_PURPOSE: ContextVar[bool] = ContextVar("perfsuite_tracing_on_purpose", default=False)
"""Whether the call that is measured may trace and lower: of it only a backend compile is refused."""

ON_PURPOSE = (
    "If the call is meant to trace in every run, say so: perf.time(call, traces=True). perf.compare, perf.host_calls "
    "and perf.dispatches take it too."
)

_HEARTBEAT = "/perfsuite/heartbeat"
_MOST_CALLS = 256


@dataclasses.dataclass(frozen=True)
class CompileEvent:
    """One trace, lowering or backend compile.

    `stage` is "trace", "lower" or "compile", `function` the name that JAX gives the function, `location` the
    `file:line` of the user's call. `changes` are the differences from the nearest known call, each a readable line.
    """

    stage: str
    function: str
    location: str
    changes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class FunctionCompiles:
    """How often one function was traced, lowered and compiled."""

    traces: int = 0
    lowerings: int = 0
    compiles: int = 0


class Compiles:
    """What compiled while a context was open, in any thread: `events` has every stage, in order.

    A trace is a run of a Python function by which JAX makes a program. `traces` has the outermost ones, `inner_traces`
    those that are part of another trace or of a lowering: both together are what JAX's own tests count. A compile that
    the persistent compilation cache answers counts in `compiles` and in `cache_hits`: the program is still read and
    loaded. `seconds` is the time that all stages took.
    """

    def __init__(
        self, *, counts: bool = True, refused: tuple[str, ...] = (), only: frozenset[CodeType] = frozenset()
    ) -> None:
        self.counts = counts
        self.refused = refused
        """The stages that are refused, and `only` the code of the functions to which that is limited; empty for all."""
        self.only = only
        self.hears_traces = False
        self.eager: list[Cause] = []
        self.errors: list[tuple[RecompilationError, str]] = []
        """Copies of the errors, each with the name of its thread."""
        self.events: tuple[CompileEvent, ...] = ()
        self.cache_hits = 0
        self.inner_traces = 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    @property
    def traces(self) -> int:
        """How many functions JAX traced, those inside others left out."""
        return self._count("trace")

    @property
    def lowerings(self) -> int:
        """How many traced functions JAX lowered to StableHLO."""
        return self._count("lower")

    @property
    def compiles(self) -> int:
        """How many programs a backend compiled, or had from the persistent cache."""
        return self._count("compile")

    @property
    def by_function(self) -> dict[str, FunctionCompiles]:
        """The counts of each function, by its name, in the order of their first events."""
        stages: dict[str, Counter[str]] = {}
        for event in self.events:
            stages.setdefault(event.function, Counter())[event.stage] += 1
        return {function: FunctionCompiles(*(counts[each] for each in STAGES)) for function, counts in stages.items()}

    @contextlib.contextmanager
    def building_inputs(self) -> Iterator[None]:
        """Inside, in this thread, compiles are neither counted nor forbidden by any context: inputs are being built."""
        token = BUILDING_INPUTS.set(True)
        try:
            yield
        finally:
            BUILDING_INPUTS.reset(token)

    def _count(self, stage: str) -> int:
        return sum(event.stage == stage for event in self.events)

    def add(self, *events: CompileEvent, inner_traces: int = 0, cache_hits: int = 0, seconds: float = 0.0) -> None:
        """Count what happened, in any thread."""
        with self._lock:
            self.events += events
            self.inner_traces += inner_traces
            self.cache_hits += cache_hits
            self.seconds += seconds


@contextlib.contextmanager
def count() -> Iterator[Compiles]:
    """Count what compiles inside, in any thread; asserts nothing.

    `with count() as counted: step(state, batch)`, then `counted.compiles` and the others. Raises `CapabilityLost` where
    this jax does not tell of compiles.
    """
    COMPILE_EVENTS.check("counting compiles")
    with open_context(Compiles()) as watch:
        yield watch


@contextlib.contextmanager
def forbid(only: Sequence[Callable] = (), stages: tuple[str, ...] = STAGES) -> Iterator[Compiles]:
    """Refuse every trace, lowering and backend compile inside, in any thread, by a `RecompilationError`.

    The error names the function, the user's line, and what differs from the nearest known call. It is raised before the
    compile begins; where none follows, where something catches it, or where another thread compiles, it is raised when
    the context closes. Operations that run by themselves, outside any jitted function, are let run: one error names all
    of them when the context closes. Build inputs in the yielded object's `building_inputs()`. `only` limits it to these
    functions, jitted or not, and to what they call, `stages` are those that are refused.

    Raises `TypeError` where `only` holds something else, or what no stack shows, and `CapabilityLost` where this jax
    does not tell of compiles.
    """
    __tracebackhide__ = True
    COMPILE_EVENTS.check("forbidding compiles")
    if only:
        STACK.check("no_compiles(only=...)")
    watch = Compiles(counts=stages == STAGES, refused=stages, only=frozenset(map(_code_of, only)))
    with open_context(watch):
        try:
            yield watch
        except RecompilationError as error:
            # JAX notes that it removed frames: of this error they are all perfsuite's and JAX's own.
            if hasattr(error, "__notes__"):
                error.__notes__ = [note for note in error.__notes__ if "JAX_TRACEBACK_FILTERING" not in note]
            if watch.eager:
                error.add_note(f"Before that {operations_message(watch.eager)}")
            raise
        except MeasurementError:
            if not (watch.errors or watch.eager):  # else what compiles is why nothing agrees
                raise
        except Exception as error:
            if watch.errors:  # what JAX traces anew may raise an error of its own
                error.add_note(f"Before that {watch.errors[0][0]}")
            raise
        finally:
            if watch.errors:
                jax_stack.forget_calls()
    _raise_refused(watch)


def _raise_refused(watch: Compiles) -> None:
    """Raise what was refused and let run, or has been caught since."""
    __tracebackhide__ = True
    if watch.errors:
        refused, thread = watch.errors[0]
        lines = [str(refused)]
        if thread != threading.current_thread().name:
            lines.append(f"It happened in thread {thread!r}.")
        if watch.errors[1:]:
            lines.append(f"{len(watch.errors) - 1} more like it.")
        refused.args = ("\n  ".join(lines),)
        raise refused from None
    if watch.eager:
        raise _error(operations_message(watch.eager), watch.eager[0]) from None


@contextlib.contextmanager
def steady_state() -> Iterator[None]:
    """Run a warm call that is measured: `forbid`, or only its backend compiles inside `tracing_allowed`."""
    __tracebackhide__ = True
    if COMPILE_EVENTS.lost():
        COMPILE_EVENTS.falls_back("a call that compiles while it is measured is not refused")
        yield
        return
    try:
        with forbid(stages=("compile",) if TRACING_ON_PURPOSE.get() else STAGES):
            yield
    except RecompilationError as error:
        if error.stage != "compile":
            error.args = (f"{error}\n  {ON_PURPOSE}",)
        raise


@contextlib.contextmanager
def tracing_allowed(allowed: bool) -> Iterator[None]:
    """Let the calls that are measured inside trace and lower, where `allowed`."""
    token = TRACING_ON_PURPOSE.set(allowed)
    try:
        yield
    finally:
        TRACING_ON_PURPOSE.reset(token)


def observe() -> contextlib.AbstractContextManager[Compiles]:
    """Only remember what compiles inside, to compare a later recompilation with it."""
    return open_context(Compiles(counts=False))


def _code_of(function: Callable) -> CodeType:
    if not callable(function):
        raise TypeError(f"only=[...] takes functions, got {type(function).__name__}: {function!r}")
    if (code := callsite.code_behind(function)) is None:
        raise TypeError(
            f"only=[...] cannot see when {function!r} runs: it has no Python code, so nothing would be forbidden. "
            "Give the Python function that calls it"
        )
    return code


# Replaced on every change, so that a listener in any thread can read it without a lock.
_open: tuple[Compiles, ...] = ()
# Reentrant, because the handler of an interrupt may open a context too.
_lock = threading.RLock()


class _ThreadState(threading.local):
    """What the listeners know of one thread. `refused` is a call, and the error that its compile raises."""

    def __init__(self) -> None:
        self.busy = False
        self.heard = False
        self.calls: dict[tuple[str, ...], _CompilingCall] = {}
        self.refused: tuple[tuple[str, int, list[Compiles]], RecompilationError] | None = None


_here = _ThreadState()


def open_contexts() -> tuple[Compiles, ...]:
    """The contexts that are told of compiles right now."""
    return _open


@contextlib.contextmanager
def open_context(watch: Compiles) -> Iterator[Compiles]:
    """Tell `watch` of every stage of a compile that begins inside, in any thread."""
    global _open
    if watch.counts or watch.refused:
        # Probes before the lock is taken, by a compile in a thread of its own.
        watch.hears_traces = not TRACES.lost()
        if not watch.hears_traces:
            TRACES.falls_back("no trace is refused, only what it leads to, and a cached one counts too")
    try:
        with _lock:
            _open = (*_open, watch)
            if not is_heard():
                _register()
        yield watch
        if (watch.counts or watch.refused) and not is_heard():
            raise MeasurementError(
                "something removed perfsuite's monitoring listeners while compiles were being watched, so some may be "
                "missing. Use jax.monitoring.unregister_..._listener instead of jax.monitoring.clear_event_listeners()."
            )
    finally:
        with _lock:
            _open = tuple(other for other in _open if other is not watch)
            if not _open:
                _unregister()
            elif not any(other.hears_traces for other in _open):
                compile_events.silence_traces()


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
    if any(watch.hears_traces for watch in _open):
        compile_events.hear_traces(_on_trace)


def _unregister() -> None:
    compile_events.silence_traces()
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
    return _here.heard and (compile_events.traces_are_heard() or not any(watch.hears_traces for watch in _open))


def _is_deaf() -> bool:
    """Whether what this thread compiles is nobody's: of a description, or of a probe."""
    return _here.busy or probing()


def _on_trace(frame: FrameType) -> None:
    if _is_deaf():
        return
    if not compile_events.is_inner(frame):
        _begin("trace", compile_events.traced_name(frame))
    elif not BUILDING_INPUTS.get():
        for watch in _open:
            watch.add(inner_traces=1)


def _on_start(event: str, value: float, **kwargs: str | int) -> None:
    __tracebackhide__ = True
    stage = stage_of(event)
    if stage is None or _is_deaf() or (stage == "trace" and compile_events.traces_are_heard()):
        return
    if (error := _begin(stage, str(kwargs.get("fun_name", "")))) is not None:
        raise error


def _on_end(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event == _HEARTBEAT:
        _here.heard = True
    elif stage_of(event) is not None and not _is_deaf() and not BUILDING_INPUTS.get():
        for watch in _open:
            watch.add(seconds=duration_secs)


def _on_event(event: str, **kwargs: str | int) -> None:
    if is_cache_hit(event) and not _is_deaf() and not BUILDING_INPUTS.get():
        for watch in _open:
            watch.add(cache_hits=1)


def _begin(stage: str, name: str) -> RecompilationError | None:
    """Count, and remember or refuse, one stage that begins; the error to raise now."""
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
    refusing = [watch for watch in watches if stage in watch.refused and (stage != "trace" or watch.hears_traces)]
    if any(watch.only for watch in refusing):
        running = _running(sys._getframe(1))
        refusing = [watch for watch in refusing if not watch.only or watch.only & running]
    if refusing and runs_alone(call.cause):
        for watch in refusing:
            # The later stages of one call have the same cause.
            if not any(call.cause is cause for cause in watch.eager[-1:]):
                watch.eager.append(call.cause)
    elif refusing:
        return _refused(dataclasses.replace(call.cause, stage=stage), call.mark, refusing)
    call.remember()
    return None


def _refused(cause: Cause, mark: int, watches: list[Compiles]) -> RecompilationError | None:
    """The error to raise now. There is one for all stages of a call, and it waits until the compile begins.

    What JAX traces or lowers when an error ends it, JAX caches no more, and would trace or lower it again in every
    later call (jax 0.10.2). Where no compile follows, the error is raised when the context closes.
    """
    call = cause.location, mark, watches
    if _here.refused is None or _here.refused[0] != call:
        message = recompilation_message(cause)
        _here.refused = call, _error(message, cause)
        for watch in watches:
            # A copy without a traceback, whose frames would keep the user's arrays alive until the context closes.
            watch.errors.append((_error(message, cause), threading.current_thread().name))
    if cause.stage != "compile":
        return None
    (_, error), _here.refused = _here.refused, None
    return error


def _error(message: str, cause: Cause) -> RecompilationError:
    changes = tuple(map(str, cause.changes))
    message = switches_first("perf.no_compiles", message)
    return RecompilationError(message, function=cause.function, stage=cause.stage, changes=changes)


def _running(frame: FrameType) -> frozenset[CodeType]:
    """The code of the functions that run on the stack, and of the one that compiles."""
    frames = [each for each, _ in traceback.walk_stack(frame)]
    compiling = jax_stack.compiling_function(frames)
    called = [compiling.function] if compiling else []
    called += [wrapper for each in frames if (wrapper := callsite.wrapper_of(each)) is not None]
    codes = (callsite.code_behind(function) for function in called)
    return frozenset([each.f_code for each in frames] + [code for code in codes if code is not None])


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
            if len(_here.calls) > _MOST_CALLS:
                _here.calls.clear()
            _here.calls[self.key] = self


def _call_that_compiles(stage: str, function: str, *, explain: bool) -> _CompilingCall:
    order = STAGES.index(stage)
    cause = Cause(function, stage, "an unknown line")
    try:
        if STACK.lost():
            unknown = f"cause unknown with this jax ({jax.__version__}): {STACK.lost()}"
            here = callsite.location(sys._getframe(1))
            return _CompilingCall(dataclasses.replace(cause, location=here, problem=unknown))
        site = callsite.on_stack(sys._getframe(1))
        if function in ("<unknown>", "_fun"):  # JAX's names of a partial, and of any function of jax.pmap
            function = site.through if site.eager else label_of(site.function)
        facts = {name: getattr(site, name) for name in ("eager", "through", "via", "maker")}
        cause = Cause(function, stage, site.location, caller=site.caller[0], **facts)
        key, mark = history_key(site, function), site.mark
        last = _here.calls.get(key)
        if last is not None and last.order < order and last.mark == mark:
            # A later stage of the same call, which is in the history by now. To describe it again would take as long as
            # the first time: 18 ms for the 600 arrays of a BERT-base train state.
            return dataclasses.replace(last, order=order)
        sighting = sighting_of(site)
        cause = recompile_cause(cause, site, sighting, key) if explain else cause
        return _CompilingCall(cause, sighting, key, mark, order)
    except Exception as problem:
        # A user's object that cannot be described must not fail the user's compile.
        problem_text = f"perfsuite could not describe the call ({type(problem).__name__})"
        return _CompilingCall(dataclasses.replace(cause, problem=problem_text))
