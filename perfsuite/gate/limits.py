"""What a comparison must keep to, and when its samples have decided that."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from perfsuite.gate.verdict import Evidence, Gate, Rerun, judge_budget, with_evidence
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.measurement import Metric
from perfsuite.measure.timing.comparison import Comparison, Field

FIELDS: tuple[Field, ...] = ("ratio", "overhead_us")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Those of the budget, by its fields, and the one that the baseline puts on the ratio."""

    budget: Mapping[str, float] = dataclasses.field(default_factory=dict)
    baseline: float | None = None

    def __bool__(self) -> bool:
        return bool(self.budget) or self.baseline is not None

    def compared(self, ratio: Estimate, overhead: Estimate) -> Iterator[tuple[Estimate, float]]:
        """Each limit, with the estimate that must keep to it."""
        yield from ((each, self.budget[field]) for field, each in zip(FIELDS, (ratio, overhead), strict=True)
                    if field in self.budget)  # fmt: skip
        if self.baseline is not None:
            yield ratio, self.baseline

    def settled(self, ratio: Estimate, overhead: Estimate) -> bool:
        """Whether one limit is broken for certain, or all are kept for certain."""
        pairs = list(self.compared(ratio, overhead))
        broken = any(each.interval.low > limit for each, limit in pairs)
        return broken or all(each.interval.high <= limit for each, limit in pairs)

    def decided(self, comparison: Comparison) -> bool:
        """`settled`, by the estimates of a comparison."""
        return self.settled(comparison.ratio, comparison.overhead_us)

    def contradiction(self, parts: Sequence[Comparison]) -> list[float]:
        """The values that the processes saw on both sides of one limit; empty where they agree on every limit.

        Pooling never decides such parts, however many more there are. Where all of them break one limit, they agree
        that the comparison fails.
        """
        by_limit = list(zip(*(self.compared(part.ratio, part.overhead_us) for part in parts), strict=True))
        above = [[each.value > limit for each, limit in seen] for seen in by_limit]
        if any(map(all, above)):
            return []
        return next(
            ([each.value for each, _ in seen] for seen, over in zip(by_limit, above, strict=True) if any(over)), []
        )

    def judge(self, test: str, metrics: Sequence[Metric], compared: "Compared") -> list[Gate]:
        """The gates of the budget, for the metrics of the comparison: ratio and overhead."""
        gates = []
        for field, metric in zip(FIELDS, metrics, strict=True):
            if field in self.budget:
                gate = judge_budget(test, metric, self.budget[field])
                if not compared.comparison.bounded:
                    gate = dataclasses.replace(gate, verdict="inconclusive")
                gates.append(with_evidence(gate, compared.evidence(field)))
        return gates


@dataclasses.dataclass(frozen=True)
class Compared:
    """A comparison; where it took further processes, `rerun`, and what would settle the limits that they left open."""

    comparison: Comparison
    rerun: Rerun | None = None
    to_settle: str = ""

    def evidence(self, field: Field) -> Evidence:
        """What the gates of the ratio or of the overhead are to know."""
        return Evidence(
            to_settle=lambda limit: self.to_settle or self.comparison.to_settle(limit, field),
            rerun=self.rerun,
        )
