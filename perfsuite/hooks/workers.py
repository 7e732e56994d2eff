"""Under pytest-xdist: what needs a quiet machine waits until the workers have ended, and runs in the main process.

A worker takes back everything that it reported of such a test, so that the test counts once: the main process collects
it, runs it from its beginning, and gates it. What else a session knows only where tests are collected (which tests
there are, for baselines whose tests are gone) the workers hand over when they end.
"""

import itertools
import re
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from perfsuite.gate.verdict import SAMPLED
from perfsuite.measure.private.capabilities import XDIST
from perfsuite.measure.private.libraries import held_back, sender_of
from perfsuite.measure.words import plural
from perfsuite.options import marker_arguments
from perfsuite.session.outcomes import Deferred, test_id
from perfsuite.session.session import PerfSession

_HANDED_OVER = "perfsuite"


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker: pytest-xdist gives its workers, and only them, a `workerinput`."""
    return hasattr(config, "workerinput")


def is_main(config: pytest.Config) -> bool:
    """Whether this process hands the tests out to workers."""
    return config.getoption("dist", "no") != "no" and bool(config.getoption("tx", None))


def register(config: pytest.Config, session: PerfSession) -> None:
    """Register the hooks of a worker, of the main process of workers, or of a session without any."""
    if is_worker(config):
        config.pluginmanager.register(WorkerHooks(config, session), "perfsuite-worker")
    if is_main(config):
        config.pluginmanager.register(MainHooks(config, session), "perfsuite-workers")


class WorkerHooks:
    """In a worker: take back what was reported of a test that waits for the main process.

    Where no report can be taken back, such a test is skipped, and says why.
    """

    def __init__(self, config: pytest.Config, session: PerfSession):
        self.session = session
        self.sender = sender_of(config.pluginmanager.get_plugins())
        self.deferred = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        if self.sender is None or item.get_closest_marker("perf") is None:
            return (yield)
        self.deferred = False
        with held_back(self.sender, lambda: self.deferred):
            return (yield)

    @pytest.hookimpl(tryfirst=True)  # before any fixture
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A test that says so, or of which a ratio or a time is recorded, need not begin here."""
        if item.get_closest_marker("perf") is None:
            return
        if marker_arguments(item).get("quiet"):
            raise Deferred("@pytest.mark.perf(quiet=True)")
        entries = self.session.judge.entries(test_id(item))
        if any(entry.kind in SAMPLED for entry in entries.values()):
            raise Deferred("its baseline has ratios or times")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo):
        if call.excinfo is not None and isinstance(error := call.excinfo.value, Deferred):
            self.deferred = True
            if XDIST.lost():
                error.msg = f"{error.msg}. {XDIST.sentence('Leaving a test to the main process')}"
        return (yield)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        collected = self.session.collected
        session.config.workeroutput[_HANDED_OVER] = {  # type: ignore[attr-defined]
            name: sorted(getattr(collected, name)) for name in ("files", "tests", "of_targets")
        }


class MainHooks:
    """In the main process: run the tests that no worker reported, when all workers have ended."""

    def __init__(self, config: pytest.Config, session: PerfSession):
        self.config = config
        self.session = session
        self.begun: dict[str, None] = {}
        """The tests that workers began, in order, and `reported` those that anything was reported of."""
        self.reported: set[str] = set()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.begun[self._own_id(nodeid)] = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reported.add(self._own_id(report.nodeid))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over which tests there are. A worker that crashed hands nothing over, and the others have the same."""
        handed = getattr(node, "workeroutput", {}).get(_HANDED_OVER, {})
        for name, values in handed.items():
            setattr(self.session.collected, name, set(values))

    @property
    def waiting(self) -> list[str]:
        """The tests that have not been reported."""
        return [test for test in self.begun if test not in self.reported]

    def _own_id(self, test: str) -> str:
        """The id without the group that workers put behind it."""
        return re.sub(r"@[^\]@:]*\Z", "", test) if self.config.getoption("dist") == "loadgroup" else test

    @pytest.hookimpl(wrapper=True, trylast=True)  # within pytest-cov's, which combines what was covered
    def pytest_runtestloop(self, session: pytest.Session):
        result = yield  # the workers
        if waiting := self.waiting:
            self._say(f"{plural(len(waiting), 'test')} for a quiet machine: now, in the main process")
            items = self._collected(session, waiting)
            for missing in [test for test in waiting if test not in {item.nodeid for item in items}]:
                self._report_missing(missing)
            _run(session, items)
        return result

    def _collected(self, session: pytest.Session, tests: Collection[str]) -> Sequence[pytest.Item]:
        only = _Only(tests)
        self.config.pluginmanager.register(only)
        counted = session.testscollected
        try:
            # Ids are relative to the rootdir, arguments are not. Of a file, so that its tests keep their order.
            files = dict.fromkeys(str(self.config.rootpath / test.partition("::")[0]) for test in tests)
            return [*session.perform_collect([*files])]
        except pytest.UsageError:  # of a file that is not found
            return []
        finally:
            session.testscollected = counted
            self.config.pluginmanager.unregister(only)

    def _report_missing(self, test: str) -> None:
        message = (
            "a worker of pytest-xdist left this test to the main process, which cannot find it: run it with `-n 0`"
        )
        where = (test.partition("::")[0], None, test)
        report = pytest.TestReport(test, where, {"perf": 1}, "failed", message, "setup")
        self.config.hook.pytest_runtest_logreport(report=report)

    def pytest_terminal_summary(self) -> None:
        if waiting := self.waiting:
            left = f"{plural(len(waiting), 'test')} for a quiet machine did not run: the session ended before"
            self._say(left, with_q=True)

    def _say(self, line: str, *, with_q: bool = False) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and (with_q or self.config.get_verbosity() >= 0):
            if self.config.get_terminal_writer().width_of_current_line:
                reporter.line("")
            reporter.line(line)


class _Only:
    """While the main process collects: leaves the tests that wait, whatever other plugins take away."""

    def __init__(self, tests: Collection[str]):
        self.tests = frozenset(tests)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]):
        named = {item.nodeid: item for item in items if item.nodeid in self.tests}
        result = yield
        kept = [item for item in items if item.nodeid in named]
        items[:] = [*kept, *(item for item in named.values() if item not in kept)]
        return result


def _run(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    for item, following in itertools.zip_longest(items, items[1:]):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
