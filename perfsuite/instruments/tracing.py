"""The profiler's traces of one perf test: kept where --perf-trace asks for them, and read when a time failed its gate.

A metric that gates is never measured under the profiler, which makes small calls a third slower. So a call is traced
after it was measured, in runs of its own. What goes wrong in them becomes a note and never fails the test.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from perfsuite.gate.diagnosis import Grown
from perfsuite.measure.call import Call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.profiler.trace_growth import growth_us, where_time_went
from perfsuite.measure.profiler.trace_recording import Traced, affordable_runs, profiles, trace_block, trace_call
from perfsuite.measure.profiler.traces import NothingRanError, Trace
from perfsuite.measure.timing.scaling import MakeCall
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

    def keep_made_trace(self, make_call: MakeCall, size: int, name: str) -> None:
        """With --perf-trace, make the call of one size of a `perf.scaling` again, and trace it."""
        if (folder := self._folder(name, str(size))) is not None:
            with self._noting(name, folder):
                self.keep_trace(make_call(size)[0], name, str(size))

    @contextlib.contextmanager
    def keeping_block(self, name: str) -> Iterator[None]:
        """With --perf-trace, trace what the block does. It must not measure anything that gates."""
        if (folder := self._folder(name)) is None:
            yield
            return
        block = contextlib.ExitStack()
        traced = None
        with self._noting(name, folder):
            traced = block.enter_context(trace_block(folder))
        try:
            yield
        except BaseException:  # the block's own, which nothing of the profiler may replace
            with contextlib.suppress(Exception):
                block.close()
            raise
        if traced is not None:
            with self._noting(name, folder):
                block.close()
                self._record(name, folder, traced.trace)

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

    def compared(self, candidate: Call, reference: Call, us: float) -> tuple[str, Grown]:
        """What takes longer in a call than in its reference, in words and in numbers.

        A run of the longer call takes about `us`.
        """
        grown = Grown(0.0, 0.0)

        def words() -> str:
            nonlocal grown
            now, before = profiles(candidate, reference, us=us)
            grown = Grown(growth_us(before, now), now.run_us - before.run_us)
            return where_time_went(before, now, f"{reference.label} -> {candidate.label}")

        said = _unless_it_fails(words)
        return said, grown

    def longest(self, call: Call, us: float) -> str:
        """What a call spends its time on."""
        return _unless_it_fails(lambda: where_time_went(None, profiles(call, us=us)[0]))

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


def _unless_it_fails(words: Callable[[], str]) -> str:
    """The words, or why there are none: an error here must not hide that a gate failed."""
    try:
        return words()
    except NothingRanError:
        return ""  # host calls are the cause that can be named
    except Exception as error:
        return f"what grew could not be traced: {in_a_line(error)}"
