"""`Report`: the results of one session with --perf, as plain values. Every report is made of it, and of nothing else.

`report_of` makes it from a finished session; `report.json` is `Report.to_json`.
"""

import collections
import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from perfsuite.gate import messages
from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.environment import VERSION_FIELDS, Environment
from perfsuite.gate.verdict import Result, Source, Verdict
from perfsuite.measure.io import relative
from perfsuite.measure.metric import Better, Interval, Kind, Metric
from perfsuite.measure.serialise import plain
from perfsuite.options import options_in_report
from perfsuite.session.records import Distribution, FittedLine, ProgramRecord, TestRecord, TraceRecord
from perfsuite.session.session import PerfSession

T = TypeVar("T")

SCHEMA = 1

Outcome = Literal["passed", "failed", "skipped", "error"]
OUTCOMES: tuple[Outcome, ...] = ("failed", "error", "skipped", "passed")


@dataclasses.dataclass(frozen=True)
class Header:
    """Where and how the session ran.

    `project` is the name of the root folder, `date` the time of the report (ISO 8601, UTC), `device` the name of the
    device's file in the folder `baselines`. `options` are those of perfsuite that were given, as on a command line.
    """

    project: str
    date: str
    seconds: float
    exit_status: int
    device: str
    environment: Environment
    perfsuite: str
    size: str
    options: tuple[str, ...]
    baselines: str

    @property
    def versions(self) -> str:
        """`python 3.11.7, jax 0.10.2, perfsuite 0.2`: what is installed."""
        found = {name: getattr(self.environment, name) for name in VERSION_FIELDS} | {"perfsuite": self.perfsuite}
        return ", ".join(f"{name} {version}" for name, version in found.items() if version)


@dataclasses.dataclass(frozen=True)
class Row:
    """One metric with one gate, as a row of a table. A metric with a budget and a baseline has two rows.

    `limit` and `baseline` are in `unit`. `reason` explains a verdict that is no plain pass, `cause` is the likely
    cause, `first` what to do first. `detail` splits the metric into parts.
    """

    title: str
    target: str | None
    value: float
    unit: str
    kind: Kind
    better: Better
    verdict: Verdict
    interval: Interval | None = None
    samples: int | None = None
    source: Source | None = None
    limit: float | None = None
    baseline: float | None = None
    reason: str = ""
    cause: str = ""
    first: str = ""
    detail: dict[str, int] | None = None

    @classmethod
    def of(cls, metric: Metric, result: Result | None) -> "Row":
        """The metric as the gate judged it; not judged without one."""
        names = ("title", "target", "value", "unit", "kind", "better", "interval", "samples", "detail")
        of_metric = _copied(metric, names)
        if result is None:
            return cls(**of_metric, verdict=Verdict.NOT_JUDGED)
        reason = "\n".join(filter(None, [messages.reason(result), *messages.program_lines(result)]))
        of_gate = _copied(result, ("verdict", "source", "limit", "baseline", "cause"))
        return cls(**of_metric, **of_gate, reason=reason, first=messages.first(result))

    @property
    def change(self) -> float | None:
        """Relative to the baseline: 0.02 is 2 % more. None without a baseline, or with a baseline of 0."""
        if not self.baseline or not math.isfinite(self.value / self.baseline):
            return None
        return self.value / self.baseline - 1

    @property
    def explained(self) -> str:
        """The reason, with the likely cause and what to do first."""
        lines = [self.reason]
        lines += [f"likely cause: {self.cause}"] if self.cause else []
        lines += [f"first: {self.first}"] if self.first else []
        return "\n".join(filter(None, lines))


@dataclasses.dataclass(frozen=True)
class Test:
    """One perf test.

    `id` is pytest's. `file` is relative to the project's root; `line` counts from 1, and is 0 where it is unknown.
    `message` says why the test failed or was skipped, and `blamed` is the file and line to look at then, None where
    they are not known. Folders of traces are relative to the report.
    """

    __test__ = False  # not a test class, in spite of its name

    id: str
    file: str
    line: int
    outcome: Outcome
    message: str
    seconds: float
    metrics: tuple[Row, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    lines: tuple[FittedLine, ...] = ()
    programs: tuple[ProgramRecord, ...] = ()
    traces: tuple[TraceRecord, ...] = ()
    blamed: tuple[str, int] | None = None

    @property
    def failed(self) -> bool:
        return self.outcome in ("failed", "error")

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many metrics have each verdict, the gravest first."""
        return _counted(reversed(Verdict), (metric.verdict for metric in self.metrics))

    @property
    def why(self) -> str:
        """The message, and the reasons of the failures that it only names."""
        failures = [row for row in self.metrics if row.verdict == Verdict.FAIL and row.reason not in self.message]
        return "\n\n".join(filter(None, [self.message or "no message", *(row.explained for row in failures)]))


@dataclasses.dataclass(frozen=True)
class Missing:
    """A metric with a baseline whose test is gone."""

    test: str
    title: str


@dataclasses.dataclass(frozen=True)
class SavedChange:
    """How --perf-save changed one metric. `action` is create, update or trim; a created metric has no `old` value."""

    test: str
    name: str
    action: str
    old: float | None
    new: float | None
    unit: str
    direction: str
    versions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class SavedFile:
    """A baseline file after --perf-save: what changed, and how many metrics were kept."""

    path: str
    kept: int
    changes: tuple[SavedChange, ...]

    @classmethod
    def of(cls, result: SaveResult, root: Path) -> "SavedFile":
        """The result of a save; `path` is relative to `root`."""
        changes = tuple(
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
        )
        return cls(Path(relative(result.path, root)).as_posix(), len(result.kept) + result.untouched, changes)

    @property
    def summary(self) -> str:
        """`27 recorded (20 new, 4 better, 3 worse), 2 removed, 98 kept`."""
        recorded = [each for each in self.changes if each.action != "trim"]
        directions = collections.Counter("new" if each.action == "create" else each.direction for each in recorded)
        kinds = ", ".join(f"{directions[kind]} {kind}" for kind in ("new", "better", "worse") if directions[kind])
        parts = [f"{len(recorded)} recorded" + (f" ({kinds})" if kinds else "")]
        if trimmed := len(self.changes) - len(recorded):
            parts.append(f"{trimmed} removed")
        return ", ".join([*parts, f"{self.kept} kept"])

    def changed(self, action: str, direction: str | None = None) -> list[SavedChange]:
        """The changes of one action, and of one direction."""
        return [each for each in self.changes if each.action == action and direction in (None, each.direction)]


@dataclasses.dataclass(frozen=True)
class Report:
    """One session. `notes` are sentences about it as a whole, such as why no baseline was saved."""

    header: Header
    tests: tuple[Test, ...] = ()
    missing: tuple[Missing, ...] = ()
    saved: tuple[SavedFile, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> list[tuple[Test, Row]]:
        """Every metric with its test, in the order of the session."""
        return [(test, metric) for test in self.tests for metric in test.metrics]

    def of_verdict(self, verdict: Verdict) -> list[tuple[Test, Row]]:
        """The metrics with one verdict, in the order of the session."""
        return [(test, metric) for test, metric in self.metrics if metric.verdict == verdict]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many metrics have each verdict, the gravest first."""
        return _counted(reversed(Verdict), (metric.verdict for _, metric in self.metrics))

    @property
    def outcomes(self) -> dict[str, int]:
        """How many tests have each outcome, in the order of `OUTCOMES`."""
        return _counted(OUTCOMES, (test.outcome for test in self.tests))

    @property
    def failures(self) -> list[Test]:
        """The tests that failed."""
        return [test for test in self.tests if test.failed]

    def to_json(self) -> str:
        """The text of `report.json`: strict JSON in ASCII. An infinite number or a NaN is a text in it."""
        values = {"schema": SCHEMA, **plain(self)}
        return json.dumps(values, allow_nan=False, separators=(",", ":")) + "\n"


def report_of(
    session: PerfSession,
    rootpath: Path,
    *,
    folder: Path | None = None,
    gone: Sequence[Result] = (),
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
    header = Header(
        project=rootpath.name,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        exit_status=int(exit_status),
        device=session.judge.device,
        environment=session.judge.environment,
        perfsuite=importlib.metadata.version("perfsuite"),
        size=session.options.size,
        options=options_in_report(session.options),
        baselines=Path(relative(session.options.baselines, rootpath)).as_posix(),
    )
    return Report(
        header,
        tests=tuple(_test(record, folder or rootpath) for record in _records(session)),
        missing=tuple(Missing(result.test, result.metric.title) for result in gone),
        saved=tuple(SavedFile.of(result, rootpath) for result in saved),
        notes=tuple(notes),
    )


def _records(session: PerfSession) -> Iterable[TestRecord]:
    """One record a test: of a test that ran again the last, of one that failed once more after its body both as one."""
    records = {record.test: record for record in session.records}
    for record in session.unmeasured:
        if before := records.get(record.test):
            message = "\n".join(filter(None, [before.message, record.message]))
            outcome = before.outcome if before.outcome == "failed" else record.outcome
            record = dataclasses.replace(before, outcome=outcome, message=message)
        records[record.test] = record
    return records.values()


def _test(record: TestRecord, folder: Path) -> Test:
    names = ("line", "blamed", "outcome", "message", "seconds", "distributions", "lines", "programs")
    return Test(
        id=record.test,
        file=record.file or record.test.partition("::")[0],
        **_copied(record, names),
        metrics=tuple(_rows(record)),
        traces=tuple(dataclasses.replace(each, folder=_seen_from(Path(each.folder), folder)) for each in record.traces),
    )


def _rows(record: TestRecord) -> Iterator[Row]:
    judged = {result.metric.title for result in record.results}
    yield from (Row.of(result.metric, result) for result in record.results)
    yield from (Row.of(metric, None) for metric in record.metrics if metric.title not in judged)


def _copied(source: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _counted(order: Iterable[T], values: Iterable[T]) -> dict[T, int]:
    counts = collections.Counter(values)
    return {each: counts[each] for each in order if counts[each]}


def _seen_from(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive
        return path.as_posix()
