"""pytest's hooks in a session of several processes: the same tests, the same outcomes, the same metrics in all."""

import contextlib
from typing import Any

import pytest

from perfsuite.measure import serialise
from perfsuite.measure.metric import Metric
from perfsuite.options import Options, options_that_must_agree
from perfsuite.processes.group import Group, ProcessesDifferError
from perfsuite.session.recorder import Recorder
from perfsuite.session.session import PerfSession

_OWN = ("processor", "python")
"""What may differ between the hosts of one session."""


def begin(group: Group, config: pytest.Config, options: Options) -> Options:
    """Register the hooks. Returns the options of this process: only process 0 writes a report."""
    config.pluginmanager.register(DistributedHooks(group), "perfsuite-distributed")
    return options if group.writes else options._replace(report=None)


def check_alike(group: Group, session: PerfSession) -> None:
    """Raise `pytest.UsageError` in every process where an option or a version differs between them."""
    environment = {name: value for name, value in session.environment.as_dict().items() if name not in _OWN}
    mine = options_that_must_agree(session.options) | environment
    of_all = group.exchange("the options of the session", mine, kind=dict[str, Any])
    for name in of_all[0]:
        if len({str(each.get(name)) for each in of_all}) > 1:
            seen = ", ".join(f"{each.get(name)} in process {process}" for process, each in enumerate(of_all))
            group.end()
            raise pytest.UsageError(f"the processes of a session must be started alike, but {name} is {seen}")


def keep_worst_metrics(group: Group, test: str, metrics: Recorder) -> None:
    """Replace every metric of a test by the worst of all processes, in all of them.

    Metrics of kind info are process 0's. Counts and sizes that differ are noted in `group.differences`.
    """
    given = serialise.plain(list(metrics.metrics.values()))
    of_all = group.exchange(f"the metrics of {test}", given, kind=list[Metric])
    made = [{each.title: each for each in of_process} for of_process in of_all]
    for process, each in enumerate(made):
        if each.keys() != made[0].keys():
            titles = ", ".join(sorted(each.keys() ^ made[0].keys()))
            pytest.fail(f"process 0 and process {process} recorded different metrics: {titles}", pytrace=False)
    for title in list(metrics.metrics):
        versions = [each[title] for each in made]
        if versions[0].kind == "info":
            metrics.metrics[title] = versions[0]
            continue
        worst = min if versions[0].better == "higher" else max
        metrics.metrics[title] = worst(versions, key=lambda each: each.value)
        if versions[0].kind in ("count", "size") and len({each.value for each in versions}) > 1:
            seen = ", ".join(f"{each.value:,.6g} in process {process}" for process, each in enumerate(versions))
            group.differences.append(f"{test}: {title} differs: {seen}; the worst one counts")


class DistributedHooks:
    """Registered only where there are several processes, before the hooks that read the outcomes which it changes."""

    def __init__(self, group: Group):
        self.group = group
        self._session: pytest.Session | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        mine = [item.nodeid for item in session.items]
        of_all = self.group.exchange("the collected tests", [mine, session.testsfailed], kind=tuple[list[str], int])
        for process, (theirs, failed) in enumerate(of_all):
            if theirs != of_all[0][0] or bool(failed) != bool(of_all[0][1]):
                self.group.end()
                raise pytest.UsageError(_other_tests(of_all, process))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self.group.doing = item.nodeid
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        """Exchange the outcomes of a test's set-up, its body and its end: what fails in one process fails in all."""
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, ProcessesDifferError):
            report.longrepr = str(call.excinfo.value)  # this process's traceback explains nothing
        why = "" if report.passed else _in_a_line(report, call)
        of_all = self._outcomes(report, why)
        others = [(process, *each) for process, each in enumerate(of_all) if process != self.group.process]
        failed = [f"process {process}: {why}" for process, outcome, why in others if outcome == "failed"]
        if failed and report.failed:
            report.sections.append(("perfsuite", "failed in other processes too:\n" + "\n".join(failed)))
        elif failed:
            _fail(report, f"{report.outcome} in this process, failed in {'; '.join(failed)}")
        elif not report.failed and len({outcome for outcome, _ in of_all}) > 1:
            seen = "; ".join(f"{outcome} in process {process}" for process, (outcome, _) in enumerate(of_all))
            _fail(report, f"the processes do not agree: {seen}")
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # Before the baselines are saved.
        self._session = session
        regular = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        if exitstatus not in regular:
            self.group.leave(f"exit status {int(exitstatus)}")
            return
        self.group.doing = "the end of the session"
        statuses = self.group.exchange("the end of the session", int(exitstatus), kind=int, last=True)
        if len(set(statuses)) > 1:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        group = self.group
        if not group.writes:
            terminalreporter.line(f"perfsuite: process {group.process} of {group.count}: process 0 writes the report")
            return
        for line in group.differences:
            terminalreporter.line(line, yellow=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        self.group.leave("it ended early")
        self.group.go(0 if self._session is None else int(self._session.exitstatus))
        self.group.close()

    def _outcomes(self, report: pytest.TestReport, why: str) -> list[tuple[str, str]]:
        """The outcome and its reason in every process."""
        what = f"the end of {report.nodeid} ({report.when})"
        with contextlib.ExitStack() as waiting:
            if not report.passed:
                stuck = self.group.ending_where_stuck(f"{report.outcome} {report.nodeid} ({why})")
                waiting.enter_context(stuck)
            while True:
                # A process that was still measuring learns here that this one is at the end of the test.
                with contextlib.suppress(ProcessesDifferError):
                    return self.group.exchange(what, [report.outcome, why], note=why, kind=tuple[str, str])


def _fail(report: pytest.TestReport, why: str) -> None:
    report.outcome = "failed"
    report.longrepr = why
    if hasattr(report, "wasxfail"):
        del report.wasxfail


def _in_a_line(report: pytest.TestReport, call: pytest.CallInfo) -> str:
    text = call.excinfo.exconly(tryshort=True) if call.excinfo is not None else report.longreprtext
    return " ".join(text.split())[:500]


def _other_tests(of_all: list, process: int) -> str:
    (first, _), (theirs, _) = of_all[0], of_all[process]
    if set(first) != set(theirs):
        only = [f"{test} in process 0 only" for test in first if test not in set(theirs)]
        only += [f"{test} in process {process} only" for test in theirs if test not in set(first)]
        what = "; ".join(only[:3])
    else:
        what = "the same ones in another order, or not all of them could be collected"
    return f"the processes of a session must collect the same tests in the same order, but there are {what}"
