"""The profiler's traces of one perf test: kept where --perf-trace asks for them, and read when a time failed its gate.

A metric that gates is never measured under the profiler, which makes small calls a third slower. So a call is traced
after it was measured, in runs of its own. What goes wrong in them becomes a note and never fails the test.
"""

import statistics
from pathlib import Path

from perfsuite.gate.diagnosis import EXPLAINING
from perfsuite.measure.call import Call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.trace import SECONDS, Trace, affordable_runs, trace_call
from perfsuite.measure.words import in_a_line
from perfsuite.session.recorder import Recorder
from perfsuite.session.records import TraceRecord, trace_folder, trace_record
from perfsuite.session.session import PerfSession

ROUNDS = 3
"""What else the machine does makes one trace unlike the next, so a failed comparison traces each call three times."""


class Tracing:
    """Traces the calls of one test."""

    def __init__(self, session: PerfSession, test: str, recorder: Recorder):
        self._root = session.options.traces
        self._test = session.judge.key(test)
        self._recorder = recorder

    def keep_trace(self, call: Call, *names: str, us: float) -> None:
        """With --perf-trace, trace a call that was measured, one run of which takes about `us`."""
        try:
            self.trace(call, *names, runs=affordable_runs(us))
        except Exception as error:  # of the profiler, or of the code under test in a run that it need not make
            record = TraceRecord(", ".join(names), str(self._folder(*names)), note=in_a_line(error))
            self._recorder.traces.append(record)

    def trace(self, call: Call, *names: str, runs: int) -> Trace:
        """The trace of a call. Raises what `trace_call` raises."""
        folder = self._folder(*names)
        trace = trace_call(call, runs=runs, directory=folder)
        if folder is not None:
            self._recorder.traces.append(trace_record(", ".join(names), folder, trace))
        return trace

    def compared(self, candidate: Call, reference: Call, us: float) -> tuple[str, float]:
        """Where the time of a call went, and by how many microseconds a run its devices work longer than its
        reference's: 0 where that is less than half of what the run takes longer. A run takes about `us`.
        """
        runs = affordable_runs(us * ROUNDS)
        try:
            pairs = [
                (trace_call(candidate, runs=runs), trace_call(reference, runs=runs))
                for _ in range(ROUNDS if us < SECONDS * 1e6 else 1)
            ]
            return pairs[-1][0].in_words(), _longer_on_devices(pairs)
        except Exception as error:
            return _untraced(error), 0.0

    def longest(self, call: Call, us: float) -> str:
        """What a call spends its time on."""
        try:
            return trace_call(call, runs=affordable_runs(us)).in_words()
        except Exception as error:
            return _untraced(error)

    def _folder(self, *names: str) -> Path | None:
        return None if self._root is None else trace_folder(self._root, self._test, *names)


def _longer_on_devices(pairs: list[tuple[Trace, Trace]]) -> float:
    """By how much longer the devices work for a run of the first call; 0 where that is not so in every pair.

    A busy machine stretches the work of the devices and the run alike, so they are compared within a trace.
    """
    device_us = [one.device_us / one.runs - two.device_us / two.runs for one, two in pairs]
    wall_us = [one.wall_us / one.runs - two.wall_us / two.runs for one, two in pairs]
    longer_us = statistics.median(device_us)
    return longer_us if min(device_us) > 0 and longer_us >= EXPLAINING * statistics.median(wall_us) else 0.0


def _untraced(error: Exception) -> str:
    """Why there is no trace: an error here must not hide that a gate failed.

    A `MeasurementError` is no news: nothing ran on a device, or the test records a trace itself.
    """
    return "" if isinstance(error, MeasurementError) else f"where the time went could not be traced: {in_a_line(error)}"
