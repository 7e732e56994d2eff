"""What a comparison must keep to, when its samples have decided that, and when a broken budget counts."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from perfsuite.gate.verdict import Rerun, Result, judge_budget, with_rerun
from perfsuite.measure.metric import Estimate, Metric
from perfsuite.measure.timing.comparison import Comparison, Field, Settled

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
                results.append(result)
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

    def confirmed(self, result: Result, field: Field) -> Result:
        """A gate that fails by this comparison; open where the fresh process speaks against it."""
        assert result.limit is not None
        second = None if self.again is None else self.again[FIELDS.index(field)]
        if second is None and not self.failure:
            return result
        fails = second is not None and second.interval.low > result.limit
        return with_rerun(result, Rerun(second, self.failure), fails=fails)
