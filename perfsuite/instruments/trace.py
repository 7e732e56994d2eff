"""`perf.trace` and `perf.trace_block`: where the time goes, on the host and on the devices."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from perfsuite.instruments.base import Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.trace import RUNS, Trace, Traced

TRACE = declare("perf.trace")
TRACE_BLOCK = declare("perf.trace_block")


class TraceInstrument(Instrument):
    def trace(self, call: Call, *, runs: int = RUNS, name: str | None = None) -> Trace:
        """Trace `runs` warm runs of a call: where its time goes, on the host and on the devices. It never gates.

        The files are kept under --perf-trace. Raises `MeasurementError` where a trace is being recorded already and
        where no device ran anything, and `RecompilationError` when a run compiles.
        """
        __tracebackhide__ = True
        self._begin(TRACE)
        trace = self._tracing.trace(checked(call, "perf.trace"), name or call.label, runs=runs)
        self._record_trace(trace, call.label, name)
        return trace

    def trace_block(self, name: str) -> AbstractContextManager[Traced]:
        """Context manager: trace what the block does, compilations included. `.trace` is there once it has ended.

        For what is no single call: a loop, a pipeline. Nothing that gates should be timed in the block.
        """
        return self._block(TRACE_BLOCK, lambda: self._traced(name))

    @contextlib.contextmanager
    def _traced(self, name: str) -> Iterator[Traced]:
        with self._tracing.block(name) as traced:
            yield traced
        self._record_trace(traced.trace, name, name)

    def _record_trace(self, trace: Trace, label: str, name: str | None) -> None:
        for metric in self._metrics(TRACE, label, trace.metrics, name):
            self._recorder.add(metric)
