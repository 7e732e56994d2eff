"""`perf.host_calls`: how much Python one warm call runs, and how many programs."""

from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.instruments.dispatch_metrics import leave_dispatches, record_dispatches
from perfsuite.measure.call import Call, checked
from perfsuite.measure.compiles.compiles import tracing_allowed
from perfsuite.measure.private.capabilities import PROGRAM_RUNS
from perfsuite.measure.runtime.dispatches import dispatches
from perfsuite.measure.runtime.host_calls import HostCalls, host_calls

HOST_CALLS = declare("perf.host_calls", budget=("host_calls",))


class HostCallsInstrument(Instrument):
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
            measured = self._recorder.measured("host_calls", counted.label, " host calls", name=name)
            metric = measured.metrics(counted.metrics(measured.name))[0]
            self._recorder.add(metric)
            self._keep_trace(call, measured.name)
            if "host_calls" in limits:
                self._recorder.check_budget(metric, limits["host_calls"], lambda: _busiest(counted))
            if PROGRAM_RUNS.lost():
                leave_dispatches(self._recorder, counted.label, name, instrument="host_calls")
            else:
                record_dispatches(self._recorder, dispatches(call), name, instrument="host_calls")
        return counted


def _busiest(counted: HostCalls) -> str:
    from perfsuite.gate.diagnosis import busiest  # what only a failure needs

    return busiest(counted)
