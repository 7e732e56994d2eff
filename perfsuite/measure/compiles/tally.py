"""What compiled while a context was open: counts, functions, events, and the errors that were raised."""

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from perfsuite.measure.errors import RecompilationError

STAGES = ("trace", "lower", "compile")

BUILDING_INPUTS: ContextVar[bool] = ContextVar("perfsuite_building_inputs", default=False)
"""Whether this thread is inside some context's `building_inputs()`."""

TRACING_ON_PURPOSE: ContextVar[bool] = ContextVar("perfsuite_tracing_on_purpose", default=False)
"""Whether the call that is measured may trace and lower: of it only a backend compile is refused."""


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


@dataclasses.dataclass(frozen=True)
class EagerOperation:
    """An operation of JAX's own that compiled by itself: its name, the first stage that was seen, and its cause."""

    function: str
    stage: str
    cause: Any


class Compiles:
    """What compiled while a context was open, in any thread.

    A trace is a run of a Python function by which JAX makes a program. `traces` has the outermost ones, `inner_traces`
    those that are part of another trace or of a lowering: both together are what JAX's own tests count. A compile that
    the persistent compilation cache answers counts in `compiles` and in `cache_hits`: the program is still read and
    loaded. `seconds` is the time that all stages took.
    """

    def __init__(
        self,
        *,
        counts: bool = True,
        forbids: bool = False,
        refused: tuple[str, ...] = STAGES,
        only: frozenset[int] = frozenset(),
    ) -> None:
        self.counts = counts
        self.forbids = forbids
        self.refused = refused if forbids else ()
        self.only = only
        """The identities of the functions that `forbids` is limited to; empty for all."""
        self._lock = threading.Lock()
        self._events: list[CompileEvent] = []
        self._refused: list[tuple[RecompilationError, str]] = []
        self._repairs: list[Callable[[], None]] = []
        self._eager: list[EagerOperation] = []
        self.cache_hits = 0
        self.inner_traces = 0
        self.seconds = 0.0

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
    def events(self) -> tuple[CompileEvent, ...]:
        """Every stage that happened, in order."""
        with self._lock:
            return tuple(self._events)

    @property
    def by_function(self) -> dict[str, FunctionCompiles]:
        """The counts of each function, by its name, in the order of their first events."""
        found: dict[str, Counter[str]] = {}
        for event in self.events:
            found.setdefault(event.function, Counter())[event.stage] += 1
        return {function: FunctionCompiles(*(counts[each] for each in STAGES)) for function, counts in found.items()}

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

    def add(self, event: CompileEvent) -> None:
        """Count a stage that began."""
        with self._lock:
            self._events.append(event)

    def add_inner_trace(self) -> None:
        """Count a trace that is part of another trace or of a lowering."""
        with self._lock:
            self.inner_traces += 1

    def add_cache_hit(self) -> None:
        """Count a compile that the persistent cache answered."""
        with self._lock:
            self.cache_hits += 1

    def add_seconds(self, seconds: float) -> None:
        """Add the time that a stage took."""
        with self._lock:
            self.seconds += seconds

    def refuse(self, error: RecompilationError, repairs: list[Callable[[], None]]) -> None:
        """Keep an error that is about to be raised, and what then makes JAX as it was."""
        # A copy without a traceback, whose frames would keep the user's arrays alive until the context closes.
        with self._lock:
            self._refused.append((_error_like(error, str(error)), threading.current_thread().name))
            self._repairs += repairs

    def add_eager(self, operation: EagerOperation) -> None:
        """Keep a forbidden operation that is let run, so that the error names all of them."""
        with self._lock:
            # The later stages of one call have the same cause.
            if not any(operation.cause is known.cause for known in self._eager[-1:]):
                self._eager.append(operation)

    @property
    def eager(self) -> tuple[EagerOperation, ...]:
        """The forbidden operations that ran by themselves."""
        with self._lock:
            return tuple(self._eager)

    def repair(self) -> None:
        """Make JAX as it was before the errors that were raised."""
        with self._lock:
            repairs, self._repairs = self._repairs, []
        for repair in repairs:
            repair()

    def raise_refused(self) -> None:
        """Raise the first of the errors that were kept, if there are any."""
        __tracebackhide__ = True
        if not self._refused:
            return
        error, thread = self._refused[0]
        here = thread == threading.current_thread().name
        note = "The error was raised there, and something caught it." if here else f"It happened in thread {thread!r}."
        more = f" {len(self._refused) - 1} more like it." if len(self._refused) > 1 else ""
        raise _error_like(error, f"{error}\n  {note}{more}")


def _error_like(error: RecompilationError, message: str) -> RecompilationError:
    return RecompilationError(message, function=error.function, stage=error.stage, changes=error.changes)
