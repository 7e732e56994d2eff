"""What a comparison must keep to, when its samples have decided that, and when a broken budget counts."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from perfsuite.gate.verdict import Evidence, Rerun, Result, judge_budget, with_evidence, with_rerun
from perfsuite.measure.metric import Estimate, Metric
from perfsuite.measure.timing.comparison import Comparison, Field, Settled, fewest_pairs
from perfsuite.measure.words import plural

FIELDS: tuple[Field, ...] = ("ratio", "overhead_us")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Those of the budget, by its fields, and the one that the baseline puts on the ratio."""

    budget: Mapping[str, float] = dataclasses.field(default_factory=dict)
    baseline: float | None = None

    def compared(self, ratio: Estimate, overhead: Estimate) -> Iterator[tuple[Estimate, float]]:
        """Each limit of the budget, with the estimate that must keep to it."""
        for field, estimate in zip(FIELDS, (ratio, overhead), strict=True):
            if field in self.budget:
                yield estimate, self.budget[field]

    def settled(self, ratio: Estimate, overhead: Estimate) -> bool:
        """Whether one limit of the budget is broken for certain, or all limits are kept for certain.

        A baseline is from another day, and only all of the time can break it: a machine has states that last a second.
        In one comparison's first second, with no load in it, ten eager operations took 240 us; usually they take 130.
        """
        pairs = list(self.compared(ratio, overhead))
        if any(each.interval.low > limit for each, limit in pairs):
            return True
        if self.baseline is not None:
            pairs.append((ratio, self.baseline))
        return all(each.interval.high <= limit for each, limit in pairs)

    @property
    def end(self) -> Settled | None:
        """What ends a comparison: `settled`, or None without limits."""
        return self.settled if self.budget or self.baseline is not None else None

    def judge(self, test: str, metrics: Sequence[Metric], compared: "Compared") -> list[Result]:
        """The gates of the budget, for the metrics of the comparison: ratio and overhead."""
        results = []
        for field, metric in zip(FIELDS, metrics, strict=True):
            if field in self.budget:
                result = judge_budget(test, metric, self.budget[field])
                if result.failed:
                    result = compared.confirmed(result, field)
                results.append(with_evidence(result, compared.evidence(field)))
        return results


@dataclasses.dataclass(frozen=True)
class Compared:
    """A comparison, and what a fresh process saw of it.

    `again` are its ratio and its overhead there; `failure` says why it gave none.
    """

    comparison: Comparison
    again: tuple[Estimate, Estimate] | None = None
    failure: str = ""

    def broken(self, limits: Limits) -> bool:
        """Whether the comparison breaks a limit of the budget."""
        estimates = limits.compared(self.comparison.ratio, self.comparison.overhead_us)
        return any(each.interval.low > limit for each, limit in estimates)

    def evidence(self, field: Field) -> Evidence:
        """What the gates of the ratio or of the overhead are to know."""
        return Evidence(to_settle=lambda limit: what_settles(self.comparison, limit, field))

    def confirmed(self, result: Result, field: Field) -> Result:
        """A gate that fails by this comparison; open where the fresh process speaks against it."""
        assert result.limit is not None
        second = None if self.again is None else self.again[FIELDS.index(field)]
        if second is None and not self.failure:
            return result
        fails = second is not None and second.interval.low > result.limit
        return with_rerun(result, Rerun(second, self.failure), fails=fails)


HOPELESS = 0.001
"""Two sides of the same code may differ by about as much, for reasons outside it (where memory lies)."""

MARGIN = 1.35
"""The estimate itself moves: to settle nine times in ten, the interval must be so much narrower than its distance from
the limit (its half-width is 3.6 standard errors, and 1.28 more stay free)."""

MOST_SECONDS = 600


def what_settles(compared: Comparison, limit: float, field: Field) -> str:
    """What would settle whether the ratio or the overhead keeps to `limit`, in words."""
    if not compared.bounded:
        needed = compared.seconds * fewest_pairs() / compared.pairs
        return (
            f"{compared.pairs} pairs are too few for an interval: allow more time (--perf-seconds={math.ceil(needed)})"
        )
    estimate: Estimate = getattr(compared, field)
    value, low, high = estimate.value, estimate.interval.low, estimate.interval.high
    if field == "ratio" and limit > 0:
        value, low, high, limit = (math.log(each) for each in (value, low, high, limit))
    distance = abs(limit - value)
    # A share of the reference's time, so that one bound serves both fields.
    relative = distance if field == "ratio" else distance / compared.reference_median_us
    if relative < HOPELESS:
        return (
            f"its estimate lies within {HOPELESS:.1%} of the limit, where no amount of sampling is sure to tell on "
            "which side: move the limit"
        )
    side = high - value if value <= limit else value - low
    # An interval narrows with the square root of the number of pairs.
    needed = compared.seconds * max(1.0, side * MARGIN / distance) ** 2
    if needed > MOST_SECONDS:
        return f"more than {MOST_SECONDS / 60:g} minutes of sampling: move the limit, or take a quieter machine"
    more = plural(max(1, math.ceil(needed - compared.seconds)), "more second")
    return f"about {more} of sampling (--perf-seconds={math.ceil(needed)})"
