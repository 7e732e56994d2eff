"""The hooks of a session with --perf: judge, collect, save, report. `perfsuite.plugin` loads this only then."""

import contextlib
from pathlib import Path

import pytest

from perfsuite.fixture import Perf
from perfsuite.gate.baseline_file import BaselineError, SaveResult
from perfsuite.measure import compiles
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.quiet import libtpu_silenced
from perfsuite.measure.trace_recording import writable
from perfsuite.options import Options, marker_arguments
from perfsuite.report import terminal, terminal_traces
from perfsuite.session import PerfSession, TestRecord, split_parameters

_SESSION = pytest.StashKey[PerfSession]()
_PERF = pytest.StashKey[Perf]()

_PARALLEL = "other processes share the machine under pytest-xdist, so a timing would be wrong; run it with `-n 0`"


def start(config: pytest.Config, options: Options) -> None:
    """Start JAX, read the baselines and register the hooks. Raises `pytest.UsageError` for damaged baselines and
    for a target that is not known, and where --perf-trace names no folder that can be written.
    """
    _check_targets(options)
    if options.traces is not None:
        try:
            writable(options.traces)
        except MeasurementError as error:
            raise pytest.UsageError(f"--perf-trace: {error}") from None
    # pytest-xdist gives its workers, and only them, a `workerinput`.
    is_worker = hasattr(config, "workerinput")
    try:
        with libtpu_silenced():  # it starts JAX's backend
            session = PerfSession(options, timing_refused=_PARALLEL if is_worker else "", cache=_cache(config))
        hooks: object = ActiveHooks(session, config.rootpath, is_worker)
        if options.calibrate is not None:
            from perfsuite import calibration

            session.calibration = calibration.start(session, options.calibrate)
            hooks = calibration.CalibrationHooks(session.calibration, config.rootpath)
    except BaselineError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_SESSION] = session
    config.pluginmanager.register(hooks, "perfsuite-active")
    # What compiles from here on is remembered, so that a later recompilation can be told from it.
    cleanup = contextlib.ExitStack()
    cleanup.enter_context(compiles.observe())
    config.add_cleanup(cleanup.close)


def _cache(config: pytest.Config) -> Path | None:
    """Where the facts of programs are kept: with pytest's own cache, which CI systems know how to keep."""
    try:
        return Path(config.cache.mkdir("perfsuite")) if getattr(config, "cache", None) is not None else None
    except OSError:  # read-only: then each session compiles anew
        return None


def _check_targets(options: Options) -> None:
    if options.targets:
        from perfsuite.measure.targets import target

        for name in options.targets:
            try:
                target(name)
            except ValueError as error:
                raise pytest.UsageError(f"{options.targets_from}: {error}") from None


def perf_of(item: pytest.Item) -> Perf:
    """The `Perf` of one test."""
    session = item.config.stash[_SESSION]
    arguments = marker_arguments(item)
    item.stash[_PERF] = Perf(
        session,
        item,
        tolerance=arguments.get("tolerance"),
        seconds=arguments.get("seconds", session.options.seconds),
    )
    if session.calibration is not None:
        item.stash[_PERF].figures = session.calibration.figures(item.nodeid)
    return item.stash[_PERF]


class ActiveHooks:
    """Registered as a plugin of its own, so that a session without --perf has none of these hooks."""

    def __init__(self, session: PerfSession, rootpath: Path, is_worker: bool):
        self.session = session
        self.rootpath = rootpath
        self.is_worker = is_worker
        self.saved: list[SaveResult] = []
        self.not_saved = ""

    def pytest_report_header(self) -> list[str]:
        return terminal.header(self.session, self.rootpath)

    @pytest.hookimpl(tryfirst=True)  # before -k and -m take tests away
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        # --last-failed leaves tests out of their file while collecting, so they would look as if they were deleted.
        whole = not config.getoption("lf", False) and not any("::" in argument for argument in config.args)
        if whole:
            self.session.collected = {item.nodeid for item in items}
            self.session.of_targets = {
                split_parameters(item.nodeid)[0]
                for item in items
                if isinstance(item, pytest.Function) and "perf_target" in item.fixturenames
            }

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function):
        """Judge every figure against its baseline when the test's body has ended, so that a regression fails it."""
        try:
            result = yield
        except pytest.skip.Exception:
            # An instrument that refuses (timing under pytest-xdist) must not hide what was measured before it.
            self._judge(pyfuncitem, ended=False)
            raise
        self._judge(pyfuncitem, ended=True)
        return result

    def _judge(self, item: pytest.Item, *, ended: bool) -> None:
        measured = item.stash.get(_PERF, None)
        if measured is None:
            return
        measured.ended = ended
        try:
            gates = measured.judge_baselines()
        except BaselineError as error:
            pytest.fail(str(error), pytrace=False)
        if failures := self.session.failures(gates):
            pytest.fail("\n".join(gate.reason for gate in failures), pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        measured = item.stash.get(_PERF, None)
        if measured is not None and report.when == "call":
            record = TestRecord(
                item.nodeid,
                report.passed,
                measured.ended,
                tuple(measured.figures.gates),
                tuple(measured.figures.measurements.values()),
                measured.programs.compiled if measured.programs else 0,
                measured.programs.cached if measured.programs else 0,
                tuple(measured.traces.records),
            )
            report.perfsuite = record.to_dict()  # plain values: pytest-xdist sends them to the main process
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "perfsuite"):
            self.session.records.append(TestRecord.from_dict(report.perfsuite))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.is_worker or not self.session.options.save:
            return
        if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            self.not_saved = "the session did not end by itself, so no baseline was saved"
            return
        self.saved, errors = self.session.save()
        if errors:
            what = "not" if self.saved else "no baseline was"
            self.not_saved = "\n".join(f"{what} saved: {error}" for error in errors)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.is_worker:
            terminal_traces.summary(terminalreporter, self.session, self.rootpath)
            terminal.summary(terminalreporter, self.session, self.rootpath, self.saved, self.not_saved)
