"""Traces, lowerings and backend compiles: counted, forbidden, or only remembered.

JAX calls perfsuite only when it compiles, so a warm call pays nothing. The error is raised when a forbidden stage
starts, before its work.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from perfsuite.measure.compiles import explanation
from perfsuite.measure.compiles.identities import identities_of
from perfsuite.measure.compiles.listeners import is_heard, open_contexts, telling
from perfsuite.measure.compiles.tally import (
    BUILDING_INPUTS,
    STAGES,
    TRACING_ON_PURPOSE,
    CompileEvent,
    Compiles,
    FunctionCompiles,
)
from perfsuite.measure.errors import MeasurementError, RecompilationError
from perfsuite.measure.private.capabilities import COMPILE_EVENTS, STACK

__all__ = [
    "CompileEvent",
    "Compiles",
    "FunctionCompiles",
    "count",
    "forbid",
    "forbidden",
    "observe",
    "steady_state",
    "tracing_allowed",
]

ON_PURPOSE = (
    "If the call is meant to trace in every run, say so: perf.time(call, traces=True). perf.compare, perf.host_calls "
    "and perf.dispatches take it too."
)


@contextlib.contextmanager
def count() -> Iterator[Compiles]:
    """Count what compiles inside, in any thread; asserts nothing.

    `with count() as counted: step(state, batch)`, then `counted.compiles` and the others. Raises `CapabilityLost` where
    this jax does not tell of compiles.
    """
    COMPILE_EVENTS.check("counting compiles")
    with counting() as watch:
        yield watch


@contextlib.contextmanager
def counting() -> Iterator[Compiles]:
    """`count`, for what goes on where nothing tells of compiles."""
    watch = Compiles()
    with telling(watch):
        yield watch
        _check_heard()


@contextlib.contextmanager
def forbid(only: Sequence[Callable] = (), stages: tuple[str, ...] = STAGES) -> Iterator[Compiles]:
    """Raise `RecompilationError` at any trace, lowering or backend compile inside, in any thread, before its work.

    The error names the function, the user's line, and what differs from the nearest known call. If something catches
    it, or it is another thread's, it is raised again when the context closes. Operations that run by themselves,
    outside any jitted function, are let run: one error names all of them when the context closes. Build inputs in the
    yielded object's `building_inputs()`. `only` limits it to these functions, jitted or not, and to what they call,
    `stages` are those that are refused.

    Raises `TypeError` where `only` holds something else, or what no stack shows, and `CapabilityLost` where this jax
    does not tell of compiles.
    """
    __tracebackhide__ = True
    COMPILE_EVENTS.check("forbidding compiles")
    if only:
        STACK.check("no_compiles(only=...)")
    identities = frozenset().union(*map(_identities_of, only))
    watch = Compiles(counts=stages == STAGES, forbids=True, refused=stages, only=identities)
    with telling(watch):
        try:
            yield watch
        except RecompilationError as error:
            # JAX notes that it removed frames: of this error they are all perfsuite's and JAX's own.
            if hasattr(error, "__notes__"):
                error.__notes__ = [note for note in error.__notes__ if "JAX_TRACEBACK_FILTERING" not in note]
            if watch.eager:
                error.add_note(f"Before that {explanation.eager_operations(watch.eager)}")
            raise
        finally:
            watch.repair()
        _check_heard()
    watch.raise_refused()
    if watch.eager:
        first = watch.eager[0]
        changes = tuple(map(str, first.cause.changes))
        message = explanation.eager_operations(watch.eager)
        raise RecompilationError(message, function=first.function, stage=first.stage, changes=changes)


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


@contextlib.contextmanager
def observe() -> Iterator[None]:
    """Only remember what compiles inside, to compare a later recompilation with it."""
    with telling(Compiles(counts=False)):
        yield


def forbidden() -> bool:
    """Whether compiles are forbidden right now, in this thread."""
    return any(watch.forbids for watch in open_contexts()) and not BUILDING_INPUTS.get()


def eager_operations() -> int:
    """How many forbidden operations ran by themselves, outside any jitted function, in the contexts that are open."""
    return sum(len(watch.eager) for watch in open_contexts() if watch.forbids)


def _identities_of(function: Callable) -> frozenset[int]:
    if not callable(function):
        raise TypeError(f"only=[...] takes functions, got {type(function).__name__}: {function!r}")
    if not (found := identities_of(function)):
        raise TypeError(
            f"only=[...] cannot see when {function!r} runs: it has no Python code and is not jitted, so nothing would "
            "be forbidden. Give the Python function that calls it, or what jax.jit, filter_jit or nnx.jit returned"
        )
    return found


def _check_heard() -> None:
    if not is_heard():
        raise MeasurementError(
            "something removed perfsuite's monitoring listeners while compiles were being watched, so some may be "
            "missing. Use jax.monitoring.unregister_..._listener instead of jax.monitoring.clear_event_listeners()."
        )
