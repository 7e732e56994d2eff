"""`report_of`: the `Report` of a finished session."""

import dataclasses
import datetime
import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfsuite.gate.baseline_file import BaselineError, SaveResult
from perfsuite.gate.environment import VERSION_FIELDS, version_changes
from perfsuite.gate.verdict import Gate
from perfsuite.measure.io import relative
from perfsuite.measure.metric import Metric
from perfsuite.options import options_in_report
from perfsuite.report import text
from perfsuite.report.model import (
    Header,
    Missing,
    Report,
    Row,
    SavedFile,
    Test,
    TraceEntry,
)
from perfsuite.session.records import TestRecord, TraceRecord
from perfsuite.session.session import PerfSession

_OF_METRIC = ("title", "name", "target", "value", "unit", "kind", "better", "interval", "samples", "detail", "places")
_OF_GATE = ("verdict", "source", "limit", "baseline", "baseline_interval", "cause")
_OF_RECORD = ("line", "blamed", "outcome", "message", "seconds", "distributions", "lines", "programs")
_OF_ENVIRONMENT = ("device_kind", "device_count", "processor", "x64", "xla_flags", "process_count")


def report_of(
    session: PerfSession,
    rootpath: Path,
    *,
    folder: Path | None = None,
    gone: Sequence[Gate] = (),
    saved: Sequence[SaveResult] = (),
    not_saved: str = "",
    exit_status: int = 0,
    seconds: float = 0.0,
) -> Report:
    """The report of a session whose tests have ended.

    Paths are relative to `rootpath`; those of traces to `folder`, which will hold the report (default: `rootpath`).
    `gone` are the gates of recorded metrics whose tests are gone; `saved` and `not_saved` are what --perf-save did.
    """
    notes = [not_saved] if not_saved else []
    notes += [note for record in session.records for note in record.notes]
    return Report(
        _header(session, rootpath, int(exit_status), seconds),
        tests=tuple(_tests(session, folder or rootpath)),
        missing=tuple(Missing(gate.test, gate.metric.title) for gate in gone),
        saved=tuple(SavedFile.of(result, rootpath) for result in saved),
        notes=tuple(notes),
    )


def _header(session: PerfSession, rootpath: Path, exit_status: int, seconds: float) -> Header:
    environment = session.environment
    versions = {name: getattr(environment, name) for name in VERSION_FIELDS}
    versions["perfsuite"] = importlib.metadata.version("perfsuite")
    return Header(
        project=rootpath.name,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        exit_status=exit_status,
        device=session.device,
        versions={name: version for name, version in versions.items() if version},
        size=session.options.size,
        options=options_in_report(session.options),
        baselines=Path(relative(session.options.baselines, rootpath)).as_posix(),
        **_copied(environment, _OF_ENVIRONMENT),
    )


def _tests(session: PerfSession, folder: Path) -> Iterator[Test]:
    records = {record.test: record for record in session.records}  # of a test that ran again, the last run
    for record in session.unmeasured:
        if record.test in records:  # it failed once more, after its body
            before = records[record.test]
            message = "\n".join(filter(None, [before.message, record.message]))
            outcome = before.outcome if before.outcome == "failed" else record.outcome
            record = dataclasses.replace(before, outcome=outcome, message=message)
        records[record.test] = record
    for record in records.values():
        yield Test(
            id=record.test,
            file=record.file or record.test.partition("::")[0],
            **_copied(record, _OF_RECORD),
            metrics=tuple(_rows(session, record)),
            traces=tuple(_trace(trace, folder) for trace in record.traces),
        )


def _rows(session: PerfSession, record: TestRecord) -> Iterator[Row]:
    judged = {gate.metric.title for gate in record.gates}
    pairs: list[tuple[Metric, Gate | None]] = [(gate.metric, gate) for gate in record.gates]
    pairs += [(metric, None) for metric in record.metrics if metric.title not in judged]
    for metric, gate in pairs:
        row = _row(metric, gate)
        try:
            entry = session.baselines_of(metric.target).get(session.test_key(record.test), metric.id)
        except BaselineError:
            entry = None
        if entry is not None:
            row = dataclasses.replace(
                row,
                baseline_versions=tuple(version_changes(entry.environment, session.environment_of(metric.target))),
                baseline_detail=dict(entry.detail) if entry.detail else None,
            )
        yield row


def _row(metric: Metric, gate: Gate | None) -> Row:
    row = Row(**_copied(metric, _OF_METRIC), verdict="not judged")
    if gate is None:
        return row
    reason = "\n".join(filter(None, [text.reason(gate), *text.program_lines(gate)]))
    return dataclasses.replace(row, **_copied(gate, _OF_GATE), reason=reason, first=text.first(gate))


def _trace(trace: TraceRecord, folder: Path) -> TraceEntry:
    where = Path(trace.folder)
    perfetto = max(where.glob("plugins/profile/*/perfetto_trace.json.gz"), default=None)
    return TraceEntry(
        name=trace.name,
        folder=_seen_from(where, folder),
        perfetto=_seen_from(perfetto, folder) if perfetto else "",
        runs=trace.runs,
        metrics=tuple(dataclasses.replace(_row(metric, None), verdict="info") for metric in trace.metrics),
        longest=trace.longest,
        note=trace.note,
    )


def _copied(source: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _seen_from(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive
        return path.as_posix()
