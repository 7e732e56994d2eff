"""The profiler's traces of one perf test: kept where --perf-trace asks for them, and read when a time failed its gate.

A metric that gates is never measured under the profiler, which makes small calls a third slower. So a call is traced
after it was measured, in runs of its own. What goes wrong in them becomes a note and never fails the test.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from perfsuite.gate.diagnosis import EXPLAINING
from perfsuite.measure.call import Call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.profiler.trace_recording import Traced, affordable_runs, in_turns, trace_block, trace_call
from perfsuite.measure.profiler.traces import NothingRanError, Trace
from perfsuite.measure.words import in_a_line
from perfsuite.session.recorder import Recorder
from perfsuite.session.records import TraceRecord, trace_folder, trace_record
from perfsuite.session.session import PerfSession


class Tracing:
    """Traces the calls of one test."""

    def __init__(self, session: PerfSession, test: str, recorder: Recorder):
        self._session = session
        self._test = session.test_key(test)
        self._recorder = recorder

    def keep_trace(self, call: Call, *names: str, us: float = 0.0) -> None:
        """With --perf-trace, trace a call that was measured, one run of which takes about `us`."""
        if (folder := self._folder(*names)) is not None:
            with self._noting(", ".join(names), folder):
                trace = trace_call(call, runs=affordable_runs(us), directory=folder)
                self._record(", ".join(names), folder, trace)

    def trace(self, call: Call, name: str, runs: int) -> Trace:
        """The trace of a call. Raises what `trace_call` raises."""
        folder = self._folder(name)
        trace = trace_call(call, runs=runs, directory=folder)
        self._record(name, folder, trace)
        return trace

    @contextlib.contextmanager
    def block(self, name: str) -> Iterator[Traced]:
        """The trace of a block. Raises what `trace_block` raises."""
        folder = self._folder(name)
        with trace_block(folder) as traced:
            yield traced
        self._record(name, folder, traced.trace)

    def compared(self, candidate: Call, reference: Call, us: float) -> tuple[str, float]:
        """Where the time of a call went, and by how many microseconds a run its devices work longer than its
        reference's: 0 where that is less than half of what the run takes longer. A run takes about `us`.
        """
        longer_us = 0.0

        def words() -> str:
            nonlocal longer_us
            pairs = in_turns(candidate, reference, us=us)
            longer_us = _longer_on_devices(pairs)
            return pairs[-1][0].in_words()

        return _unless_it_fails(words), longer_us

    def longest(self, call: Call, us: float) -> str:
        """What a call spends its time on."""
        return _unless_it_fails(lambda: trace_call(call, runs=affordable_runs(us)).in_words())

    def _record(self, name: str, folder: Path | None, trace: Trace) -> None:
        if folder is not None:
            self._recorder.traces.append(trace_record(name, folder, trace))

    def _folder(self, *names: str) -> Path | None:
        root = self._session.options.traces
        return None if root is None else trace_folder(root, self._test, *names)

    @contextlib.contextmanager
    def _noting(self, name: str, folder: Path) -> Iterator[None]:
        note = ""
        try:
            yield
        except NothingRanError:
            note = "no device ran an operation"
        except MeasurementError as error:
            note = " ".join(str(error).split())
        except Exception as error:  # of the profiler, or of the code under test in a run that it need not make
            note = in_a_line(error)
        if note:
            self._recorder.traces.append(TraceRecord(name, str(folder), note=note))


def _longer_on_devices(pairs: list[tuple[Trace, Trace]]) -> float:
    """By how much longer the devices work for a run of the first call; 0 where that is not so in every pair.

    A busy machine stretches the work of the devices and the run alike, so they are compared within a trace.
    """
    device_us = [one.device_us / one.runs - two.device_us / two.runs for one, two in pairs]
    wall_us = [one.wall_us / one.runs - two.wall_us / two.runs for one, two in pairs]
    longer_us = statistics.median(device_us)
    return longer_us if min(device_us) > 0 and longer_us >= EXPLAINING * statistics.median(wall_us) else 0.0


def _unless_it_fails(words: Callable[[], str]) -> str:
    """The words, or why there are none: an error here must not hide that a gate failed."""
    try:
        return words()
    except NothingRanError:
        return ""  # host calls are the cause that can be named
    except Exception as error:
        return f"where the time went could not be traced: {in_a_line(error)}"
