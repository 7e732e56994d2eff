"""The profiler's traces of one perf test: kept where --perf-trace asks for them, and read when a time failed its gate.

A metric that gates is never measured under the profiler, which makes small calls a third slower. So a call is traced
after it was measured, in runs of its own. What goes wrong in them becomes a note and never fails the test.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from perfsuite.gate.environment import environment_from_dict, incomparable
from perfsuite.gate.verdict import TOLERANCES
from perfsuite.measure.call import Call
from perfsuite.measure.measurement import Metric
from perfsuite.measure.profiler.trace_growth import Profile, where_time_went
from perfsuite.measure.profiler.trace_recording import Traced, affordable_runs, profiles, trace_block, trace_call
from perfsuite.measure.profiler.traces import NothingRanError, Trace
from perfsuite.measure.serialise import made, plain
from perfsuite.measure.targets import cache as facts_cache
from perfsuite.measure.timing.scaling import MakeCall
from perfsuite.session.recorder import Recorder
from perfsuite.session.records import TraceRecord, trace_folder, trace_record
from perfsuite.session.session import PerfSession


class Tracing:
    """Traces the calls of one test.

    When baselines are saved, what a run of a timed call spent its time on goes into the cache, as the facts of programs
    do, so that a later failure on the same machine can name what grew since.
    """

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

    def since_baseline(self, call: Call, us: float, metric: Metric) -> str:
        """What grew in a call since `metric` was recorded; the longest operations where that is not known."""
        before = self._baseline(metric)
        of = "since the baseline" if before else "no trace of the baseline is kept here"
        return _unless_it_fails(lambda: where_time_went(before, profiles(call, us=us)[0], of))

    def compared(self, candidate: Call, reference: Call, us: float, metric: Metric, *, by_budget: bool) -> str:
        """What grew where `metric`, a ratio, failed: since its baseline, or else against the reference.

        A run of the longer call takes about `us`.
        """
        if not by_budget and self._baseline(metric) is not None:
            return self.since_baseline(candidate, us, metric)

        def words() -> str:
            now, before = profiles(candidate, reference, us=us)
            return where_time_went(before, now, f"{reference.label} -> {candidate.label}")

        return _unless_it_fails(words)

    def longest(self, call: Call, us: float) -> str:
        """What a call spends its time on."""
        return _unless_it_fails(lambda: where_time_went(None, profiles(call, us=us)[0]))

    def remember(self, call: Call, us: float, *metrics: Metric) -> None:
        """While baselines are saved, keep what the call spends its time on, for a later failure of one of `metrics`."""
        if not self._session.options.save or self._session.cache is None:
            return
        with contextlib.suppress(Exception):  # without it a later failure only says less
            profile = plain(profiles(call, us=us)[0])
            environment = self._session.environment.as_dict()
            for metric in metrics:
                entry = {"value": metric.value, "environment": environment, "profile": profile}
                keep = functools.partial(facts_cache.write, self._session.cache, self._key(metric.name), entry)
                self._recorder.when_saved(keep)

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
        except Exception as error:  # of the profiler, or of the code under test in a run that it need not make
            note = _in_a_line(error)
        if note:
            self._recorder.traces.append(TraceRecord(name, str(folder), note=note))

    def _baseline(self, metric: Metric) -> Profile | None:
        entry = facts_cache.read(self._session.cache, self._key(metric.name))
        recorded = self._session.baselines_of(None).get(self._test, metric.name)
        if entry is None or recorded is None:
            return None
        try:
            value, then = float(entry["value"]), environment_from_dict(entry["environment"])
            profile = made(Profile, entry["profile"])
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):  # of another version of perfsuite
            return None
        if abs(value - recorded.value) > TOLERANCES[recorded.kind] * abs(recorded.value):
            return None  # the baseline was saved elsewhere since
        return None if incomparable("time", "us", then, self._session.environment) else profile

    def _key(self, metric: str) -> str:
        named = json.dumps([self._test, metric, self._session.device])
        return hashlib.sha256(f"profile {named}".encode()).hexdigest()


def _unless_it_fails(words: Callable[[], str]) -> str:
    """The words, or why there are none: an error here must not hide that a gate failed."""
    try:
        return words()
    except NothingRanError:
        return ""  # host calls are the cause that can be named
    except Exception as error:
        return f"what grew could not be traced: {_in_a_line(error)}"


def _in_a_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
