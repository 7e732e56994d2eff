"""`Report`: what one session with --perf found, as plain values. Every report is made of it, and of nothing else.

`of_session.report_of` makes one of a finished session; `report.json` is `Report.to_dict`.
"""

import collections
import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, Literal

from perfsuite.gate.verdict import Source
from perfsuite.measure.measurement import Better, Interval, Kind
from perfsuite.measure.serialise import made, plain
from perfsuite.session.plots import Distribution, Line, ProgramRecord

SCHEMA = 1

VERDICTS = ("fail", "inconclusive", "not comparable", "new", "improved", "pass", "not judged", "info")
"""Every verdict of a metric in a report, in the order in which a reader wants them."""

Outcome = Literal["passed", "failed", "skipped", "error"]
OUTCOMES: tuple[Outcome, ...] = ("failed", "error", "skipped", "passed")


@dataclasses.dataclass(frozen=True)
class BaselineFile:
    """A file that metrics were judged by: `metrics` of them are in it. `path` is seen from the project's root."""

    device: str
    path: str
    metrics: int


@dataclasses.dataclass(frozen=True)
class Header:
    """Where and how the session ran.

    `project` is the name of the root folder, `date` the time of the report (ISO 8601, UTC), `seconds` how long the
    session took. `device` is the name of its baseline file. `versions` has python, jax and the others that are
    installed, and perfsuite. `options` are those of perfsuite that were given, as a command line has them.
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
    baselines: tuple[BaselineFile, ...]
    process_count: int = 1
    """Those of `jax.distributed`, which have the devices together."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One metric with one gate that was applied to it: a row of a table.

    A metric with a budget and a baseline makes two rows. `verdict` is one of `VERDICTS`; "not judged" is one whose test
    ended before its baselines were looked at. `limit` and `baseline` are in `unit`. `reason` says why the verdict is no
    plain pass, `cause` the likely cause where one was found, `first` what to do first where neither says it. `detail`
    splits the metric into parts, `baseline_detail` the one on file; `places` says where in the source the parts are.
    `baseline_versions` are those that changed since ("jax 0.10.1 -> 0.10.2").
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
        """Relative to the baseline: 0.02 is 2 % more. None without a baseline, and where that is 0."""
        if self.baseline is None or not self.baseline or not math.isfinite(self.value / self.baseline):
            return None
        return self.value / self.baseline - 1

    @property
    def better_than_baseline(self) -> bool | None:
        """Whether the value lies on the better side of the baseline; None where it is equal or there is none."""
        if self.baseline is None or self.value == self.baseline:
            return None
        return (self.value < self.baseline) == (self.better == "lower")


@dataclasses.dataclass(frozen=True)
class Trace:
    """A trace that was kept. `folder` and `perfetto`, the file for ui.perfetto.dev, are seen from the report's folder.

    `perfetto` is empty where there is none. `metrics` are of kind info; `longest` has (operation, us a run, times a
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

    `id` is pytest's; `file` is seen from the project's root, and `line` (from 1, 0 where not known) is that of the
    test. `function` and `parameters` split the id: "tests/test_a.py::test_step" and "tpu-v5e". `message` says why it
    failed or was skipped.
    """

    __test__ = False  # no test class, whatever its name

    id: str
    function: str
    parameters: str
    file: str
    line: int
    outcome: Outcome
    message: str
    seconds: float
    metrics: tuple[Row, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    lines: tuple[Line, ...] = ()
    programs: tuple[ProgramRecord, ...] = ()
    traces: tuple[Trace, ...] = ()

    @property
    def failed(self) -> bool:
        return self.outcome in ("failed", "error")

    @property
    def counts(self) -> dict[str, int]:
        """How many metrics have each verdict, those first that a reader wants first."""
        return count_verdicts(self.metrics)


@dataclasses.dataclass(frozen=True)
class Missing:
    """A metric that is on file, but that its test, which came to its end, did not make."""

    test: str
    title: str


@dataclasses.dataclass(frozen=True)
class Reported:
    """A metric on file that comes from a document, which `source` names; `device` is the name of its baseline file.

    It never gates.
    """

    device: str
    test: str
    name: str
    value: float
    unit: str
    kind: Kind
    better: Better
    interval: Interval | None
    source: str


@dataclasses.dataclass(frozen=True)
class Beside:
    """A metric on file that was measured or compiled (`provenance`), for the same device as reported ones.

    Those with a unit of the same dimension as a reported one, and a word of its name, are there.
    """

    device: str
    test: str
    name: str
    value: float
    unit: str
    interval: Interval | None
    provenance: str


@dataclasses.dataclass(frozen=True)
class CalibrationRow:
    """What --perf-calibrate found of one workload of this device, on a quiet machine or a busy one.

    `alarms` of `gates` gates of the same code were false. `caught` has (slowdown, gates that caught it, gates), the
    slowdown as a share: 0.03 is 3 %. `effect` is the slowdown that is caught 99 times in 100, None where not known.
    """

    test: str
    workload: str
    busy: bool
    gates: int
    alarms: int
    caught: tuple[tuple[float, int, int], ...]
    effect: float | None


@dataclasses.dataclass(frozen=True)
class SavedChange:
    """What --perf-save did to one metric. `action` is create, update or trim; a value that is not there is None."""

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
    """A baseline file that --perf-save wrote, or left as it was: how many metrics were created and so on."""

    path: str
    written: bool
    created: int
    updated: int
    trimmed: int
    kept: int
    changes: tuple[SavedChange, ...]


@dataclasses.dataclass(frozen=True)
class Report:
    """One session. `notes` are sentences about it as a whole, such as why no baseline was saved."""

    header: Header
    tests: tuple[Test, ...] = ()
    missing: tuple[Missing, ...] = ()
    reported: tuple[Reported, ...] = ()
    beside: tuple[Beside, ...] = ()
    calibration: tuple[CalibrationRow, ...] = ()
    saved: tuple[SavedFile, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> list[tuple[Test, Row]]:
        """Every metric with its test, in the order of the session."""
        return [(test, metric) for test in self.tests for metric in test.metrics]

    @property
    def counts(self) -> dict[str, int]:
        """How many metrics have each verdict, those first that a reader wants first."""
        return count_verdicts(metric for _, metric in self.metrics)

    @property
    def outcomes(self) -> dict[str, int]:
        """How many tests came to each outcome, failed ones first."""
        counted = collections.Counter(test.outcome for test in self.tests)
        return {outcome: counted[outcome] for outcome in OUTCOMES if counted[outcome]}

    @property
    def failures(self) -> list[Test]:
        """The tests that failed."""
        return [test for test in self.tests if test.failed]

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has. A number that it lacks, such as an end of an interval that is not bounded, is a text:
        "inf", "-inf" or "nan".
        """
        return {"schema": SCHEMA, **plain(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Report":
        """The inverse of `to_dict`. Raises `ValueError` for another schema, and for values that are no report."""
        if not isinstance(values, Mapping) or values.get("schema") != SCHEMA:
            found = values.get("schema") if isinstance(values, Mapping) else None
            raise ValueError(f"a report of schema {found!r}; this version of perfsuite reads schema {SCHEMA}")
        try:
            return made(cls, {name: value for name, value in values.items() if name != "schema"})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"no report: {error}") from None


def count_verdicts(metrics: "typing.Iterable[Row]") -> dict[str, int]:
    """How many metrics have each verdict, those first that a reader wants first; without those that none has."""
    counted = collections.Counter(metric.verdict for metric in metrics)
    return {verdict: counted[verdict] for verdict in VERDICTS if counted[verdict]}
