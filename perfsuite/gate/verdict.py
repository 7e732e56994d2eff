"""Budget or baseline applied to a metric: the one place where something is called good or bad."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from perfsuite.gate.advice import advice_on
from perfsuite.gate.baseline import Entry
from perfsuite.gate.environment import HOST_CALLS_UNIT, Environment, incomparable, version_changes
from perfsuite.measure.measurement import Interval, Kind, Metric

Verdict = Literal["pass", "fail", "inconclusive", "improved", "new", "not comparable", "info"]
Source = Literal["budget", "baseline"]

TOLERANCES: dict[Kind, float] = {"count": 0.0, "size": 0.01, "ratio": 0.05, "time": 1.0}
"""How much worse than its baseline a metric may be, relative.

A paired ratio repeats to 0.65 % at worst, so 5 % is far outside its noise. A plain time on a shared machine does not:
sequential medians of one and the same program were up to 62 % apart (FACTS of the project, 2-core x86-64), so a plain
time fails only when it doubles. Compare two calls to hold a time more closely.
"""


PARTS_NAMED = 3
"""How many parts of a metric a message names."""


@dataclasses.dataclass(frozen=True)
class Gate:
    """One metric of one test, with what was allowed and what became of it.

    `limit` is in the metric's unit. `reason` says in words why the verdict is not a plain pass, and `first` what to do
    first where it failed and the reason does not say that itself.
    """

    test: str
    metric: Metric
    verdict: Verdict
    source: Source | None = None
    limit: float | None = None
    baseline: float | None = None
    reason: str = ""
    first: str = ""

    @property
    def failed(self) -> bool:
        return self.verdict == "fail"

    def to_dict(self) -> dict:
        """Plain values only, as a pytest-xdist worker can send them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "Gate":
        """The inverse of `to_dict`."""
        return cls(**{**values, "metric": Metric.from_dict(values["metric"])})


def against_limit(interval: Interval, limit: float) -> Verdict:
    """Fails only when the whole interval lies above the limit, passes only when none of it does."""
    if interval.low > limit:
        return "fail"
    return "pass" if interval.high <= limit else "inconclusive"


def judge_budget(test: str, metric: Metric, limit: float) -> Gate:
    """A metric against a limit of the test's own."""
    interval = metric.interval or Interval(metric.value, metric.value)
    verdict = against_limit(interval, limit)
    reason = (
        "" if verdict == "pass" else f"{_span(metric)} against a budget of {_number(limit, metric.kind)} {metric.unit}"
    )
    return Gate(test, metric, verdict, "budget", limit, reason=reason)


def judge_baseline(
    test: str,
    metric: Metric,
    entry: Entry | None,
    *,
    now: Environment,
    tolerance: float | None = None,
    cause: str = "",
) -> Gate:
    """A metric made in environment `now` against the metric on file. `cause` is said where it fails."""
    if metric.kind == "info":
        return Gate(test, metric, "info", baseline=entry.value if entry else None)
    if entry is None:
        return Gate(test, metric, "new", reason=f"{metric.title} has no baseline")
    if why := _why_not_comparable(metric, entry, now):
        return Gate(test, metric, "not comparable", "baseline", baseline=entry.value, reason=f"{metric.title}: {why}")
    if tolerance is None or metric.kind in ("count", "size"):
        tolerance = TOLERANCES[metric.kind]
    limit, verdict = _against_baseline(metric, entry.value, tolerance)
    if verdict == "inconclusive" and metric.interval and math.isinf(metric.interval.high):
        # The 99th percentile of a few hundred samples has no upper end. It can be seen to be too high, but not to be
        # low enough; saying "inconclusive" of every such tail would teach people not to read the word.
        return Gate(test, metric, "info", baseline=entry.value)
    reason = first = ""
    if verdict in ("fail", "inconclusive"):
        reason = (
            f"{_span(metric)}, the baseline is {_number(entry.value, entry.kind)} {entry.unit}"
            f"{_allowance(metric, tolerance)}"
        )
        reason += _growth(metric, entry)
        if changes := version_changes(entry.environment, now):
            reason += f"; since the baseline: {', '.join(changes)}"
        if cause:
            reason += f"\nlikely cause: {cause}"
        elif verdict == "fail":
            first = _first(metric, entry, changes)
    elif verdict == "improved":
        on_file = _number(entry.value, entry.kind)
        reason = f"{_span(metric)}, the baseline is {on_file}: pytest --perf-save records it"
    return Gate(test, metric, verdict, "baseline", limit, entry.value, reason, first)


def ratio_limit(entry: Entry | None, now: Environment, tolerance: float | None) -> float | None:
    """The ratio above which a comparison fails against `entry`, so that it knows when it may stop; None without one."""
    if entry is None or entry.kind != "ratio" or not entry.gates or incomparable("ratio", "x", entry.environment, now):
        return None
    return entry.value * (1 + (TOLERANCES["ratio"] if tolerance is None else tolerance))


def _why_not_comparable(metric: Metric, entry: Entry, now: Environment) -> str | None:
    if entry.provenance == "reported":
        return f"the metric on file is reported ({entry.source}), not measured"
    if (entry.unit, entry.kind, entry.better) != (metric.unit, metric.kind, metric.better):
        return (
            f"recorded as {entry.kind} in {entry.unit} ({entry.better} is better), "
            f"now {metric.kind} in {metric.unit} ({metric.better} is better): "
            "pytest --perf-save replaces it"
        )
    return incomparable(metric.kind, metric.unit, entry.environment, now)


def _against_baseline(metric: Metric, baseline: float, tolerance: float) -> tuple[float, Verdict]:
    interval = metric.interval or Interval(metric.value, metric.value)
    allowed = abs(baseline) * tolerance
    if metric.better == "higher":  # mirrored, so that one rule judges both
        interval, baseline = Interval(-interval.high, -interval.low), -baseline
    limit = baseline + allowed
    verdict = against_limit(interval, limit)
    # No time lies 100 % below another: where twice as long is worse, half as long is better.
    better = baseline / (1 + tolerance) if metric.kind == "time" and baseline > 0 else baseline - allowed
    if interval.high < better:
        verdict = "improved"
    return (0 - limit if metric.better == "higher" else limit), verdict  # 0 - limit: never minus zero


def _span(metric: Metric) -> str:
    value = f"{metric.title} is {_number(metric.value, metric.kind)} {metric.unit}"
    if metric.interval is None:
        return value
    return f"{value} [{metric.interval.low:.6g}, {metric.interval.high:.6g}]"


def _number(value: float, kind: Kind) -> str:
    """Counts and sizes are exact, so they are written out."""
    return f"{value:,.0f}" if kind in ("count", "size") and value == int(value) else f"{value:.6g}"


def _allowance(metric: Metric, tolerance: float) -> str:
    return "" if metric.kind == "count" else f" and may be {tolerance:.3g} of that worse"


def _first(metric: Metric, entry: Entry, changes: Sequence[str]) -> str:
    """The one thing to do first about a metric that failed; empty where its reason has advice."""
    places = metric.places or {}
    named = [places[part] for part, _ in _parts(metric, entry) if part in places]
    if any(map(advice_on, named)):
        return ""
    if changes:
        return f"run it with the versions of the baseline, too ({', '.join(changes)}): is it the upgrade, or the code?"
    if named:
        return f"look at {named[0]}"
    return "if that is meant, record it: pytest --perf-save"


def _parts(metric: Metric, entry: Entry) -> list[tuple[str, str]]:
    """The parts of the metric that got worse, by how much, the most important ones first."""
    now, then = metric.detail or {}, entry.detail or {}
    if (metric.value and not now) or (entry.value and not then):
        return []  # not split on both sides; nothing has no parts
    if metric.better == "lower":
        return _grown(then, entry.value, now)[:PARTS_NAMED]
    return _grown(now, metric.value, then)[:PARTS_NAMED]


def _growth(metric: Metric, entry: Entry) -> str:
    """Which parts of the metric got worse, and where they are now: the likely cause."""
    parts, places = _parts(metric, entry), metric.places or {}
    if not parts:
        return ""
    if metric.better == "lower":
        verb, sign = ("more calls of" if metric.unit == HOST_CALLS_UNIT else "grew:"), "+"
    else:
        verb, sign = "fell:", "-"
    if metric.unit == HOST_CALLS_UNIT:
        named = ", ".join(f"{name} ({sign}{amount})" for name, amount in parts)
        return f"; {verb} {named}{_made_in([places[name] for name, _ in parts if name in places])}"
    named = ", ".join(
        f"{name} ({sign}{amount})" + (f" at {places[name]}" if name in places else "") for name, amount in parts
    )
    return f"; {verb} {named}"


def _made_in(places: list[str]) -> str:
    """What the user's code calls that makes these host calls, and what to do about it."""
    known = list(dict.fromkeys(place for place in places if " at " in place or advice_on(place)))
    advice = list(dict.fromkeys(filter(None, map(advice_on, known))))
    return (f", made in {', '.join(known)}" if known else "") + "".join(f"\n  {text}" for text in advice)


def _grown(small: Mapping[str, int], total: float, large: Mapping[str, int]) -> list[tuple[str, str]]:
    """The parts in `large` that are more than in `small`, whose metric is `total`: their names and by how much.

    Those that grew most come first. Both lists may hold the largest parts only, so of one that is not in `small` only
    the most that it can have been is known. One that may be new comes last where it need not have grown at all.
    """
    # A part that is off the list is no larger than the last on it, nor than what the list leaves of the metric. A list
    # that is shorter than the other was not cut.
    left = int(total) - sum(small.values())
    unlisted = max(0, min([left, *small.values()])) if len(small) >= len(large) else 0
    grown, perhaps_new = [], []
    for name, value in large.items():
        if name in small or unlisted == 0:
            grown.append((value - small.get(name, 0), name, ""))
        elif value > unlisted:
            grown.append((value - unlisted, name, " or more"))
        elif value > 0:
            perhaps_new.append((value, name))
    parts = [(name, f"{by}{more}") for by, name, more in sorted(grown, key=lambda part: -part[0]) if by > 0]
    return parts + [(name, f"{value} at most") for value, name in sorted(perhaps_new, key=lambda part: -part[0])]
