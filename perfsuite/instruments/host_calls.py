"""`perf.host_calls`: how much Python one warm call runs."""

from perfsuite.gate.budget import Budget
from perfsuite.gate.diagnosis import busiest
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.runtime.hostcalls import HostCalls, host_calls

HOST_CALLS = declare("perf.host_calls", budget=("host_calls",))


class HostCallsInstrument(Instrument):
    def host_calls(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> HostCalls:
        """Count the Python and C function calls that one warm call makes: exact, repeatable, any increase fails."""
        __tracebackhide__ = True
        limits = self._begin(HOST_CALLS, budget)
        counted = host_calls(checked(call, "perf.host_calls"))
        name = self._recorder.unique(name or counted.label, " host calls")
        metric = counted.metrics(name)[0]
        self._recorder.add(metric)
        self._tracing.keep_trace(call, name)
        if "host_calls" in limits:
            self._recorder.check_budget(metric, limits["host_calls"], lambda: busiest(counted))
        return counted
