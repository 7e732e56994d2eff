"""The hooks of a session with --perf: judge, collect, save, report. `perfsuite.plugin` loads this only then."""

import contextlib
import functools
import os
import time
import unittest
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import pytest

from perfsuite.gate import messages
from perfsuite.gate.baseline_file import BaselineError, SaveResult, folder_here
from perfsuite.gate.verdict import Result
from perfsuite.hooks import collecting, junit, progress, unittests, workers
from perfsuite.hooks.lost import LostHooks
from perfsuite.measure.compiler_stderr import compilers_silenced
from perfsuite.measure.compiles.observing import observing_compiles
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.io import relative
from perfsuite.measure.private.capabilities import CapabilityLost
from perfsuite.measure.private.compile_events import make_context
from perfsuite.measure.serialise import made, plain
from perfsuite.options import Options, marker_arguments
from perfsuite.processes.launch import LAUNCH, TASK
from perfsuite.report.terminal import session_header, session_summary, trace_summary
from perfsuite.session.absent import absent, gone
from perfsuite.session.blame import blamed
from perfsuite.session.modes import Gating
from perfsuite.session.outcomes import REQUEST, Lost, facts_of, test_id
from perfsuite.session.records import TestRecord, run_again
from perfsuite.session.session import Deferred, PerfSession

if TYPE_CHECKING:  # what only tests that measure need, or reports, or sessions of several processes
    from perfsuite.fixture import Perf
    from perfsuite.processes.group import Group
    from perfsuite.report.model import Report

_SESSION = pytest.StashKey[PerfSession]()
_PERF = pytest.StashKey["Perf"]()
_OBSERVE = pytest.StashKey[Callable[[], None]]()


def start(config: pytest.Config, options: Options) -> None:
    """Start JAX, read the baselines and register the hooks.

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
        group.check_alike(session.options, session.environment)
    session.root = config.rootpath
    config.stash[_SESSION] = session
    config.pluginmanager.register(LostHooks(session), "perfsuite-lost")
    is_worker = is_worker or (group is not None and not group.writes)
    hooks = ActiveHooks(session, config.rootpath, is_worker)
    config.pluginmanager.register(hooks, "perfsuite-active")
    collecting.register(config, session)
    workers.register(config, session)
    if not is_worker and TASK not in config.stash and "GITHUB_ACTIONS" in os.environ:
        from perfsuite.hooks import github  # reports

        github.register_actions(config, hooks.report)
    make_context()
    # Remember what compiles from here on, to explain a later recompilation.
    cleanup = contextlib.ExitStack()
    config.stash[_OBSERVE] = cleanup.enter_context(observing_compiles())
    if group is None or group.writes:
        cleanup.enter_context(progress.shown_below(config))
    config.add_cleanup(cleanup.close)


def _group() -> "Group | None":
    """The processes that measure together; None where this one is alone. Starts JAX's backend."""
    with compilers_silenced():
        if jax.process_count() == 1:
            return None
    from perfsuite.processes.group import join  # most sessions are of one process

    return join()


def _session(config: pytest.Config, options: Options, group: "Group | None", *, in_worker: bool) -> PerfSession:
    task = config.stash.get(TASK, None)
    try:
        options = options._replace(baselines=folder_here(options.baselines))
        with compilers_silenced():  # it starts JAX's backend
            cache = _cache(config) if task is None else task.cache
            return PerfSession(
                options,
                in_worker=in_worker,
                cache=cache,
                target_cache=cache if task is None else task.target_cache,
                group=group,
                mode=Gating if task is None else task.mode,
            )
    except BaselineError as error:
        raise pytest.UsageError(str(error)) from None


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

    item: pytest.Item = request.node
    item.config.stash[_OBSERVE]()
    item.stash[REQUEST] = request
    session = item.config.stash[_SESSION]
    arguments = marker_arguments(item)
    seconds = arguments.get("seconds", session.options.seconds)
    item.stash[_PERF] = Perf(
        session, item, tolerance=arguments.get("tolerance", session.options.tolerance), seconds=seconds
    )
    return item.stash[_PERF]


class GateFailed(pytest.fail.Exception):  # type: ignore[name-defined]
    """A test whose body ended, and whose metrics got worse. The message says all of it.

    `where` is the line of the call that made the first of them; empty for a metric that no call made.
    """

    def __init__(self, failures: Sequence[Result]):
        super().__init__(messages.failure(failures), pytrace=False)
        self.where = messages.explained(failures).where


class ActiveHooks:
    """A separate plugin, so that a session without --perf has none of these hooks."""

    def __init__(self, session: PerfSession, rootpath: Path, is_worker: bool):
        self.session = session
        self.rootpath = rootpath
        self.is_worker = is_worker
        self.rerun: dict[str, TestRecord] = {}
        """Tests that failed and are going to run again, by id."""
        self.gone: list[Result] = []
        """Of recorded metrics whose tests are gone."""
        self.saved: list[SaveResult] = []
        self.not_saved = ""
        self.page: Path | None = None
        """The page of --perf-report, once it is written."""
        self.no_page = ""

    def pytest_report_header(self) -> list[str]:
        return session_header(self.session, self.rootpath)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function):
        with self._judging(pyfuncitem):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):
        if unittests.is_method(item):
            unittests.run_within(item, functools.partial(self._judging, item))
        return (yield)

    @contextlib.contextmanager
    def _judging(self, item: pytest.Item) -> Iterator[None]:
        """Judge every metric against its baseline when the test's body has ended, so that a regression fails it."""
        try:
            yield
        except Deferred:
            raise
        except (pytest.skip.Exception, unittest.SkipTest) as skipped:
            # An instrument that refuses must not hide what was measured before it.
            self._judge(item, ended=False, lost=skipped.sentence if isinstance(skipped, Lost) else "")
            raise
        except CapabilityLost as lost:  # of a method of unittest's: `LostHooks` skips it further out
            self._judge(item, ended=False, lost=str(lost))
            raise
        self._judge(item, ended=True)

    def _judge(self, item: pytest.Item, *, ended: bool, lost: str = "") -> None:
        measured = item.stash.get(_PERF, None)
        if measured is None:
            return
        recorder = measured.recorder
        if self.session.group is not None:
            recorder.metrics.update(self.session.group.worst(item.nodeid, recorder.metrics))
        try:
            again = functools.partial(self.session.mode.measure_again, item)
            results = recorder.judge_baselines(again, ended=ended, lost=lost)
        except BaselineError as error:
            pytest.fail(str(error), pytrace=False)
        if failures := self.session.failures(results):
            raise GateFailed(failures)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        measured = item.stash.get(_PERF, None)
        if measured is not None and call.when == "call":
            junit.add_properties(item, measured.recorder.results)
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, GateFailed):
            file, line, _ = report.location
            where = call.excinfo.value.where or f"{file}:{(line or 0) + 1}"
            report.longrepr = f"{call.excinfo.value}\n\n{where}: {item.name}"
        if measured is not None and report.when == "call":
            line = blamed(measured.recorder.results, call, item.config.rootpath)
            record = measured.recorder.record(
                passed=report.passed,
                used=measured.used,
                not_entered=measured.not_entered,
                blamed=line,
                **facts_of(report, call),
            )
            report.perfsuite = plain(record)  # plain values: pytest-xdist sends them to the main process
        elif not report.passed and item.get_closest_marker("perf") is not None:
            line = blamed((), call, item.config.rootpath)
            facts = facts_of(report, call)
            # Its set-up asked for what does not work here: its baselines are not comparable, as if its body had asked.
            results = absent(self.session, test_id(item), (), {}, facts["lost"]) if facts["lost"] else ()
            record = TestRecord(test_id(item), False, tuple(results), (), blamed=line, **facts)
            setattr(report, "perfsuite" if results else "perfsuite_unmeasured", plain(record))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "perfsuite"):
            record = made(TestRecord, report.perfsuite)
            if report.outcome == "rerun":  # pytest-rerunfailures runs the test again: the last run counts
                self.rerun[record.test] = record
            else:
                self.session.records.append(run_again(record, self.rerun.pop(record.test, None)))
        elif report.when == "call" and report.passed:
            self.session.passed_without_perf.add(report.nodeid)
        if hasattr(report, "perfsuite_unmeasured"):
            self.session.unmeasured.append(made(TestRecord, report.perfsuite_unmeasured))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.is_worker:
            return
        if exitstatus not in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
            self.gone = gone(self.session)
            if self.session.failures(self.gone):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.session.options.save:
            self._save(session, exitstatus)
        if self.session.options.report is not None:
            self._write_report(session, self.session.options.report)

    def _save(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            self.not_saved = "the session did not end by itself, so no baseline was saved"
            return
        self.saved, errors = self.session.save()
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
            gone=self.session.failures(self.gone),
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
            lost = self.session.failures(self.gone)
            last = self._where_all_is(terminalreporter.config)
            session_summary(terminalreporter, self.session, self.rootpath, self.saved, self.not_saved, lost, len(last))
            for note in dict.fromkeys(note for record in self.session.records for note in record.notes):
                terminalreporter.line(note, yellow=True)
            for line in last:
                terminalreporter.line(line)
            if self.no_page:
                terminalreporter.line(self.no_page, red=True, bold=True)

    def _where_all_is(self, config: pytest.Config) -> list[str]:
        """The last lines: where all metrics are. A path is never broken, whatever the width of the terminal."""
        if self.page is None:
            told = config.get_verbosity() != 0 or not any(record.results for record in self.session.records)
            return [] if told else ["all metrics: pytest --perf -v, or --perf-report=DIR for a page of them"]
        return [f"report: {relative(self.page, self.rootpath)}"]
