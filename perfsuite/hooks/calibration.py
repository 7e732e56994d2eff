"""pytest's hooks in a session with --perf-calibrate: which tests run, and what is written and shown at the end."""

import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfsuite.gate.baseline_file import BaselineError
from perfsuite.gate.calibration_file import builds_seen, load_calibration, save_calibration
from perfsuite.report.terminal.calibration import (
    CalibrationOutcome,
    calibration_header,
    calibration_summary,
    nothing_to_calibrate,
)
from perfsuite.report.terminal.header import session_header
from perfsuite.session.calibrating import Calibrating
from perfsuite.session.session import PerfSession


def hooks_of(session: PerfSession, rootpath: Path) -> "CalibrationHooks":
    """The hooks of a session whose mode is to calibrate."""
    assert isinstance(session.mode, Calibrating)
    return CalibrationHooks(session.mode, rootpath)


class CalibrationHooks:
    """pytest's hooks in such a session, in the place of those that judge, save and report."""

    def __init__(self, calibration: Calibrating, rootpath: Path):
        self.calibration = calibration
        self.rootpath = rootpath
        self.left_out = 0
        self.message = ""
        self.saved = False
        self.builds_differ: float | None = None

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
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self.calibration.begin_test()
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
            self.builds_differ = builds_seen(load_calibration(self.calibration.path))
        except BaselineError as error:
            self.message = f"no calibration was saved: {error}"
        if self.message or self.calibration.alarms_too_often:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        calibration = self.calibration
        outcome = CalibrationOutcome(
            calibration.path,
            calibration.results(),
            calibration.unreached,
            self.builds_differ,
            calibration.not_again,
            calibration.alarms_too_often,
            calibration.cores,
        )
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
