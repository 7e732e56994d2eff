"""The hooks of a session with --perf: collect, judge, save, report. `perfsuite.plugin` loads this only then."""

import contextlib
import difflib
import functools
import inspect
import itertools
import os
import time
import unittest
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import jax
import pytest

from perfsuite.gate import messages
from perfsuite.gate.baseline_file import BaselineError, SaveResult, folder_here
from perfsuite.gate.verdict import Result
from perfsuite.hooks import progress, workers
from perfsuite.measure.compiler_stderr import compilers_silenced
from perfsuite.measure.compiles.observing import observing_compiles
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.io import relative
from perfsuite.measure.private.capabilities import CapabilityLost
from perfsuite.measure.private.compile_events import make_context
from perfsuite.measure.serialise import from_plain, plain
from perfsuite.options import Options, marker_arguments
from perfsuite.processes import LAUNCH, TASK
from perfsuite.report.terminal import session_header, session_summary, trace_summary
from perfsuite.session.fresh import gating
from perfsuite.session.judge import Judge, split_parameters
from perfsuite.session.outcomes import REQUEST, Deferred, Lost, blamed, facts_of, test_id
from perfsuite.session.records import TestRecord, run_again
from perfsuite.session.session import PerfSession

if TYPE_CHECKING:  # what only tests that measure need, or reports, or sessions of several processes
    from perfsuite.fixture import Perf
    from perfsuite.instruments.base import TestState
    from perfsuite.report.model import Report
    from perfsuite.session.group import Group

_SESSION = pytest.StashKey[PerfSession]()
_STATE: pytest.StashKey["TestState"] = pytest.StashKey()
_OBSERVE = pytest.StashKey[Callable[[], None]]()


def start(config: pytest.Config, options: Options) -> None:
    """Read the baselines of targets and register the hooks. JAX's backend starts when the tests are collected.

    Raises `pytest.UsageError` for damaged baselines, for a target that is not known, and where --perf-trace or
    --perf-report names a folder that cannot be written.
    """
    group = _group()
    if group is not None:
        options = group.begin(config, options)
    is_worker = workers.is_worker(config)
    _check_options(options, reports=not is_worker)
    session = _session(config, options, group, in_worker=is_worker)
    if group is not None:
        group.check_alike(session.options, session.judge.environment)
    session.collected.root = config.rootpath
    config.stash[_SESSION] = session
    is_worker = is_worker or (group is not None and not group.writes)
    hooks = ActiveHooks(session, config.rootpath, is_worker)
    config.pluginmanager.register(hooks, "perfsuite-active")
    if not workers.is_main(config):  # its workers collect, and hand over which tests there are
        config.pluginmanager.register(CollectingHooks(session), "perfsuite-collecting")
    workers.register(config, session)
    if not is_worker and TASK not in config.stash and "GITHUB_ACTIONS" in os.environ:
        from perfsuite.hooks import github  # reports

        github.register_actions(config, hooks.report)
    make_context()
    # Remember what compiles from here on, to explain a later recompilation.
    cleanup = contextlib.ExitStack()
    config.stash[_OBSERVE] = cleanup.enter_context(observing_compiles())
    if group is None or group.writes:
        cleanup.enter_context(progress.logged(config))
    config.add_cleanup(cleanup.close)


def _group() -> "Group | None":
    """The processes that measure together; None where this one is alone. Starts JAX's backend where it is not."""
    if not jax.distributed.is_initialized():
        return None
    with compilers_silenced():
        if jax.process_count() == 1:
            return None
    from perfsuite.session.group import join  # most sessions are of one process

    return join()


def _session(config: pytest.Config, options: Options, group: "Group | None", *, in_worker: bool) -> PerfSession:
    task = config.stash.get(TASK, None)
    cache = target_cache = None
    if group is None:  # what processes find in their caches differs, and with it what they would run
        cache = _cache(config) if task is None else task.cache
        target_cache = cache if task is None else task.target_cache
    try:
        options = options._replace(baselines=folder_here(options.baselines))
        together = 1 if group is None else group.count
        mode = gating(cache, in_worker=in_worker, together=together) if task is None else task.mode()
        files = None if group is None else group.baselines(options)
        judge = Judge(options, gates=mode.gates, files=files)
    except BaselineError as error:
        raise pytest.UsageError(str(error)) from None
    return PerfSession(judge, mode, in_worker=in_worker, cache=cache, target_cache=target_cache, group=group)


def _check_options(options: Options, *, reports: bool) -> None:
    """Raise `pytest.UsageError` for what would fail only at its first use, which may be minutes away."""
    if options.targets:
        from perfsuite.measure.targets.targets import target  # here and below: what few sessions ask for

        try:
            for name in options.targets:
                target(name)
        except ValueError as error:
            raise pytest.UsageError(f"{options.targets_from}: {error}") from None
    if options.traces is not None:
        from perfsuite.measure.trace import writable  # as above

        try:
            writable(options.traces)
        except MeasurementError as error:
            raise pytest.UsageError(f"--perf-trace: {error}") from None
    if options.report is not None and reports:
        from perfsuite.report import files  # as above

        try:
            files.check_folder(options.report)
        except files.ReportError as error:
            raise pytest.UsageError(f"--perf-report: {error}") from None


def _cache(config: pytest.Config) -> Path | None:
    """Where the facts of programs are kept: with pytest's own cache, which CI systems know how to keep."""
    try:
        return Path(config.cache.mkdir("perfsuite")) if getattr(config, "cache", None) is not None else None
    except OSError:  # read-only: then each session compiles again
        return None


def perf_of(request: pytest.FixtureRequest) -> "Perf":
    """The `Perf` of one test, which asks for it."""
    from perfsuite.fixture import Perf  # a session may have no perf test
    from perfsuite.instruments.base import TestState

    item: pytest.Item = request.node
    item.config.stash[_OBSERVE]()
    item.stash[REQUEST] = request
    session = item.config.stash[_SESSION]
    arguments = marker_arguments(item)
    seconds = arguments.get("seconds", session.options.seconds)
    tolerance = arguments.get("tolerance", session.options.tolerance)
    item.stash[_STATE] = TestState(session, item, tolerance=tolerance, seconds=seconds)
    return Perf(item.stash[_STATE])


class GateFailed(pytest.fail.Exception):  # type: ignore[name-defined]
    """A test whose body ended, and whose metrics got worse. The message says all of it.

    `where` is the line of the call that made the first of them; empty for a metric that no call made.
    """

    def __init__(self, failures: Sequence[Result]):
        super().__init__(messages.failure(failures), pytrace=False)
        self.where = messages.by_weight(failures)[0].where


class ActiveHooks:
    """A separate plugin, so that a session without --perf has none of these hooks."""

    def __init__(self, session: PerfSession, rootpath: Path, is_worker: bool):
        self.session = session
        self.rootpath = rootpath
        self.is_worker = is_worker
        self.rerun: dict[str, TestRecord] = {}
        """Tests that failed and are going to run again, by id."""
        self.is_headed = False
        """Whether the header was written."""
        self.saved: list[SaveResult] = []
        self.not_saved = ""
        self.page: Path | None = None
        """The page of --perf-report, once it is written."""
        self.no_page = ""

    def pytest_report_collectionfinish(self, config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
        """Start JAX's backend for the perf tests: conftest files and test modules have set its devices by now."""
        has_perf = any(item.get_closest_marker("perf") is not None for item in items)
        # An error here would end a worker of pytest-xdist without a word: there each test says it.
        return self._header(config) if has_perf and not hasattr(config, "workerinput") else []

    def _header(self, config: pytest.Config) -> list[str]:
        """Raises `pytest.UsageError` where the baselines of the present device cannot be read."""
        try:
            header = session_header(self.session.judge, self.rootpath)
        except BaselineError as error:
            raise pytest.UsageError(str(error)) from None
        if (count := self.session.judge.environment.process_count) > 1 and self.session.group is None:
            raise pytest.UsageError(
                f"JAX has {count} processes, and had no coordination service when the session began: call "
                "jax.distributed.initialize() in the conftest.py of the rootdir"
            )
        shown = config.get_verbosity() >= 0 and not config.option.no_header and not self.is_headed
        self.is_headed = True
        return header if shown else []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item):
        try:
            return (yield)
        except CapabilityLost as lost:
            self._end_without(item, lost)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function):
        with self._judging(pyfuncitem):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):
        # unittest calls the methods of `unittest.TestCase` by itself, and not by the hook above.
        if isinstance(item, pytest.Function) and item.cls is not None and issubclass(item.cls, unittest.TestCase):
            _run_within(item, functools.partial(self._judging, item))
        return (yield)

    @contextlib.contextmanager
    def _judging(self, item: pytest.Item) -> Iterator[None]:
        """Judge every metric against its baseline when the test's body has ended, so that a regression fails it."""
        try:
            yield
        except Deferred:
            raise
        except (pytest.skip.Exception, unittest.SkipTest):
            # An instrument that refuses must not hide what was measured before it.
            self._judge(item, ended=False)
            raise
        except CapabilityLost as lost:
            self._end_without(item, lost)
        else:
            self._judge(item, ended=True)

    def _judge(self, item: pytest.Item, *, ended: bool, lost: str = "") -> None:
        measured = item.stash.get(_STATE, None)
        if measured is None:
            return
        recorder = measured.recorder
        if self.session.group is not None:
            recorder.metrics.update(self.session.group.worst(item.nodeid, recorder.metrics))
        try:
            results = recorder.by_baseline()
            if doubtful := [result.metric.title for result in results if result.doubtful]:
                results = recorder.confirmed(results, self.session.mode.measure_again(item, doubtful))
            failures = recorder.close(results, ended=ended, lost=lost)
        except BaselineError as error:
            pytest.fail(str(error), pytrace=False)
        if failures:
            raise GateFailed(failures)

    def _end_without(self, item: pytest.Item, lost: CapabilityLost) -> NoReturn:
        """Skip a test that asks for what does not work with the libraries that are installed; --perf-strict fails it.

        Its baselines stay as they are.
        """
        # Under --perf-strict what is lost is the message, and what got worse is in the table.
        strict = "new" in self.session.options.strict
        with contextlib.suppress(GateFailed) if strict else contextlib.nullcontext():
            self._judge(item, ended=False, lost=str(lost))
        try:
            self.session.end_without(lost, in_full=item.config.get_verbosity() > 0)
        except BaseException as ended:
            raise ended from None  # a reason needs no traceback of where it was found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        measured = item.stash.get(_STATE, None)
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, GateFailed):
            file, line, _ = report.location
            where = call.excinfo.value.where or f"{file}:{(line or 0) + 1}"
            report.longrepr = f"{call.excinfo.value}\n\n{where}: {item.name}"
        if call.excinfo is not None and isinstance(call.excinfo.value, Lost):
            path, lineno, _ = item.reportinfo()  # the line that raised it is perfsuite's own
            report.longrepr = (os.fspath(path), (lineno or 0) + 1, str(call.excinfo.value))
        if measured is not None and report.when == "call":
            line = blamed(measured.recorder.results, call, item.config.rootpath)
            record = measured.recorder.record(
                passed=report.passed,
                used=measured.used,
                not_entered=measured.not_entered.values(),
                blamed=line,
                **facts_of(report, call),
            )
            report.perfsuite = plain(record)  # plain values: pytest-xdist sends them to the main process
        elif not report.passed and item.get_closest_marker("perf") is not None:
            line = blamed((), call, item.config.rootpath)
            facts = facts_of(report, call)
            # Its set-up asked for what does not work here: its baselines are not comparable, as if its body had asked.
            results = self.session.judge.absent(test_id(item), (), {}, facts["lost"]) if facts["lost"] else ()
            record = TestRecord(test_id(item), False, tuple(results), (), blamed=line, **facts)
            setattr(report, "perfsuite" if results else "perfsuite_unmeasured", plain(record))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "perfsuite"):
            record = from_plain(TestRecord, report.perfsuite)
            if report.outcome == "rerun":  # pytest-rerunfailures runs the test again: the last run counts
                self.rerun[record.test] = record
            else:
                self.session.records.append(run_again(record, self.rerun.pop(record.test, None)))
        elif report.when == "call" and report.passed:
            self.session.collected.without_perf.add(report.nodeid)
        if hasattr(report, "perfsuite_unmeasured"):
            self.session.unmeasured.append(from_plain(TestRecord, report.perfsuite_unmeasured))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session):
        """Report each test that is gone, and has baselines, as one that failed."""
        result = yield
        if not self.is_worker:
            for test, results in itertools.groupby(
                self.session.judge.gone(self.session.collected), lambda result: result.test
            ):
                self._report_gone(session, test, tuple(results))
        return result

    def _report_gone(self, session: pytest.Session, test: str, results: tuple[Result, ...]) -> None:
        ids = {result.metric.id for result in results}
        new = [
            record.test
            for record in self.session.records
            if ids <= {metric.id for metric in record.metrics} and not self.session.judge.entries(record.test)
        ]
        message = messages.absent_test(results, *difflib.get_close_matches(test, new, 1))
        file, _, name = test.partition("::")
        record = TestRecord(test, False, results, (), outcome="failed", message=message, file=file)
        report = pytest.TestReport(test, (file, None, name), {"perf": 1}, "failed", message, "call")
        report.perfsuite, report.perfsuite_says_why = plain(record), True  # type: ignore[attr-defined]
        session.testscollected += 1
        session.config.hook.pytest_runtest_logstart(nodeid=test, location=report.location)
        session.config.hook.pytest_runtest_logreport(report=report)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.is_worker:
            return
        if self.session.options.save:
            self._save(session, exitstatus)
        if self.session.options.report is not None:
            self._write_report(session, self.session.options.report)

    def _save(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            self.not_saved = "the session did not end by itself, so no baseline was saved"
            return
        self.saved, errors = self.session.judge.save(self.session.records, self.session.collected)
        what = "not" if self.saved else "no baseline was"
        lines = [f"{what} saved: {error}" for error in errors]
        if lines:
            self.not_saved = "\n".join(lines)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def report(self, session: pytest.Session, folder: Path | None = None) -> "Report":
        """What every report is made of, once the tests have ended; paths of traces are seen from `folder`."""
        from perfsuite.report.model import report_of  # few sessions write a report

        return report_of(
            self.session,
            self.rootpath,
            folder=folder,
            saved=self.saved,
            not_saved=self.not_saved,
            exit_status=session.exitstatus,
            seconds=time.monotonic() - session.config.stash[LAUNCH].started,
        )

    def _write_report(self, session: pytest.Session, folder: Path) -> None:
        from perfsuite.report import files  # few sessions write a report

        try:
            self.page = files.write_report(self.report(session, folder), folder)
        except files.ReportError as error:
            self.no_page = f"--perf-report: {error}"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.is_worker:
            trace_summary(terminalreporter, self.session, self.rootpath)
            session_summary(terminalreporter, self.session, self.rootpath, self.saved, self.not_saved)
            if self.session.records and workers.is_main(terminalreporter.config):  # it collects what waits, if any
                for line in self._header(terminalreporter.config):
                    terminalreporter.line(line)
            for note in dict.fromkeys(note for record in self.session.records for note in record.notes):
                terminalreporter.line(note, yellow=True)
            for line in self._where_all_is(terminalreporter.config):
                terminalreporter.line(line)
            if self.no_page:
                terminalreporter.line(self.no_page, red=True, bold=True)

    def _where_all_is(self, config: pytest.Config) -> list[str]:
        """The last lines: where all metrics are. A path is never broken, whatever the width of the terminal."""
        if self.page is None:
            shown = config.get_verbosity() != 0 or not any(record.results for record in self.session.records)
            return [] if shown else ["all metrics: pytest --perf -v, or --perf-report=DIR for a page of them"]
        return [f"report: {relative(self.page, self.rootpath)}"]


class CollectingHooks:
    """Notes which tests there are: a recorded metric whose test is gone from a file that was collected whole fails."""

    def __init__(self, session: PerfSession):
        self.collected = session.collected
        self.files: set[str] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.passed:  # a file that is skipped as a whole has no tests, and none is gone
            self.files.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)  # before -k and -m take tests away
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        # --last-failed leaves tests out of their file while collecting, so they would look as if they were deleted.
        if config.getoption("lf", False) or any("::" in argument for argument in config.args):
            return
        self.collected.files = self.files
        self.collected.tests = {item.nodeid for item in items}
        self.collected.of_targets = {
            split_parameters(item.nodeid)[0]
            for item in items
            if isinstance(item, pytest.Function) and "perf_target" in item.fixturenames
        }


def _run_within(item: pytest.Function, around: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Let unittest run the body within `around()`. What that raises is then a failure of the test."""
    body = item.obj

    @functools.wraps(body)
    def within() -> None:
        with around():
            body()

    @functools.wraps(body)
    async def awaited_within() -> None:
        with around():
            await body()

    item.obj = awaited_within if inspect.iscoroutinefunction(body) else within
    # pytest puts `obj` there, but not where it is a coroutine.
    setattr(item.instance, item.name, item.obj)
