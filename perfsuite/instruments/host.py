"""`perf.host_calls`, `perf.dispatches` and `perf.fast_path`: what one warm call costs the host, in counts."""

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import Evidence
from perfsuite.instruments.base import NO_BUDGET, Declaration, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.compiles.compiles import tracing_allowed
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.capabilities import PROGRAM_RUNS, SLOW_PATH
from perfsuite.measure.runtime.dispatches import MOVE_IN, SUFFIXES, Dispatches, dispatches
from perfsuite.measure.runtime.fast_path import FastPath, fast_path
from perfsuite.measure.runtime.host_calls import HostCalls, host_calls

HOST_CALLS = declare("perf.host_calls", {"host_calls": "Python and C calls of one warm call"})
DISPATCHES = declare(
    "perf.dispatches",
    {"dispatches": "compiled programs that one warm call runs, eager operations too"},
    private=(PROGRAM_RUNS,),
)
FAST_PATH = declare(
    "perf.fast_path",
    {"fast_path_misses": "calls of jitted functions that take JAX's slow path in one warm call"},
    private=(SLOW_PATH,),
)


class HostInstrument(Instrument):
    def host_calls(
        self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None, traces: bool = False
    ) -> HostCalls:
        """Count the Python and C function calls that one warm call makes: exact, repeatable, any increase fails.

        Records what `perf.dispatches` does too: the host calls of a second program are few. `traces=True` is for a call
        that is meant to trace in every run.
        """
        __tracebackhide__ = True
        limits = self._begin(HOST_CALLS, budget)
        with tracing_allowed(traces):
            counted = host_calls(checked(call, "perf.host_calls"))
            (metric,) = self._metrics(HOST_CALLS, counted.label, counted.metrics, name)
            self._keep_trace(call, metric.name.removesuffix(" host calls"))
            self._record(metric, limits.get("host_calls"), lambda: _busiest(counted))
            if PROGRAM_RUNS.lost():  # a baseline of what is not known here is not taken for missing
                measured = self._recorder.measured("host_calls", counted.label, *SUFFIXES, name=name)
                for suffix in SUFFIXES:
                    self._recorder.unknown[measured.id_of(suffix), None] = PROGRAM_RUNS.sentence("perf.dispatches")
            else:
                self._record_dispatches(HOST_CALLS, dispatches(call), name)
        return counted

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
        name = self._record_dispatches(DISPATCHES, counted, name)
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
        (misses,) = self._metrics(FAST_PATH, counted.label, counted.metrics, name)
        self._recorder.add(misses, evidence=Evidence(cause=str(counted)))
        if "fast_path_misses" in limits:
            self._recorder.check_budget(misses, limits["fast_path_misses"], lambda: str(counted))
        return counted

    def _record_dispatches(self, declared: Declaration, counted: Dispatches, name: str | None) -> str:
        """Record both counts as metrics of an instrument, and return the name that they got."""
        metrics = self._metrics(declared, counted.label, counted.metrics, name)
        for metric, cause in zip(metrics, ("", MOVE_IN), strict=True):
            self._recorder.add(metric, evidence=Evidence(cause=cause))
        return metrics[0].name.removesuffix(SUFFIXES[0])


def _busiest(counted: HostCalls) -> str:
    from perfsuite.gate.diagnosis import busiest  # what only a failure needs

    return busiest(counted)
