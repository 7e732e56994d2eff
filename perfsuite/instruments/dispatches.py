"""What JAX runs for one call: `perf.dispatches`, the programs; `perf.fast_path`, those that its C++ did not find."""

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import Evidence
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.instruments.dispatch_metrics import record_dispatches
from perfsuite.measure.call import Call, checked
from perfsuite.measure.compiles.compiles import tracing_allowed
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.capabilities import PROGRAM_RUNS, SLOW_PATH
from perfsuite.measure.runtime.dispatches import Dispatches, dispatches
from perfsuite.measure.runtime.fast_path import FastPath, fast_path

DISPATCHES = declare("perf.dispatches", budget=("dispatches",), private=(PROGRAM_RUNS,))
FAST_PATH = declare("perf.fast_path", budget=("fast_path_misses",), private=(SLOW_PATH,))


class DispatchesInstrument(Instrument):
    def dispatches(
        self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None, traces: bool = False
    ) -> Dispatches:
        """Count the compiled programs that one warm call runs: exact, in any thread; any increase fails.

        `.by_program` has those of jitted functions, `.by_operation` the operations outside `jit`. `Budget(dispatches=)`
        limits both together. `traces=True` is for a call that is meant to trace in every run.
        """
        __tracebackhide__ = True
        limits = self._begin(DISPATCHES, budget)
        with tracing_allowed(traces):
            counted = dispatches(checked(call, "perf.dispatches"))
        name = record_dispatches(self._recorder, counted, name, instrument="dispatches")
        if "dispatches" in limits:
            total = Metric(f"{name} programs run", counted.total, "programs", "count")
            self._recorder.check_budget(total, limits["dispatches"], lambda: str(counted))
        return counted

    def fast_path(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> FastPath:
        """Count the calls of jitted functions in one warm call that take JAX's slow path, though nothing compiles.

        `.misses`, `.by_function`, `.reasons`. Any increase over the baseline fails; `Budget(fast_path_misses=)` limits
        them.
        """
        __tracebackhide__ = True
        limits = self._begin(FAST_PATH, budget)
        counted = fast_path(checked(call, "perf.fast_path"))
        measured = self._recorder.measured("fast_path", counted.label, " fast-path misses", name=name)
        (misses,) = measured.metrics(counted.metrics(measured.name))
        self._recorder.add(misses, evidence=Evidence(cause=str(counted)))
        if "fast_path_misses" in limits:
            self._recorder.check_budget(misses, limits["fast_path_misses"], lambda: str(counted))
        return counted
