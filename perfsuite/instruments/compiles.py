"""`perf.warm`, `perf.no_compiles` and `perf.count_compiles`: what compiles, and when."""

from collections.abc import Callable, Sequence

from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warmup import Warm, warm
from perfsuite.measure.measurement import Metric

WARM = declare("perf.warm", budget=("compiles",))


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
        name = name or label_of(fn)
        # Nothing that is measured here gates as a time, so it may run under the profiler, and it compiles only once.
        with self._tracing.keeping_block(self._recorder.unique(f"warming {name}")):
            warmed = warm(fn, over)
        seconds = self._recorder.unique(f"{name} compile seconds")
        self._recorder.add(Metric(seconds, warmed.compile_seconds, "s", "info", samples=1))
        if "compiles" in limits:
            metric = Metric(self._recorder.unique(f"{name} compiles to warm"), warmed.compiles, "compiles", "count")
            cause = f"{len(warmed.signatures)} signatures were declared; look for one that compiles more than once"
            self._recorder.check_budget(metric, limits["compiles"], lambda: cause)
        return warmed

    def no_compiles(self):
        """Context manager: any trace, lowering or compile inside, in any thread, raises `RecompilationError`."""
        return compiles.forbid()

    def count_compiles(self):
        """Context manager giving `traces`, `lowerings`, `compiles`, `cache_hits` and `by_function`; asserts nothing."""
        return compiles.count()
