"""What a comparison must keep to, when its samples have decided that, and when a broken limit counts."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from perfsuite.gate.settling import to_settle
from perfsuite.gate.verdict import Evidence, Gate, Rerun, judge_budget, quieter_machine, with_evidence
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.metric import Metric
from perfsuite.measure.timing.comparison import Comparison, Field, Settled

FIELDS: tuple[Field, ...] = ("ratio", "overhead_us")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Those of the budget, by its fields, and the one that the baseline puts on the ratio.

    The ratio breaks that one where it is above it by more than the factor `slack`.
    """

    budget: Mapping[str, float] = dataclasses.field(default_factory=dict)
    baseline: float | None = None
    slack: float = 1.0

    def __bool__(self) -> bool:
        return bool(self.budget) or self.baseline is not None

    def compared(self, ratio: Estimate, overhead: Estimate) -> Iterator[tuple[Estimate, float]]:
        """Each limit, with the estimate that must keep to it."""
        yield from ((each, self.budget[field]) for field, each in zip(FIELDS, (ratio, overhead), strict=True)
                    if field in self.budget)  # fmt: skip
        if self.baseline is not None:
            yield ratio, self.baseline

    def settled(self, ratio: Estimate, overhead: Estimate) -> bool:
        """Whether one limit of the budget is broken for certain, or all limits are kept for certain.

        A baseline is from another day, and only all of the time can break it: a machine has states that last a second.
        In one comparison's first second, with no load in it, ten eager operations took 240 us; usually they take 130.
        """
        if all(each.interval.high <= limit for each, limit in self.compared(ratio, overhead)):
            return True
        budget = dataclasses.replace(self, baseline=None)
        if any(each.interval.low > limit for each, limit in budget.compared(ratio, overhead)):
            return True
        # Above the limit, and by no more than another processor explains: more samples would not decide it.
        return self.baseline is not None and self.baseline < ratio.interval.low <= self.baseline * self.slack

    @property
    def end(self) -> Settled | None:
        """What ends a comparison: `settled`, or None without limits."""
        return self.settled if self else None

    def judge(self, test: str, metrics: Sequence[Metric], compared: "Compared") -> list[Gate]:
        """The gates of the budget, for the metrics of the comparison: ratio and overhead."""
        gates = []
        for field, metric in zip(FIELDS, metrics, strict=True):
            if field in self.budget:
                gate = judge_budget(test, metric, self.budget[field])
                gates.append(with_evidence(gate, compared.evidence(field)))
        return gates


@dataclasses.dataclass(frozen=True)
class Compared:
    """A comparison, and what fresh processes saw of it.

    `again` has the ratio and the overhead of each fresh process; `failure` says why one gave none. The load that the
    comparison knows of is the heaviest of all processes.
    """

    comparison: Comparison
    again: tuple[tuple[Estimate, Estimate], ...] = ()
    failure: str = ""

    def with_again(self, ratio: Estimate, overhead: Estimate, slowed: float) -> "Compared":
        """With what one more fresh process saw, and by what factor other processes may have slowed it."""
        comparison = dataclasses.replace(self.comparison, slowed=max(self.comparison.slowed, slowed))
        return dataclasses.replace(self, comparison=comparison, again=(*self.again, (ratio, overhead)))

    def broken(self, limits: Limits) -> Limits:
        """The limits that all processes break."""
        budget: dict[str, float] = {
            field: limit
            for field in FIELDS
            if (limit := limits.budget.get(field)) is not None and self._breaks(field, limit)
        }
        baseline = limits.baseline
        if baseline is not None and not self._breaks("ratio", baseline * self.comparison.slowed * limits.slack):
            baseline = None
        return Limits(budget, baseline)

    def evidence(self, field: Field) -> Evidence:
        """What the gates of the ratio or of the overhead are to know."""
        return Evidence(
            to_settle=lambda limit: to_settle(self.comparison, limit, field),
            confirmed=lambda gate: self._confirmed(gate, field),
        )

    def _confirmed(self, gate: Gate, field: Field) -> Gate:
        """A gate that fails by this comparison alone; open where another process speaks against it."""
        assert gate.limit is not None
        seen = tuple(self._seen(field)[1:])
        slowed = self.comparison.slowed if gate.source == "baseline" else 1.0
        if self._breaks(field, gate.limit * slowed):
            return dataclasses.replace(gate, rerun=Rerun(seen, self.failure)) if seen or self.failure else gate
        if self._breaks(field, gate.limit):
            return dataclasses.replace(
                gate, verdict="inconclusive", rerun=Rerun(seen, self.failure), to_settle=quieter_machine(slowed)
            )
        settled_by = "another limit"
        if any(each.interval.low <= gate.limit < each.interval.high for each in seen):
            settled_by = f"more seconds (--perf-seconds), or {settled_by}"
        rerun = Rerun(seen, self.failure)
        return dataclasses.replace(gate, verdict="inconclusive", rerun=rerun, to_settle=settled_by)

    def _seen(self, field: Field) -> list[Estimate]:
        own: Estimate = getattr(self.comparison, field)
        return [own, *(each[FIELDS.index(field)] for each in self.again)]

    def _breaks(self, field: Field, limit: float) -> bool:
        return all(each.interval.low > limit for each in self._seen(field))
