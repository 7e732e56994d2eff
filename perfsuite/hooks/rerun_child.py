"""A session that was started to measure a test again: what it leaves undone, and what it says when it fails.

It has the command line of the session that started it, so everything that writes (reports, baselines, pytest's cache)
or waits for a person is turned off here, before any plugin is configured.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfsuite.measure.metric import Metric
from perfsuite.measure.serialise import made
from perfsuite.options import options_in_child
from perfsuite.processes.handover import Request, read_request, write_metrics, write_reason
from perfsuite.processes.launch import TASK, Task

if TYPE_CHECKING:  # they import jax: see `_mode`
    from perfsuite.session.mode import Mode
    from perfsuite.session.session import PerfSession

_LONGEST_REASON = 500

TURNED_OFF: dict[str, object] = {
    **options_in_child(),
    # pytest
    "pyargs": False,  # the test is named by its path
    "usepdb": False,
    "trace": False,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "cacheclear": False,
    "xmlpath": None,
    "pastebin": None,
    "log_file": os.devnull,  # which also stands above the ini option
    # pytest-xdist
    "numprocesses": 0,
    "distload": False,
    "dist": "no",
    "tx": [],
    # pytest-benchmark
    "benchmark_json": None,
    "benchmark_save": None,
    "benchmark_autosave": None,
    "benchmark_histogram": None,
    # pytest-html, pytest-json-report, pytest-reportlog, allure-pytest
    "htmlpath": None,
    "json_report": False,
    "report_log": None,
    "allure_report_dir": None,
}
"""Values of options, by pytest's names for them, where the session has them."""


def prepare(config: pytest.Config, folder: Path) -> None:
    """Make the session that of the test asked for. Raises `pytest.UsageError` where `folder` has no request."""
    try:
        request = read_request(folder)
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"perfsuite: no request in {folder} ({error}); the option is for its own use") from None
    for name, value in TURNED_OFF.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    # What was given is emptied when it is first used.
    config.option.basetemp = str(folder / "basetemp")
    config.args = [request.argument]
    config.pluginmanager.register(ChildHooks(folder, request), "perfsuite-again")
    # pytest's cache is an empty one here, so that the user's is left alone; but programs take minutes to compile.
    cache = None if request.cache is None else Path(request.cache)
    config.stash[TASK] = Task(lambda session: _mode(session, folder, request), cache, cache)


def _mode(session: "PerfSession", folder: Path, request: Request) -> "Mode":
    # Not at the top: it imports jax, which conftests that pytest has not loaded yet may set up.
    from perfsuite.session.child_modes import Rerunning

    return Rerunning(session, folder, request)


class ChildHooks:
    """Leaves the test asked for, hands over its metrics where all are asked for, or writes down why there are none."""

    def __init__(self, folder: Path, request: Request):
        self.folder = folder
        self.request = request
        self.found = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # whatever other plugins take away: some choose tests by their number
    def pytest_collection_modifyitems(self, items: list[pytest.Item]):
        named = {item.nodeid: item for item in reversed(items)}
        result = yield
        items[:] = [named[self.request.test]] if self.request.test in named else []
        self.found = self.request.test in named
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._say(f"{report.nodeid or 'the test'} could not be collected there ({_line(report.longreprtext)})")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        what = {"setup": "the test's set-up", "call": "the test"}.get(call.when)
        if what is None or call.excinfo is None:
            return report
        error = call.excinfo.value
        if isinstance(error, pytest.skip.Exception):
            self._say(f"the test was skipped there ({_line(str(error))})")
        elif isinstance(error, pytest.FixtureLookupError):
            self._say(f"{what} failed there (no fixture {error.argname!r})")
        else:
            self._say(f"{what} failed there ({_line(call.excinfo.exconly(tryshort=True))})")
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        metrics = made(list[Metric], report.perfsuite["metrics"]) if hasattr(report, "perfsuite") else []
        if self.request.metric is None and metrics:  # also of a test that fails there, once it has made them
            write_metrics(self.folder, metrics)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo) -> None:
        self._say(f"its session was ended there ({_line(excinfo.exconly(tryshort=True))})")

    @pytest.hookimpl(trylast=True)  # all fixtures have ended
    def pytest_sessionfinish(self) -> None:
        """Say why there is nothing, and leave out the terminal's summary.

        Nobody reads it, and Hypothesis's part of it took 0.8 of 3.3 s of such a process (2-core x86-64 machine).
        """
        what = "using perf" if self.request.metric is None else f"making the comparison {self.request.metric!r}"
        what = f"coming to {self.request.metric}" if self.request.process is not None else what
        self._say(f"the test ended there without {what}" if self.found else "the test was not found there")
        pytest.exit("the rest of this session is left out: another one started it, for what it measures")

    def _say(self, reason: str) -> None:
        """The first reason is the one that counts."""
        if not (self.folder / "reason.json").exists():
            write_reason(self.folder, reason)


def _line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]}..."
