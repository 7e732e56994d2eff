"""Budget or baseline applied to a measurement: the one place where something is called good or bad."""

import dataclasses
import math
from typing import Literal

from perfsuite.gate.baseline import Entry
from perfsuite.gate.environment import Environment, incomparable, version_changes
from perfsuite.measure.measurement import Interval, Kind, Measurement

Verdict = Literal["pass", "fail", "inconclusive", "improved", "new", "not comparable", "info"]
Source = Literal["budget", "baseline"]

TOLERANCES: dict[Kind, float] = {"count": 0.0, "size": 0.01, "ratio": 0.05, "time": 1.0}
"""How much worse than its baseline a figure may be, relative.

A paired ratio repeats to 0.65 % at worst, so 5 % is far outside its noise. A plain time on a shared machine does not:
sequential medians of one and the same program were up to 62 % apart (FACTS of the project, 2-core x86-64), so a plain
time fails only when it doubles. Compare two calls to hold a time more closely.
"""


@dataclasses.dataclass(frozen=True)
class Gate:
    """One measurement of one test, with what was allowed and what became of it.

    `limit` is in the figure's unit. `reason` says in words why the verdict is not a plain pass.
    """

    test: str
    measurement: Measurement
    verdict: Verdict
    source: Source | None = None
    limit: float | None = None
    baseline: float | None = None
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.verdict == "fail"

    def to_dict(self) -> dict:
        """Plain values only, as a pytest-xdist worker can send them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "Gate":
        """The inverse of `to_dict`."""
        return cls(**{**values, "measurement": Measurement.from_dict(values["measurement"])})


def against_limit(interval: Interval, limit: float) -> Verdict:
    """Fails only when the whole interval lies above the limit, passes only when none of it does."""
    if interval.low > limit:
        return "fail"
    return "pass" if interval.high <= limit else "inconclusive"


def judge_budget(test: str, measurement: Measurement, limit: float) -> Gate:
    """A measurement against a limit of the test's own."""
    interval = measurement.interval or Interval(measurement.value, measurement.value)
    verdict = against_limit(interval, limit)
    reason = "" if verdict == "pass" else f"{_span(measurement)} against a budget of {limit:.6g} {measurement.unit}"
    return Gate(test, measurement, verdict, "budget", limit, reason=reason)


def judge_baseline(
    test: str,
    measurement: Measurement,
    entry: Entry | None,
    *,
    now: Environment,
    tolerance: float | None = None,
    cause: str = "",
) -> Gate:
    """A measurement made in environment `now` against the figure on file. `cause` is said where it fails."""
    if measurement.kind == "info":
        return Gate(test, measurement, "info", baseline=entry.value if entry else None)
    if entry is None:
        return Gate(test, measurement, "new", reason=f"{measurement.name} has no baseline")
    if why := _why_not_comparable(measurement, entry, now):
        return Gate(
            test, measurement, "not comparable", "baseline", baseline=entry.value, reason=f"{measurement.name}: {why}"
        )
    if tolerance is None or measurement.kind in ("count", "size"):
        tolerance = TOLERANCES[measurement.kind]
    limit, verdict = _against_baseline(measurement, entry.value, tolerance)
    if verdict == "inconclusive" and measurement.interval and math.isinf(measurement.interval.high):
        # The 99th percentile of a few hundred samples has no upper end. It can be seen to be too high, but not to be
        # low enough; saying "inconclusive" of every such tail would teach people not to read the word.
        return Gate(test, measurement, "info", baseline=entry.value)
    reason = ""
    if verdict in ("fail", "inconclusive"):
        reason = (
            f"{_span(measurement)}, the baseline is {entry.value:.6g} {entry.unit}{_allowance(measurement, tolerance)}"
        )
        reason += _growth(measurement, entry)
        if changes := version_changes(entry.environment, now):
            reason += f"; since the baseline: {', '.join(changes)}"
        if cause:
            reason += f"\nlikely cause: {cause}"
    elif verdict == "improved":
        reason = f"{_span(measurement)}, the baseline is {entry.value:.6g}: pytest --perf-save records it"
    return Gate(test, measurement, verdict, "baseline", limit, entry.value, reason)


def ratio_limit(entry: Entry | None, now: Environment, tolerance: float | None) -> float | None:
    """The ratio above which a comparison fails against `entry`, so that it knows when it may stop; None without one."""
    if entry is None or entry.kind != "ratio" or not entry.gates or incomparable("ratio", "x", entry.environment, now):
        return None
    return entry.value * (1 + (TOLERANCES["ratio"] if tolerance is None else tolerance))


def _why_not_comparable(measurement: Measurement, entry: Entry, now: Environment) -> str | None:
    if entry.provenance == "reported":
        return f"the figure on file is reported ({entry.source}), not measured"
    if (entry.unit, entry.kind, entry.better) != (measurement.unit, measurement.kind, measurement.better):
        return (
            f"recorded as {entry.kind} in {entry.unit} ({entry.better} is better), "
            f"now {measurement.kind} in {measurement.unit} ({measurement.better} is better): "
            "pytest --perf-save replaces it"
        )
    return incomparable(measurement.kind, measurement.unit, entry.environment, now)


def _against_baseline(measurement: Measurement, baseline: float, tolerance: float) -> tuple[float, Verdict]:
    interval = measurement.interval or Interval(measurement.value, measurement.value)
    allowed = abs(baseline) * tolerance
    if measurement.better == "higher":  # mirrored, so that one rule judges both
        interval, baseline = Interval(-interval.high, -interval.low), -baseline
    limit = baseline + allowed
    verdict = against_limit(interval, limit)
    if interval.high < baseline - allowed:
        verdict = "improved"
    return (0 - limit if measurement.better == "higher" else limit), verdict  # 0 - limit: never minus zero


def _span(measurement: Measurement) -> str:
    value = f"{measurement.name} is {measurement.value:.6g} {measurement.unit}"
    if measurement.interval is None:
        return value
    return f"{value} [{measurement.interval.low:.6g}, {measurement.interval.high:.6g}]"


def _allowance(measurement: Measurement, tolerance: float) -> str:
    return "" if measurement.kind == "count" else f" and may be {tolerance:.3g} of that worse"


def _growth(measurement: Measurement, entry: Entry) -> str:
    """Which parts of a count grew: the likely cause of a host-call regression."""
    if not measurement.detail or not entry.detail:
        return ""
    # A function that is not on file made at most as many calls as the least busy one that is.
    unlisted = min(entry.detail.values()) if len(entry.detail) >= len(measurement.detail) else 0
    grown = {name: calls - entry.detail.get(name, unlisted) for name, calls in measurement.detail.items()}
    worst = sorted((name for name in grown if grown[name] > 0), key=lambda name: -grown[name])[:3]
    return f"; more calls of {', '.join(f'{name} (+{grown[name]})' for name in worst)}" if worst else ""
