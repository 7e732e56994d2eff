"""The mode of a session with --perf-calibrate: each `perf.compare` measures the gates of its workload; nothing gates.

A call needs its test's fixtures, so a workload is measured while its test runs. How many workloads follow is not known
then, so each gets its share of the time that is left. A third of it is for fresh processes, which make the test's own
comparison again: there both sides are built anew.
"""

import contextlib
import dataclasses
import time
from collections import Counter

from perfsuite.gate.baseline_file import check_writable
from perfsuite.gate.calibration_file import Calibrated, calibration_path, load_calibration
from perfsuite.gate.limits import Compared, Limits
from perfsuite.measure import progress
from perfsuite.measure.stats.error_rates import DECIDING_ERROR
from perfsuite.measure.timing.calibrating import (
    Builds,
    Trial,
    Workload,
    count_trials,
    smallest_caught,
    too_many_alarms,
)
from perfsuite.measure.timing.comparison import Comparison
from perfsuite.measure.timing.load import busy_neighbours, cores
from perfsuite.processes.rerun import ProcessFailed
from perfsuite.session.mode import Pair
from perfsuite.session.modes import SessionMode
from perfsuite.session.session import PerfSession

_GLANCE = 0.5
"""Seconds, at most, for the comparison that the test itself gets: it may look at its metrics, but nothing is gated.

Where fresh processes make it again, it has as long as theirs, because its ratio counts with theirs."""

_FOR_GATES = 2 / 3
"""The share of a workload's time that its gates get; fresh processes have the rest."""

_STARTING = 5.0
"""Seconds that a fresh process takes before it samples, as long as none was seen: Python, JAX, a test's set-up."""

_ORDER = (0.03, 0.01, 0.10, 0.02, 0.05, 0.005)
"""Every slowdown of the ladder, the most telling first."""

_MOST_OVER = 1.25
"""How far past its time a calibration may go, so that no workload is without a gate."""

Key = tuple[str, str]
"""A test and its workload."""


class Calibrating(SessionMode):
    """The mode of a session that calibrates: its trials, and the time that they may take.

    `minutes` are those of all trials, without the tests' own set-up. Raises `BaselineError` where the file is damaged
    or cannot be written. No budget fails, so that the workloads after it run too.
    """

    gates = False

    def __init__(self, session: PerfSession, minutes: float):
        super().__init__(session)
        self.minutes = minutes
        self.trials: dict[bool, dict[Key, list[Trial]]] = {False: {}, True: {}}
        """By whether the machine was busy, and by workload."""
        self.ratios: dict[Key, list[float]] = {}
        """By workload: those of this process and of fresh ones."""
        self.not_again: dict[Key, str] = {}
        """Why a fresh process gave no ratio, by workload."""
        self.path = calibration_path(session.options.baselines, session.device)
        self.tests = 0
        self.tests_begun = 0
        self.spent = 0.0
        self.unreached = 0
        self.cores = cores()
        self._seen = 0
        self._in_this_test = 0
        self._process_seconds: list[float] = []
        check_writable(self.path)
        load_calibration(self.path)

    def begin_test(self) -> None:
        """Called before each test that may have workloads."""
        self.tests_begun += 1
        self._in_this_test = 0

    def part_of(self) -> str:
        return f"calibrating, {self.spent / 60:.0f} of {self.minutes:g} min: "

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        """Measure gates of the pair's reference against itself; then compare the two, here and in fresh processes."""
        share = self._share()
        self._seen += 1
        self._in_this_test += 1
        key = self.session.test_key(pair.item.nodeid), f"{pair.name} to {pair.until}"
        started = time.monotonic()
        try:
            # A test may have more workloads than those before it, whose share was not kept: then each gets one gate.
            if share > 0 or self.spent < _MOST_OVER * self.minutes * 60:
                self._measure(key, pair, started + _FOR_GATES * share, _FOR_GATES * share)
            else:
                self.unreached += 1
            return Compared(self._built_again(key, pair, started + share))
        finally:
            self.spent += time.monotonic() - started

    def results(self) -> list[Calibrated]:
        """What was found, by test and workload, in the order of the tests, first on the quiet machine."""
        environment = self.session.environment
        effects = {busy: smallest_caught(of_workloads) for busy, of_workloads in self.trials.items()}
        found = []
        for key in dict.fromkeys([*self.trials[False], *self.trials[True]]):
            ratios = self.ratios.get(key, [])
            builds = Builds.of(ratios) if len(ratios) > 1 else None
            for busy in (False, True):
                if trials := self.trials[busy].get(key):
                    counts = count_trials(trials, effects[busy][key])
                    found.append(Calibrated(*key, busy, counts, environment, builds))
                    builds = None  # a workload has them once
        return found

    @property
    def alarms_too_often(self) -> bool:
        """Whether false alarms were more often than the statistics promise."""
        all_trials = [trial for of in self.trials.values() for trials in of.values() for trial in trials]
        gates = [trial for trial in all_trials if not trial.planted]
        return too_many_alarms(sum(trial.alarmed for trial in gates), len(gates), DECIDING_ERROR)

    def _share(self) -> float:
        """Seconds for the next workload: that much each, if the tests to come have as many as those so far."""
        left = max(self.minutes * 60 - self.spent, 0.0)
        a_test = max(1.0, self._seen / max(self.tests_begun, 1))
        ahead = a_test * max(self.tests - self.tests_begun, 0) + max(a_test - self._in_this_test, 1.0)
        return left / ahead

    def _measure(self, key: Key, pair: Pair, end: float, share: float) -> None:
        """Measure half of the time on the quiet machine, half with a busy process on each core; at least one gate."""
        workload = Workload(pair.reference, pair.until)
        try:
            order = sorted((False, True), key=lambda busy: sum(self._done(busy).values()))
            for busy, stop in zip(order, (end - share / 2, end), strict=True):
                if busy != order[0] and time.monotonic() + _typical(self.trials[order[0]][key]) / 2 > stop:
                    return
                with busy_neighbours(self.cores) if busy else contextlib.nullcontext():
                    trials = self.trials[busy].setdefault(key, [])
                    while True:
                        trials.append(workload.trial(self._next(busy), seconds=pair.seconds))
                        # The one that goes past the end half of the time keeps to it on average.
                        if time.monotonic() + _typical(trials) / 2 > stop:
                            break
        finally:
            workload.give_back()

    def _built_again(self, key: Key, pair: Pair, end: float) -> Comparison:
        """The pair compared in this process; its ratio is kept with those of as many others as there is time for."""
        if pair.make:  # its interval is over several builds, and scatters less than one build does
            return dataclasses.replace(pair, make=None).compare(seconds=min(pair.seconds, _GLANCE))
        expected = _mean(self._process_seconds) or _STARTING + pair.seconds
        # As with the gates, the one that goes past the end half of the time keeps to it on average.
        if time.monotonic() + pair.seconds + expected / 2 > end:
            return pair.compare(seconds=min(pair.seconds, _GLANCE))
        here = pair.compare()
        ratios = self.ratios.setdefault(key, [here.ratio.value])
        while key not in self.not_again and time.monotonic() + expected / 2 <= end:
            started = time.monotonic()
            try:
                with progress.waiting(f"building {pair.name} anew in process {len(ratios) + 1}"):
                    ratios.append(self._in_a_fresh_process(pair))
            except ProcessFailed as error:
                self.not_again[key] = str(error)
            self._process_seconds.append(time.monotonic() - started)
            expected = _mean(self._process_seconds)
        return here

    def _in_a_fresh_process(self, pair: Pair) -> float:
        """The ratio of the pair as a fresh process sees it. Raises `ProcessFailed`."""
        return self.measure_again(pair.item, metric=pair.metric)[0].value

    def _next(self, busy: bool) -> float:
        """A/A gates are to be as many as all others together; else what has been planted least often."""
        done = self._done(busy)
        if 2 * done[0.0] <= sum(done.values()):
            return 0.0
        return min(_ORDER, key=lambda size: done[size])

    def _done(self, busy: bool) -> Counter[float]:
        return Counter(trial.planted for trials in self.trials[busy].values() for trial in trials)


def _typical(trials: list[Trial]) -> float:
    return _mean([trial.seconds for trial in trials])


def _mean(seconds: list[float]) -> float:
    return sum(seconds) / len(seconds) if seconds else 0.0
