"""A budget or a baseline applied to a metric: nothing else calls a metric good or bad."""

import dataclasses
import enum
import math
import re
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from perfsuite.gate.baseline import DIGEST_MARK, Entry, digest, is_guard, metric_of
from perfsuite.gate.environment import OTHER_PROCESSOR, Environment, incomparable, other_processor, version_changes
from perfsuite.measure.metric import INSTRUCTIONS, OTHERS, Estimate, Interval, Kind, Metric


class Verdict(enum.IntEnum):
    """What a gate says of a metric: the larger, the graver. Its text is its word: `not comparable`."""

    INFO = enum.auto()
    PASS = enum.auto()
    NOT_JUDGED = enum.auto()
    """The test ended before its baselines were compared."""
    RECORDED = enum.auto()
    """Whatever a baseline said of it: --perf-save records it."""
    IMPROVED = enum.auto()
    NEW = enum.auto()
    NOT_COMPARABLE = enum.auto()
    INCONCLUSIVE = enum.auto()
    MISSING = enum.auto()
    FAIL = enum.auto()

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    @property
    def fails(self) -> bool:
        """Whether it fails the test."""
        return self in (Verdict.FAIL, Verdict.MISSING)

    @property
    def color(self) -> str:
        """The color of the terminal and of pages; empty for none."""
        return _COLORS.get(self, "")


_COLORS = {
    Verdict.FAIL: "red",
    Verdict.MISSING: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_COMPARABLE: "yellow",
    Verdict.NEW: "cyan",
    Verdict.RECORDED: "cyan",
    Verdict.IMPROVED: "green",
}

Source = Literal["budget", "baseline"]

TOLERANCES: dict[Kind, float] = {"count": 0.0, "size": 0.01, "ratio": 1.0, "time": 1.0}
"""How much worse than its baseline a metric may be, relative. See `SAMPLED`."""

SAMPLED: tuple[Kind, ...] = ("ratio", "time")
"""What is of another day, and another load: it fails only far outside, in this process and in a fresh one."""

PARTS_NAMED = 3
"""How many parts of a metric a gate names."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a metric that got worse, by `amount` in the metric's unit: negative where it fell and more is better.

    `place` is where in the source the part is now.
    """

    name: str
    amount: float
    place: str = ""


@dataclasses.dataclass(frozen=True)
class Rerun:
    """What a fresh process saw of a metric that is over its limit; `failure` says why it gave nothing."""

    seen: Estimate | None = None
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """One metric of one test, with its limit and its verdict. `gate.messages` makes the sentences of it.

    `limit` and `baseline`, the recorded value, are in the metric's unit; `tolerance` is the share by which the
    metric may be worse than that. `incomparable` says why the two cannot be compared. Where the verdict is a
    failure or open, `grown` are the parts that got worse, `versions` those that changed since the baseline, `cause`
    is the likely cause as the instrument knows it, `unexplained` what it knows where it finds none, and `to_settle`
    what would decide an open one. `note` is an instrument's own finding, in place of value and limit. `program` is
    how a program differs from that of the baseline, a line a difference.
    `strict` is the verdict that --perf-strict made a failure. `recorded_as` is what the baseline's metric is called
    where another baseline of the test has the metric's own name: calls of one instrument changed places. `where` is
    the line of the call that made a metric which fails. `processor` is that of the baseline, where the gate is open
    because it is another one than here. `ratio` is of a time that many processes of two sides took, which
    `perfsuite against` judges in place of the value: that time over the baseline.
    """

    test: str
    metric: Metric
    verdict: Verdict
    source: Source | None = None
    limit: float | None = None
    tolerance: float | None = None
    baseline: float | None = None
    incomparable: str = ""
    grown: tuple[Part, ...] = ()
    versions: tuple[str, ...] = ()
    cause: str = ""
    unexplained: str = ""
    to_settle: str = ""
    rerun: Rerun | None = None
    note: str = ""
    program: tuple[str, ...] = ()
    strict: Verdict | None = None
    recorded_as: str = ""
    where: str = ""
    processor: str = ""
    ratio: Estimate | None = None

    @property
    def failed(self) -> bool:
        return self.verdict.fails

    @property
    def doubtful(self) -> bool:
        """Whether it is for a fresh process to say if it fails."""
        return self.failed and self.metric.kind in SAMPLED

    @property
    def open_over(self) -> bool:
        """Whether no verdict was reached, and the value lies over the limit."""
        if self.verdict != Verdict.INCONCLUSIVE or self.limit is None:
            return False
        over = self.metric.value > self.limit
        return over if self.metric.better == "lower" else self.metric.value < self.limit

    @property
    def slowed_in_part(self) -> bool:
        """Whether no verdict was reached because the quickest blocks keep the limit of the baseline."""
        verdict = self.strict or self.verdict
        if verdict != Verdict.INCONCLUSIVE or self.source != "baseline" or self.limit is None or self.rerun is not None:
            return False
        quickest, lower = self.metric.quickest, self.metric.better == "lower"
        if quickest is None or (quickest > self.limit if lower else quickest < self.limit):
            return False
        interval = known(self.metric)
        return interval.low > self.limit if lower else interval.high < self.limit


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What an instrument knows of a metric beside its value, for its gates."""

    cause: str = ""
    unexplained: str = ""
    program: tuple[str, ...] = ()


NO_EVIDENCE = Evidence()


def with_evidence(result: Result, evidence: Evidence) -> Result:
    """The gate with what of the evidence explains its verdict."""
    if result.source is None:
        return result
    if result.failed:
        return dataclasses.replace(
            result,
            cause=evidence.cause,
            unexplained=evidence.unexplained,
            program=evidence.program,
        )
    open_one = result.verdict == Verdict.INCONCLUSIVE
    return dataclasses.replace(result, cause=evidence.cause) if open_one else result


def with_rerun(result: Result, rerun: Rerun, *, fails: bool) -> Result:
    """A gate that fails in this process, with what a fresh one saw; open unless it `fails` there too."""
    if fails or rerun.seen is None:
        return dataclasses.replace(result, rerun=rerun)
    settled_by, interval = "another limit", rerun.seen.interval
    if result.limit is not None and interval.low <= result.limit <= interval.high:
        settled_by = f"more seconds (--perf-seconds), or {settled_by}"
    return dataclasses.replace(result, verdict=Verdict.INCONCLUSIVE, rerun=rerun, to_settle=settled_by)


def against_limit(interval: Interval, limit: float) -> Verdict:
    """Fails only when the whole interval lies above the limit, passes only when none of it does."""
    if interval.low > limit:
        return Verdict.FAIL
    return Verdict.PASS if interval.high <= limit else Verdict.INCONCLUSIVE


def strictly(result: Result, words: Collection[str]) -> Result:
    """The gate, failed where its verdict is among the words of --perf-strict."""
    return (
        dataclasses.replace(result, verdict=Verdict.FAIL, strict=result.verdict)
        if str(result.verdict) in words
        else result
    )


def known(metric: Metric) -> Interval:
    """The interval that a gate judges. A count or a size is exact; of any other metric without one nothing is known."""
    if metric.interval is not None:
        return metric.interval
    exact = metric.kind in ("count", "size")
    return Interval(metric.value, metric.value) if exact else Interval(-math.inf, math.inf)


def judge_budget(test: str, metric: Metric, limit: float) -> Result:
    """A metric against a limit of the test's own."""
    return Result(test, metric, against_limit(known(metric), limit), "budget", limit)


def judge_baseline(
    test: str,
    metric: Metric,
    entry: Entry | None,
    *,
    now: Environment,
    tolerance: float | None = None,
    evidence: Evidence = NO_EVIDENCE,
) -> Result:
    """A metric made in environment `now` against its baseline."""
    if entry is None:
        return Result(test, metric, Verdict.INFO if metric.kind == "info" else Verdict.NEW)
    result = Result(test, metric, Verdict.INFO, baseline=entry.value if entry.unit == metric.unit else None)
    if metric.kind == "info" and not entry.gates:
        return result
    if why := _why_not_comparable(metric, entry, now):
        return dataclasses.replace(result, verdict=Verdict.NOT_COMPARABLE, source="baseline", incomparable=why)
    if tolerance is None or metric.kind not in SAMPLED:
        tolerance = TOLERANCES[metric.kind]
    limit, verdict = _against_baseline(metric, entry, tolerance)
    if verdict == Verdict.IMPROVED and (metric.at_least or is_guard(metric.id)):
        # "At least" so much: a loop that counts once by now is no improvement, nor is a donation that is taken away.
        verdict = Verdict.PASS
    ends = metric.interval
    if verdict == Verdict.INCONCLUSIVE and ends and math.isfinite(ends.low) and math.isinf(ends.high):
        # The 99th percentile of a few hundred samples has no upper end. It can be seen to be too high, but not to be
        # low enough; saying "inconclusive" of every such tail would teach people not to read the word, and no slow call
        # could keep to --perf-strict=inconclusive. "info" claims nothing. A budget of the test's own is another matter.
        return result
    result = dataclasses.replace(result, verdict=verdict, source="baseline", limit=limit, tolerance=tolerance)
    if result.slowed_in_part:
        settled_by = "a machine without other processes; or a Budget, if the code slows only some of its calls"
        result = dataclasses.replace(result, to_settle=settled_by)
    if result.failed and metric.kind == "ratio" and metric.samples:
        result = _of_another_processor(result, other_processor(entry.environment, now))
    if result.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        versions = tuple(version_changes(entry.environment, now))
        result = dataclasses.replace(result, grown=_parts(metric, entry), versions=versions)
    return with_evidence(result, evidence)


def _of_another_processor(result: Result, processor: str) -> Result:
    """A ratio over its limit: open where the baseline is of another `processor` (empty: the same), unless far over."""
    assert result.limit is not None
    interval, lower = of_another_day(result.metric), result.metric.better == "lower"
    far = interval.low > result.limit * OTHER_PROCESSOR if lower else interval.high * OTHER_PROCESSOR < result.limit
    if far or not processor:
        return result
    return dataclasses.replace(
        result,
        verdict=Verdict.INCONCLUSIVE,
        processor=processor,
        to_settle="a baseline of this processor (pytest --perf-save): unlike calls have other ratios on another one",
    )


def judge_absent(test: str, id: str, entry: Entry, target: str | None, why_not: str, *, fails: bool = False) -> Result:
    """A recorded metric that its test did not make; `why_not` says why it cannot be made here, empty where it can.

    It `fails` where that could be mended here.
    """
    verdict = Verdict.NOT_COMPARABLE if why_not and not fails else Verdict.MISSING
    metric = metric_of(id, entry, target)
    return Result(test, metric, verdict, "baseline", baseline=entry.value, incomparable=why_not)


def as_saved(result: Result) -> Result:
    """The gate of a metric that --perf-save records, whatever its baseline says."""
    judged = (Verdict.NEW, Verdict.IMPROVED, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE)
    return dataclasses.replace(result, verdict=Verdict.RECORDED) if result.verdict in judged else result


def ratio_limit(entry: Entry | None, now: Environment, tolerance: float | None) -> float | None:
    """The ratio above which a comparison fails against `entry`, so that it knows when it may stop; None without one."""
    if entry is None or entry.kind != "ratio" or not entry.gates or incomparable("ratio", "x", entry.environment, now):
        return None
    return _limits(entry, TOLERANCES["ratio"] if tolerance is None else tolerance)[1]


def _why_not_comparable(metric: Metric, entry: Entry, now: Environment) -> str | None:
    if entry.provenance == "reported":
        return f"the baseline is reported ({entry.source}), not measured"
    if (entry.unit, entry.kind, entry.better) != (metric.unit, metric.kind, metric.better):
        if "info" in (metric.kind, entry.kind):
            return f"recorded as {entry.kind}, now {metric.kind}: no gate judges information"
        return (
            f"recorded as {entry.kind} in {entry.unit} ({entry.better} is better), "
            f"now {metric.kind} in {metric.unit} ({metric.better} is better): "
            "pytest --perf-save replaces it"
        )
    return incomparable(metric.kind, metric.unit, entry.environment, now)


def _against_baseline(metric: Metric, entry: Entry, tolerance: float) -> tuple[float, Verdict]:
    interval, (better, limit) = of_another_day(metric), _limits(entry, tolerance)
    if metric.better == "lower":
        return limit, Verdict.IMPROVED if interval.high < better else against_limit(interval, limit)
    mirrored = Interval(-interval.high, -interval.low)
    return limit, Verdict.IMPROVED if interval.low > better else against_limit(mirrored, -limit)


def of_another_day(metric: Metric) -> Interval:
    """The interval that a baseline judges: up to what the quickest blocks say, where that is better."""
    interval, quickest = known(metric), metric.quickest
    if quickest is None:
        return interval
    if metric.better == "lower":
        return Interval(min(interval.low, quickest), interval.high)
    return Interval(interval.low, max(interval.high, quickest))


class Reach(NamedTuple):
    """From which worsening on the gate of a recorded ratio or time fails: `share` is 1.6 for +160 %.

    It is `noisy` where the samples spread so far that the gate sees much less than its tolerance says.
    """

    test: str
    metric: Metric
    limit: float
    share: float
    noisy: bool


def reach_of(test: str, metric: Metric, entry: Entry, tolerance: float) -> Reach | None:
    """The reach of the gate that `entry` is, for samples like those of `metric`; None where they have no interval."""
    interval, (_, limit) = of_another_day(metric), _limits(entry, tolerance)
    worst, best = (limit, interval.low) if entry.better == "lower" else (interval.high, limit)
    if best <= 0 or worst == math.inf:
        return None
    return Reach(test, metric, limit, worst / best - 1, worst / best > 1.5 * (1 + tolerance))


def _limits(entry: Entry, tolerance: float) -> tuple[float, float]:
    """Beyond which value a metric is better than its baseline, and beyond which it is worse."""
    value, allowed = entry.value, tolerance * abs(entry.value)
    smaller, larger = value - allowed, value + allowed
    if entry.kind in SAMPLED and value > 0:
        smaller = value / (1 + tolerance)  # no time lies 100 % below another: half as long is to twice as long
    return (smaller, larger) if entry.better == "lower" else (larger, smaller)


def _parts(metric: Metric, entry: Entry) -> tuple[Part, ...]:
    """The parts of the metric that got worse, those that did most first, and where they are now."""
    places = metric.places or {}
    names = {digest(name): name for name in (*(metric.detail or ()), *(entry.detail or ()), *places)}
    now, then = (
        {names.get(name, name): amount for name, amount in (detail or {}).items()}
        for detail in (metric.detail, entry.detail)
    )
    if (metric.value and not now) or (entry.value and not then):
        return ()  # not split on both sides; nothing has no parts
    if metric.unit == INSTRUCTIONS:
        then = _named_as(now, then)
    changes = {name: now.get(name, 0) - then.get(name, 0) for name in {**now, **then}}
    worse = [
        Part(name, amount, places.get(name, ""))
        for name, amount in changes.items()
        if (amount > 0 if metric.better == "lower" else amount < 0) and not name.startswith(DIGEST_MARK)
    ]
    return tuple(sorted(worse, key=lambda part: -abs(part.amount))[:PARTS_NAMED])


def _named_as(now: Mapping[str, float], then: Mapping[str, float]) -> dict[str, float]:
    """Instructions by function, of which those that are named no longer count for the others, as they do now.

    The more there are in all, the more it takes to be named.
    """
    amounts: dict[str, float] = {}
    for function, amount in then.items():
        others = re.sub(r":\S+", f":{OTHERS}", function, count=1)
        name = others if function not in now and others in now else function
        amounts[name] = amounts.get(name, 0) + amount
    return amounts
