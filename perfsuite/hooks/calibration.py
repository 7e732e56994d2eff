"""A session with --perf-calibrate: every `perf.compare` is a workload whose gates are measured, and nothing gates.

A call needs its test's fixtures, so a workload is measured while its test runs. How many there will be is not known
then, so each gets its share of the time that is left.
"""

import contextlib
import dataclasses
import inspect
import time
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.gate.baseline_file import BaselineError, check_writable
from perfsuite.gate.calibration_file import (
    Calibrated,
    calibration_path,
    load_calibration,
    save_calibration,
)
from perfsuite.measure.stats.error_rates import DECIDING_ERROR
from perfsuite.measure.timing.calibrating import Trial, Workload, count_trials, smallest_caught, too_many_alarms
from perfsuite.measure.timing.comparison import compare_calls
from perfsuite.measure.timing.load import busy_neighbours, cores
from perfsuite.report.terminal.calibration import (
    CalibrationOutcome,
    calibration_header,
    calibration_summary,
    nothing_to_calibrate,
)
from perfsuite.report.terminal.summary import session_header
from perfsuite.session.recorder import Recorder

if TYPE_CHECKING:
    from perfsuite.gate.verdict import Gate
    from perfsuite.measure.call import Call
    from perfsuite.measure.measurement import Metric
    from perfsuite.measure.timing.block import Until
    from perfsuite.measure.timing.comparison import Comparison
    from perfsuite.session.session import PerfSession

_GLANCE = 0.5
"""Seconds, at most, for the comparison that the test itself gets: it may look at its metrics, but nothing is gated."""

_ORDER = (0.03, 0.01, 0.10, 0.02, 0.05, 0.005)
"""Every slowdown of the ladder, the most telling first."""

_MOST_OVER = 1.25
"""How far past its time a calibration may go, so that no workload is without a gate."""

Key = tuple[str, str]
"""A test and its workload."""


class _UngatedRecorder(Recorder):
    """Metrics whose budgets fail nothing: what is over its budget must not keep the workloads after it from running."""

    def budget_gate(self, metric: "Metric", limit: float) -> "Gate":
        return dataclasses.replace(super().budget_gate(metric, limit), verdict="info")

    def failing(self, gates: "Sequence[Gate]") -> "list[Gate]":
        return []


class Calibration:
    """The trials of a session, and the time that they may take: `minutes` in all, without the tests' own set-up."""

    def __init__(self, session: "PerfSession", minutes: float):
        self.session = session
        self.minutes = minutes
        self.trials: dict[bool, dict[Key, list[Trial]]] = {False: {}, True: {}}
        """By whether the machine was busy, and by workload."""
        self.path = calibration_path(session.options.baselines, session.device)
        self.tests = 0
        self.tests_begun = 0
        self.spent = 0.0
        self.unreached = 0
        self.cores = cores()
        self._seen = 0
        self._in_this_test = 0
        self._item: pytest.Item  # set when a test begins
        self._errors: dict[Key, float] = {}
        self._names: Counter[Key] = Counter()

    def begin_test(self, item: "pytest.Item") -> None:
        """Called before each test that may have workloads."""
        self._item = item
        self.tests_begun += 1
        self._in_this_test = 0

    def compare(
        self, test: str, name: str, candidate: "Call", reference: "Call", *, until: "Until", seconds: float
    ) -> "Comparison":
        """Measure gates of `reference` against itself, of `seconds` each; then compare the two for a moment."""
        share = self._share()
        self._seen += 1
        self._in_this_test += 1
        key = self._key(test, f"{name} to {until}")
        # That of the gate which this comparison is in a session that gates the same tests.
        self._errors[key] = self.session.error_of_next_gate(self._item)
        started = time.monotonic()
        try:
            # A test may have more workloads than those before it, whose share was not kept: then each gets one gate.
            if share > 0 or self.spent < _MOST_OVER * self.minutes * 60:
                self._measure(key, reference, until, seconds, started + share, share)
            else:
                self.unreached += 1
            return compare_calls(candidate, reference, until=until, seconds=min(seconds, _GLANCE))
        finally:
            self.spent += time.monotonic() - started

    def metrics(self, test: str) -> Recorder:
        """Where the other instruments of a test record their metrics, for nobody."""
        return _UngatedRecorder(self.session, test, None)

    def results(self) -> list[Calibrated]:
        """What was found, by test and workload, in the order of the tests, first on the quiet machine."""
        environment = self.session.environment
        effects = {busy: smallest_caught(of_workloads) for busy, of_workloads in self.trials.items()}
        keys = dict.fromkeys([*self.trials[False], *self.trials[True]])
        return [
            Calibrated(*key, busy, count_trials(trials, effects[busy][key]), environment, round(1 / self._errors[key]))
            for key in keys
            for busy in (False, True)
            if (trials := self.trials[busy].get(key))
        ]

    def outcome(self) -> CalibrationOutcome:
        """What the terminal shows of it."""
        return CalibrationOutcome(
            self.path,
            self.results(),
            self.unreached,
            self.promised,
            self.least_promised,
            self.alarms_too_often,
            self.cores,
        )

    @property
    def alarms_too_often(self) -> bool:
        """Whether false alarms were more often than the statistics promise."""
        all_trials = [trial for of in self.trials.values() for trials in of.values() for trial in trials]
        gates = [trial for trial in all_trials if not trial.planted]
        return too_many_alarms(sum(trial.alarmed for trial in gates), len(gates), self.promised)

    @property
    def promised(self) -> float:
        """The rate of false alarms that none of the gates is to exceed."""
        return max(self._errors.values(), default=DECIDING_ERROR)

    @property
    def least_promised(self) -> float:
        """The rate of the gates that may err least often."""
        return min(self._errors.values(), default=DECIDING_ERROR)

    def _share(self) -> float:
        """Seconds for the next workload: that much each, if the tests to come have as many as those so far."""
        left = max(self.minutes * 60 - self.spent, 0.0)
        a_test = max(1.0, self._seen / max(self.tests_begun, 1))
        ahead = a_test * max(self.tests - self.tests_begun, 0) + max(a_test - self._in_this_test, 1.0)
        return left / ahead

    def _measure(self, key: Key, reference: "Call", until: "Until", seconds: float, end: float, share: float) -> None:
        """Half of the time on the machine as it is, half with a busy process on each core; at least one gate."""
        workload = Workload(reference, until)
        try:
            order = sorted((False, True), key=lambda busy: sum(self._done(busy).values()))
            for busy, stop in zip(order, (end - share / 2, end), strict=True):
                if busy != order[0] and time.monotonic() + _typical(self.trials[order[0]][key]) / 2 > stop:
                    return
                with busy_neighbours(self.cores) if busy else contextlib.nullcontext():
                    trials = self.trials[busy].setdefault(key, [])
                    while True:
                        trials.append(workload.trial(self._next(busy), seconds=seconds, error=self._errors[key]))
                        # The one that goes past the end half of the time keeps to it on average.
                        if time.monotonic() + _typical(trials) / 2 > stop:
                            break
        finally:
            workload.give_back()

    def _next(self, busy: bool) -> float:
        """A/A gates are to be as many as all others together; else what has been planted least often."""
        done = self._done(busy)
        if 2 * done[0.0] <= sum(done.values()):
            return 0.0
        return min(_ORDER, key=lambda size: done[size])

    def _done(self, busy: bool) -> Counter[float]:
        return Counter(trial.planted for trials in self.trials[busy].values() for trial in trials)

    def _key(self, test: str, workload: str) -> Key:
        key = self.session.test_key(test), workload
        self._names[key] += 1
        return key if self._names[key] == 1 else (key[0], f"{workload} #{self._names[key]}")


def _typical(trials: list[Trial]) -> float:
    return sum(trial.seconds for trial in trials) / len(trials) if trials else 0.0


def start(session: "PerfSession", minutes: float) -> Calibration:
    """The calibration of a session. Raises `BaselineError` where its file is damaged or cannot be written: at once."""
    calibration = Calibration(session, minutes)
    check_writable(session.options.baselines)
    load_calibration(calibration.path)
    return calibration


class CalibrationHooks:
    """pytest's hooks in such a session, in the place of those that judge, save and report."""

    def __init__(self, calibration: Calibration, rootpath: Path):
        self.calibration = calibration
        self.rootpath = rootpath
        self.left_out = 0
        self.message = ""
        self.saved = False

    def pytest_report_header(self) -> list[str]:
        first, *_ = session_header(self.calibration.session, self.rootpath)
        return [first, calibration_header(self.calibration.path, self.calibration.minutes, self.rootpath)]

    @pytest.hookimpl(trylast=True)  # after -k, -m and what they take away
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if not names_compare(item)]
        self.left_out = len(others)
        if others:
            left_out = set(map(id, others))
            items[:] = [item for item in items if id(item) not in left_out]
            config.hook.pytest_deselected(items=others)
        self.calibration.tests = len(items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.calibration.begin_test(item)
        return (yield)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            self.message = "the session did not end by itself, so no calibration was saved"
            return
        results = self.calibration.results()
        if not results:
            self.message = nothing_to_calibrate(self.left_out)
            if exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
            return
        try:
            save_calibration(self.calibration.path, results)
            self.saved = True
        except BaselineError as error:
            self.message = f"no calibration was saved: {error}"
        if self.message or self.calibration.alarms_too_often:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        outcome = self.calibration.outcome()
        calibration_summary(terminalreporter, outcome, self.rootpath, self.saved, self.message)


def names_compare(item: pytest.Item) -> bool:
    """Whether a test, or a function that it reaches by name, names `compare`.

    Others need not run: they would compile and measure for minutes, and have no workload.
    """
    function = inspect.unwrap(getattr(item, "function", None) or names_compare)
    names = _names_reached(function, getattr(item, "cls", None), set()) if function is not names_compare else set()
    return "compare" in names


def _names_reached(function: Any, cls: type | None, seen: set[int]) -> set[str]:
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return set()
    seen.add(id(function))
    names = _names_of(function.__code__)
    reached = set(names)
    # A function of this name in the module, in a module that is named, or in the test's class.
    named = [function.__globals__[name] for name in names if name in function.__globals__]
    spaces = [value for value in named if isinstance(value, types.ModuleType)] + ([cls] if cls else [])
    # Not of other packages: numpy and jax have names for everything.
    spaces = [space for space in spaces if not getattr(space, "__file__", None) or not _installed(space)]
    named += [vars(space)[name] for space in spaces for name in names if name in vars(space)]
    # A function with a decorator around it is reached through what the decorator left.
    for value in [*named, getattr(function, "__wrapped__", None)]:
        if str(getattr(value, "__module__", None)).partition(".")[0] != "perfsuite":
            reached |= _names_reached(value, cls, seen)
    return reached


def _names_of(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_of(constant)
    return names


def _installed(module: Any) -> bool:
    return "site-packages" in Path(module.__file__).parts
