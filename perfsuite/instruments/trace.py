"""`perf.trace`: where the time of a call goes, on the host and on the devices."""

from perfsuite.instruments.base import Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.trace import RUNS, Trace

TRACE = declare("perf.trace")


class TraceInstrument(Instrument):
    def trace(self, call: Call, *, runs: int = RUNS, name: str | None = None) -> Trace:
        """Trace `runs` warm runs of a call: where its time goes, on the host and on the devices. It never gates.

        The files are kept under --perf-trace. Raises `MeasurementError` where a trace is being recorded already and
        where no device ran anything, and `RecompilationError` when a run compiles.
        """
        __tracebackhide__ = True
        self._begin(TRACE)
        trace = self._tracing.trace(checked(call, "perf.trace"), name or call.label, runs=runs)
        for metric in self._metrics(TRACE, call.label, trace.metrics, name):
            self._recorder.add(metric)
        return trace
