"""`perf.fast_path`: calls of jitted functions that take JAX's slow path, though nothing compiles."""

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import Evidence
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.compiles.fastpath import FastPath, fast_path

FAST_PATH = declare("perf.fast_path", budget=("fast_path_misses",))


class FastPathInstrument(Instrument):
    def fast_path(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> FastPath:
        """Count the calls of jitted functions in one warm call that take JAX's slow path, though nothing compiles.

        `.misses`, `.by_function`, `.reasons`. Any increase over the baseline fails; `Budget(fast_path_misses=)` limits
        them.
        """
        __tracebackhide__ = True
        limits = self._begin(FAST_PATH, budget)
        measured = fast_path(checked(call, "perf.fast_path"))
        (misses,) = measured.metrics(self._recorder.unique(name or measured.label, " fast-path misses"))
        self._recorder.add(misses, evidence=Evidence(cause=str(measured)))
        if "fast_path_misses" in limits:
            self._recorder.check_budget(misses, limits["fast_path_misses"], lambda: str(measured))
        return measured
