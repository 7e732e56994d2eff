"""`Report`: the results of one session with --perf, as plain values. Every report is made of it, and of nothing else.

`of_session.report_of` makes it from a finished session; `report.json` is `Report.to_dict`.
"""

import collections
import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.verdict import Source
from perfsuite.measure.io import relative
from perfsuite.measure.metric import Better, Interval, Kind
from perfsuite.measure.serialise import plain
from perfsuite.session.plots import Distribution, FittedLine, ProgramRecord

SCHEMA = 1

VERDICTS = (
    "fail", "missing", "inconclusive", "not comparable", "new", "improved", "recorded", "pass", "not judged", "info"
)  # fmt: skip
"""Every verdict of a metric in a report, in the order in which a reader wants them."""

Outcome = Literal["passed", "failed", "skipped", "error"]
OUTCOMES: tuple[Outcome, ...] = ("failed", "error", "skipped", "passed")


@dataclasses.dataclass(frozen=True)
class Header:
    """Where and how the session ran.

    `project` is the name of the root folder, `date` the time of the report (ISO 8601, UTC), `device` the name of the
    device's file in the folder `baselines`. `versions` has python, jax, perfsuite and the other libraries that are
    installed. `options` are those of perfsuite that were given, as on a command line.
    """

    project: str
    date: str
    seconds: float
    exit_status: int
    device: str
    device_kind: str
    device_count: int
    processor: str
    versions: dict[str, str]
    x64: bool
    xla_flags: str
    size: str
    options: tuple[str, ...]
    baselines: str
    process_count: int = 1
    """The processes of `jax.distributed`, which share the devices."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One metric with one gate, as a row of a table. A metric with a budget and a baseline has two rows.

    `verdict` is one of `VERDICTS`: "not judged" when the test ended before its baselines were compared. `limit` and
    `baseline` are in `unit`. `reason` explains a verdict that is no plain pass, `cause` is the likely cause, `first`
    what to do first. `detail` splits the metric into parts and `places` locates them in the source;
    `baseline_detail` splits the baseline. `baseline_versions` changed since the baseline ("jax 0.10.1 -> 0.10.2").
    """

    title: str
    name: str
    target: str | None
    value: float
    unit: str
    kind: Kind
    better: Better
    verdict: str
    interval: Interval | None = None
    samples: int | None = None
    source: Source | None = None
    limit: float | None = None
    baseline: float | None = None
    baseline_interval: Interval | None = None
    baseline_versions: tuple[str, ...] = ()
    reason: str = ""
    cause: str = ""
    first: str = ""
    detail: dict[str, int] | None = None
    baseline_detail: dict[str, int] | None = None
    places: dict[str, str] | None = None

    @property
    def change(self) -> float | None:
        """Relative to the baseline: 0.02 is 2 % more. None without a baseline, or with a baseline of 0."""
        if not self.baseline or not math.isfinite(self.value / self.baseline):
            return None
        return self.value / self.baseline - 1


@dataclasses.dataclass(frozen=True)
class TraceEntry:
    """A trace of the profiler. `folder` and `perfetto`, the file for ui.perfetto.dev, are relative to the report.

    `perfetto` is empty without such a file. `metrics` are of kind info; `longest` has (operation, us a run, times a
    run); `note` says why there are no metrics.
    """

    name: str
    folder: str
    perfetto: str
    runs: int
    metrics: tuple[Row, ...]
    longest: tuple[tuple[str, float, float], ...]
    note: str


@dataclasses.dataclass(frozen=True)
class Test:
    """One perf test.

    `id` is pytest's. `file` is relative to the project's root; `line` counts from 1, and is 0 where it is unknown.
    `message` says why the test failed or was skipped, and `blamed` is the file and line to look at then, None where
    they are not known.
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
    traces: tuple[TraceEntry, ...] = ()
    blamed: tuple[str, int] | None = None

    @property
    def failed(self) -> bool:
        return self.outcome in ("failed", "error")

    @property
    def counts(self) -> dict[str, int]:
        """How many metrics have each verdict, in the order of `VERDICTS`."""
        return _counted(VERDICTS, (metric.verdict for metric in self.metrics))


@dataclasses.dataclass(frozen=True)
class Missing:
    """A metric with a baseline whose test is gone."""

    test: str
    title: str


@dataclasses.dataclass(frozen=True)
class SavedChange:
    """What --perf-save did to one metric. `action` is create, update or trim; a created metric has no `old` value."""

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
    """A baseline file after --perf-save, and how many metrics were created, updated, trimmed and kept.

    `written` is False when nothing changed.
    """

    path: str
    written: bool
    created: int
    updated: int
    trimmed: int
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
        counts = (len(result.created), len(result.updated()), len(result.trimmed), len(result.kept) + result.untouched)
        return cls(Path(relative(result.path, root)).as_posix(), result.written, *counts, changes)

    @property
    def summary(self) -> str:
        """`27 recorded (20 new, 4 better, 3 worse), 2 removed, 98 kept`."""
        directions = collections.Counter(
            "new" if (change.action, change.direction) == ("create", "same") else change.direction
            for change in self.changes
            if change.action in ("create", "update")
        )
        kinds = {kind: directions[kind] for kind in ("new", "better", "worse")}
        parts = [f"{count} {kind}" for kind, count in kinds.items() if count]
        recorded = f"{self.created + self.updated} recorded" + (f" ({', '.join(parts)})" if parts else "")
        removed = [f"{self.trimmed} removed"] if self.trimmed else []
        return ", ".join([recorded, *removed, f"{self.kept} kept"])

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

    @property
    def counts(self) -> dict[str, int]:
        """How many metrics have each verdict, in the order of `VERDICTS`."""
        return _counted(VERDICTS, (metric.verdict for _, metric in self.metrics))

    @property
    def outcomes(self) -> dict[str, int]:
        """How many tests have each outcome, in the order of `OUTCOMES`."""
        return _counted(OUTCOMES, (test.outcome for test in self.tests))

    @property
    def failures(self) -> list[Test]:
        """The tests that failed."""
        return [test for test in self.tests if test.failed]

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has; an infinite number or a NaN becomes a text (see `measure.serialise`)."""
        return {"schema": SCHEMA, **plain(self)}

    def to_json(self) -> str:
        """The text of `report.json`: strict JSON, without `NaN` and `Infinity`, in ASCII."""
        return json.dumps(self.to_dict(), allow_nan=False, separators=(",", ":")) + "\n"


def _counted(order: Iterable[str], values: Iterable[str]) -> dict[str, int]:
    counts = collections.Counter(values)
    return {each: counts[each] for each in order if counts[each]}
