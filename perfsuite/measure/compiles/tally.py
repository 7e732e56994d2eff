"""What compiled while a context was open: counts, functions, events, and the errors that were raised."""

import contextlib
import dataclasses
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from perfsuite.measure.errors import RecompilationError

STAGES = ("trace", "lower", "compile")

BUILDING_INPUTS: ContextVar[bool] = ContextVar("perfsuite_building_inputs", default=False)
"""Whether this thread is inside some context's `building_inputs()`."""


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
    """What compiled while a context was open, in any thread.

    A compile that the persistent compilation cache answers counts in `compiles` and in `cache_hits`: the program is
    still read and loaded. `seconds` is the time that all stages took.
    """

    def __init__(self, *, counts: bool = True, forbids: bool = False) -> None:
        self.counts = counts
        self.forbids = forbids
        self._lock = threading.Lock()
        self._events: list[CompileEvent] = []
        self._refused: list[tuple[RecompilationError, str]] = []
        self._functions: list[weakref.ref[Any]] = []
        self.cache_hits = 0
        self.seconds = 0.0

    @property
    def traces(self) -> int:
        return self._count("trace")

    @property
    def lowerings(self) -> int:
        return self._count("lower")

    @property
    def compiles(self) -> int:
        return self._count("compile")

    @property
    def events(self) -> tuple[CompileEvent, ...]:
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

    def add_cache_hit(self) -> None:
        """Count a compile that the persistent cache answered."""
        with self._lock:
            self.cache_hits += 1

    def add_seconds(self, seconds: float) -> None:
        """Add the time that a stage took."""
        with self._lock:
            self.seconds += seconds

    def refuse(self, error: RecompilationError, function: "weakref.ref[Any] | None") -> None:
        """Keep an error that is about to be raised, because of a `function` that JAX was about to compile."""
        # A copy without a traceback, whose frames would keep the user's arrays alive until the context closes.
        with self._lock:
            self._refused.append((_error_like(error, str(error)), threading.current_thread().name))
            if function is not None:
                self._functions.append(function)

    def functions_refused(self) -> tuple[Any, ...]:
        """The functions that JAX was about to compile; None for those that are gone."""
        with self._lock:
            return tuple(reference() for reference in self._functions)

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
