"""`report_of`: the `Report` of a finished session."""

import dataclasses
import datetime
import importlib.metadata
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_file import BaselineError
from perfsuite.gate.environment import VERSION_FIELDS, version_changes
from perfsuite.gate.verdict import Gate
from perfsuite.measure.measurement import Metric
from perfsuite.options import DEFAULT_SECONDS
from perfsuite.report import text
from perfsuite.report.model import (
    BaselineFile,
    Beside,
    CalibrationRow,
    Header,
    Missing,
    Report,
    Reported,
    Row,
    SavedChange,
    SavedFile,
    Test,
    Trace,
)
from perfsuite.report.terminal.terminal import relative
from perfsuite.session.records import TestRecord
from perfsuite.session.session import split_parameters
from perfsuite.session.trace_record import TraceRecord

if TYPE_CHECKING:
    from perfsuite.gate.baseline_file import SaveResult
    from perfsuite.options import Options
    from perfsuite.session.session import PerfSession

_ANYWHERE = {"time", "over", "with", "ratio", "return", "ready", "seconds"}
"""Words of metrics' names that say nothing about what was measured."""


def report_of(
    session: "PerfSession",
    rootpath: Path,
    *,
    folder: Path | None = None,
    saved: "Sequence[SaveResult]" = (),
    not_saved: str = "",
    exit_status: int = 0,
    seconds: float = 0.0,
) -> Report:
    """The report of a session whose tests have ended.

    Paths are seen from `rootpath`, those of traces from `folder`, where the report will be (`rootpath` where there is
    none). `saved` and `not_saved` are what became of --perf-save.
    """
    notes = [not_saved] if not_saved else []
    files = list(_baselines(session, notes))
    return Report(
        Header(
            project=rootpath.name,
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seconds=seconds,
            exit_status=int(exit_status),
            device=session.device,
            device_kind=session.environment.device_kind,
            device_count=session.environment.device_count,
            processor=session.environment.processor,
            versions=_versions(session),
            x64=session.environment.x64,
            xla_flags=session.environment.xla_flags,
            size=session.options.size,
            options=_options(session.options),
            baselines=tuple(
                BaselineFile(file.device, _posix(relative(path, rootpath)), sum(map(len, file.metrics.values())))
                for path, file in files
            ),
            process_count=session.environment.process_count,
        ),
        tests=tuple(_tests(session, folder or rootpath)),
        missing=() if session.options.save else tuple(Missing(test, title) for test, title in session.missing()),
        reported=tuple(each for _, file in files for each in _reported(file)),
        beside=tuple(each for _, file in files for each in _beside(file)),
        calibration=tuple(_calibration(session, notes)),
        saved=tuple(_saved(result, rootpath) for result in saved),
        notes=tuple(notes),
    )


def _versions(session: "PerfSession") -> dict[str, str]:
    versions = {name: getattr(session.environment, name) for name in VERSION_FIELDS}
    versions["perfsuite"] = importlib.metadata.version("perfsuite")
    return {name: version for name, version in versions.items() if version}


def _options(options: "Options") -> tuple[str, ...]:
    """The options that decide what is measured and how it is judged; the command line may hold what is secret."""
    given = ["--perf-only" if options.only else "--perf"] if not options.save else ["--perf-save"]
    given += ["--perf-strict"] if options.strict else []
    given += [f"--perf-size={options.size}"] if options.size != "small" else []
    given += [f"--perf-seconds={options.seconds:g}"] if options.seconds != DEFAULT_SECONDS else []
    given += [f"--perf-processes={options.processes}"] if options.processes != 1 else []
    given += [f"--perf-target={target}" for target in options.targets]
    return (*given, *(["--perf-trace"] if options.traces is not None else []))


def _baselines(session: "PerfSession", notes: list[str]) -> Iterator[tuple[Path, Baselines]]:
    """Every baseline file beside the present device's, whole or noted; files of calibrations are none."""
    yield session.path, session.baselines
    for path in sorted(session.options.baselines.glob("*.json")):
        if path.stem != session.device and not path.stem.startswith("calibration-"):
            try:
                yield path, session.baselines_of(path.stem)
            except BaselineError as error:
                notes.append(str(error))


def _tests(session: "PerfSession", folder: Path) -> Iterator[Test]:
    records: dict[str, TestRecord] = {}
    for record in session.records:
        records[record.test] = record  # of a test that was run again, the last run
    for record in session.unmeasured:
        if record.test in records:  # it failed once more, after its body
            before = records[record.test]
            message = "\n".join(filter(None, [before.message, record.message]))
            outcome = before.outcome if before.outcome == "failed" else record.outcome
            record = dataclasses.replace(before, outcome=outcome, message=message)
        records[record.test] = record
    for record in records.values():
        function, parameters = split_parameters(record.test)
        yield Test(
            id=record.test,
            function=function,
            parameters=parameters.removesuffix("]"),
            file=record.file or record.test.partition("::")[0],
            line=record.line,
            outcome=record.outcome,  # type: ignore[arg-type]
            message=record.message,
            seconds=record.seconds,
            metrics=tuple(_metrics(session, record)),
            distributions=record.distributions,
            lines=record.lines,
            programs=record.programs,
            traces=tuple(_trace(trace, folder) for trace in record.traces),
        )


def _metrics(session: "PerfSession", record: TestRecord) -> Iterator[Row]:
    judged = set()
    for gate in record.gates:
        judged.add(gate.metric.title)
        yield _metric(gate.metric, gate, _entry(session, record.test, gate.metric))
    for metric in record.metrics:
        if metric.title not in judged:
            yield _metric(metric, None, _entry(session, record.test, metric))


def _entry(session: "PerfSession", test: str, metric: Metric) -> tuple[Entry | None, tuple[str, ...]]:
    """What is on file, and the versions that changed since."""
    try:
        entry = session.baselines_of(metric.target).get(session.test_key(test), metric.name)
    except BaselineError:
        return None, ()
    if entry is None:
        return None, ()
    return entry, tuple(version_changes(entry.environment, session.environment_of(metric.target)))


def _metric(metric: Metric, gate: Gate | None, on_file: tuple[Entry | None, tuple[str, ...]]) -> Row:
    entry, versions = on_file
    return Row(
        title=metric.title,
        name=metric.name,
        target=metric.target,
        value=metric.value,
        unit=metric.unit,
        kind=metric.kind,
        better=metric.better,
        verdict="not judged" if gate is None else gate.verdict,
        interval=metric.interval,
        samples=metric.samples,
        source=gate.source if gate else None,
        limit=gate.limit if gate else None,
        baseline=gate.baseline if gate else None,
        baseline_interval=entry.interval if entry and gate and gate.baseline is not None else None,
        baseline_versions=versions,
        reason=_reason(gate) if gate else "",
        cause=gate.cause if gate else "",
        first=text.first(gate) if gate else "",
        detail=metric.detail,
        baseline_detail=dict(entry.detail) if entry and entry.detail else None,
        places=metric.places,
    )


def _reason(gate: Gate) -> str:
    return "\n".join(filter(None, [text.reason(gate), *text.program_lines(gate)]))


def _trace(trace: TraceRecord, folder: Path) -> Trace:
    where = Path(trace.folder)
    perfetto = max(where.glob("plugins/profile/*/perfetto_trace.json.gz"), default=None)
    return Trace(
        name=trace.name,
        folder=_seen_from(where, folder),
        perfetto=_seen_from(perfetto, folder) if perfetto else "",
        runs=trace.runs,
        metrics=tuple(_metric_of_trace(metric) for metric in trace.metrics),
        longest=trace.longest,
        note=trace.note,
    )


def _metric_of_trace(metric: Metric) -> Row:
    return dataclasses.replace(_metric(metric, None, (None, ())), verdict="info")


def _reported(file: Baselines) -> Iterator[Reported]:
    for test, entries in file.metrics.items():
        for name, entry in entries.items():
            if entry.provenance == "reported":
                yield Reported(
                    file.device,
                    test,
                    name,
                    entry.value,
                    entry.unit,
                    entry.kind,
                    entry.better,
                    entry.interval,
                    entry.source or "",
                )


def _beside(file: Baselines) -> Iterator[Beside]:
    reported = [(_dimension(each.unit), _words(each.name)) for each in _reported(file)]
    if not reported:
        return
    for test, entries in file.metrics.items():
        for name, entry in entries.items():
            dimension, words = _dimension(entry.unit), _words(name)
            if entry.provenance != "reported" and any(
                dimension == wanted and words & having for wanted, having in reported
            ):
                yield Beside(file.device, test, name, entry.value, entry.unit, entry.interval, entry.provenance)


def _dimension(unit: str) -> str:
    return "s" if unit in ("us", "ms", "s") else unit


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", name.lower())) - _ANYWHERE


def _calibration(session: "PerfSession", notes: list[str]) -> Iterator[CalibrationRow]:
    from perfsuite.gate.calibration_file import calibration_path, load_calibration

    try:
        calibrated = load_calibration(calibration_path(session.options.baselines, session.device))
    except BaselineError as error:
        notes.append(str(error))
        return
    for each in calibrated:
        found = each.found
        caught = tuple((size, count, of) for size, (count, of) in sorted(found.caught.items()))
        yield CalibrationRow(each.test, each.workload, each.busy, found.gates, found.alarms, caught, found.effect)


def _saved(result: "SaveResult", rootpath: Path) -> SavedFile:
    return SavedFile(
        path=_posix(relative(result.path, rootpath)),
        written=result.written,
        created=len(result.created),
        updated=len(result.updated()),
        trimmed=len(result.trimmed),
        kept=len(result.kept) + result.untouched,
        changes=tuple(
            SavedChange(
                change.test,
                change.name,
                change.action,
                change.old.value if change.old else None,
                change.new.value if change.new else None,
                (change.new or change.old).unit,  # type: ignore[union-attr]
                change.direction,
                tuple(change.versions),
            )
            for change in result.changes
            if change.action != "keep"
        ),
    )


def _seen_from(path: Path, folder: Path) -> str:
    try:
        return _posix(os.path.relpath(path, folder))
    except ValueError:  # on another drive
        return _posix(str(path))


def _posix(path: str) -> str:
    return path.replace(os.sep, "/")
