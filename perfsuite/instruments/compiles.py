"""`perf.warm`, `perf.covers`, `perf.no_compiles` and `perf.count_compiles`: what compiles, and when."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import Evidence
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warm import Coverage, Warm, covers, warm
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.capabilities import COMPILE_EVENTS, STACK, TRACES

WARM = declare("perf.warm", {"compiles": "backend compiles while warming"}, private=(COMPILE_EVENTS,))
COVERS = declare(
    "perf.covers",
    {"uncovered": "signatures of inputs that were not warmed (default: 0)"},
    private=(STACK,),
)
NO_COMPILES = declare("perf.no_compiles", private=(COMPILE_EVENTS,))
COUNT_COMPILES = declare("perf.count_compiles", private=(COMPILE_EVENTS,))


_WARMED_EARLIER = (
    "a test that runs alone also compiles what earlier tests compile for it in a session: run the function once before "
    "the block (perf.warm)"
)


class CompilesInstrument(Instrument):
    def warm(
        self, fn: Callable, over: Sequence[tuple | Call], *, budget: Budget = NO_BUDGET, name: str | None = None
    ) -> Warm:
        """Compile and run every signature in `over`, wait for the results, and return the function, warm.

        `over` has tuples of positional arguments, or `call`s. Arrays in tuples are copied first, so that a function
        that donates them leaves the caller's alone. `Budget(compiles=)` limits the backend compiles that it takes.
        """
        __tracebackhide__ = True
        limits = self._begin(WARM, budget)
        label = label_of(fn)
        warmed = warm(fn, over)
        measured = self._recorder.measured("warm", label, " compile seconds", name=name)
        seconds = Metric(f"{measured.name} compile seconds", warmed.compile_seconds, "s", "info", samples=1)
        self._recorder.add(measured.metrics([seconds])[0])
        if "compiles" in limits:
            metric = Metric(f"{measured.name} compiles to warm", warmed.compiles, "compiles", "count")
            self._recorder.check_budget(metric, limits["compiles"], lambda: warmed.compiled)
        return warmed

    def covers(
        self,
        warmed: Warm,
        inputs: Iterable[Any],
        *,
        limit: int | None = None,
        budget: Budget = NO_BUDGET,
        name: str | None = None,
    ) -> Coverage:
        """Fail where an input brings a signature that was not warmed; runs no program.

        `warmed` is what `perf.warm` returned for a jitted function. `inputs` are tuples of arguments, `call`s, or the
        only argument: a list, or a loader, which is walked to its end or up to `limit` inputs. `.uncovered`, `.unused`.
        `Budget(uncovered=)` allows some.
        """
        __tracebackhide__ = True
        limits = self._begin(COVERS, budget)
        coverage = covers(warmed, inputs, limit=limit)
        uncovered, unused = self._metrics(COVERS, coverage.label, coverage.metrics, name)
        self._recorder.add(uncovered, evidence=Evidence(cause=coverage.in_words()))
        self._recorder.add(unused)
        self._recorder.check_budget(uncovered, limits.get("uncovered", 0), coverage.in_words)
        return coverage

    def no_compiles(self, only: Sequence[Callable] = ()) -> AbstractContextManager[compiles.Compiles]:
        """Context manager: any trace, lowering or compile inside, in any thread, raises `RecompilationError`.

        `only` limits it to these functions and what they call.
        """
        functions = [each.fn if isinstance(each, Warm) else each for each in only]
        return self._block(NO_COMPILES, lambda: compiles.forbid(functions))

    def count_compiles(self, *, name: str | None = None) -> AbstractContextManager[compiles.Compiles]:
        """Context manager giving `traces`, `lowerings`, `compiles`, `cache_hits` and `by_function`.

        The first three are metrics of the test, under `name`: any increase over the baseline fails.
        """
        return self._block(COUNT_COMPILES, lambda: self._counting(name))

    @contextlib.contextmanager
    def _counting(self, name: str | None) -> Iterator[compiles.Compiles]:
        with compiles.count() as counted:
            yield counted
        counts = {"traces": counted.traces, "lowerings": counted.lowerings, "compiles": counted.compiles}
        measured = self._recorder.measured("count_compiles", "block", *(f" {stage}" for stage in counts), name=name)
        if TRACES.lost():  # what jax.monitoring sends has traces that were cached among them
            del counts["traces"]
            self._recorder.unknown[measured.id_of(" traces"), None] = TRACES.sentence("counting traces")
        by_function = counted.by_function
        places = {event.function: event.location for event in reversed(counted.events)}
        for stage, count in counts.items():
            detail = {function: getattr(each, stage) for function, each in by_function.items() if getattr(each, stage)}
            metric = Metric(f"{measured.name} {stage}", count, stage, "count", detail=detail, places=places)
            self._recorder.add(measured.metrics([metric])[0], evidence=Evidence(unexplained=_WARMED_EARLIER))
