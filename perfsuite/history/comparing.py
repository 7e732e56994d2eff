"""Two baseline files held against each other by the gate's own rules, so that what is noise to a gate is noise here.

The older file stands for the baselines, the newer one for a run: tolerances by kind, intervals, and what makes two
metrics incomparable are `gate.verdict`'s and `gate.environment`'s. Two rules are added. Better is what would be worse
with the files exchanged, so one comparison is the mirror of the other. And both sides were sampled here, so where the
two intervals overlap nothing is called better or worse. Tolerances that a test sets for itself are in no file: a metric
is held to those of its kind.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable
from typing import Literal, cast

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.environment import Environment, incomparable, version_changes
from perfsuite.gate.verdict import Gate, Part, judge_baseline
from perfsuite.measure.measurement import Metric

Outcome = Literal["worse", "better", "unclear", "not comparable", "added", "removed", "info", "tolerated", "same"]

OUTCOMES: tuple[Outcome, ...] = (
    "worse", "better", "unclear", "not comparable", "added", "removed", "info", "tolerated", "same",
)  # fmt: skip
"""In the order in which a reader wants them. "tolerated" differ by no more than the gate allows."""

_NAME = "metric"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One metric of two files. `old` is None where it was added, `new` where it was removed.

    `reason` says in words why nothing can be said, `grown` are the parts of the metric that got worse.
    """

    test: str
    name: str
    old: Entry | None
    new: Entry | None
    outcome: Outcome
    reason: str = ""
    grown: tuple[Part, ...] = ()

    @property
    def change(self) -> float | None:
        """Relative to the old value, 0.02 is 2 % more; infinite from 0. None where there are no two to compare."""
        if self.old is None or self.new is None or self.outcome == "not comparable":
            return None
        return relative_change(self.old.value, self.new.value)

    @property
    def entry(self) -> Entry:
        """The newer of the two that is there."""
        entry = self.new or self.old
        assert entry is not None
        return entry


def relative_change(old: float, new: float) -> float:
    """How much more `new` is, relative to `old`: 0.02 is 2 %. Infinite from 0, unless both are."""
    if old == new:
        return 0.0
    return (new - old) / abs(old) if old else math.copysign(math.inf, new)


def amount(change: float | None) -> float:
    """By how much to sort a change: a doubling is as much as a halving; what has none comes last."""
    if change is None:
        return -1.0
    return math.inf if change <= -1 else abs(math.log1p(change))


def compare(old: Baselines, new: Baselines) -> list[Difference]:
    """What became of every metric of either: by outcome, those that changed most first, then by name."""
    found = [
        _difference(test, name, old.get(test, name), new.get(test, name))
        for test in {**old.metrics, **new.metrics}
        for name in {**old.metrics.get(test, {}), **new.metrics.get(test, {})}
    ]
    return sorted(found, key=lambda each: (OUTCOMES.index(each.outcome), -amount(each.change), each.test, each.name))


def version_lines(differences: Iterable[Difference]) -> list[str]:
    """The versions that differ, with the number of metrics: `jax 0.10.2 -> 0.11.0 (of 120 metrics)`."""
    counts = collections.Counter(
        change
        for each in differences
        if each.old is not None and each.new is not None
        for change in version_changes(each.old.environment, each.new.environment)
    )
    return [f"{change} (of {count} metric{'s' if count > 1 else ''})" for change, count in counts.most_common()]


def judged(old: Entry, new: Entry) -> tuple[Outcome, str, tuple[Part, ...]]:
    """What became of a metric, and why nothing can be said of it, and which parts of it got worse."""
    if why := why_incomparable(old, new):
        return "not comparable", why, ()
    if new.kind == "info" or "reported" in (old.provenance, new.provenance):
        return ("same" if old.value == new.value else "info"), "", ()
    if old.value == new.value:
        return "same", "", ()
    forward, backward = _gate(old, new), _gate(new, old)
    if "fail" in (forward.verdict, backward.verdict):
        if _overlap(old, new):
            return "unclear", "the two intervals overlap", ()
        if backward.verdict == "fail":
            return "better", "", ()
        return "worse", "", forward.grown
    if "inconclusive" in (forward.verdict, backward.verdict):
        return "unclear", "an interval reaches beyond what is allowed", ()
    return "tolerated", "", ()


def why_incomparable(old: Entry, new: Entry) -> str:
    """Why two entries of one name cannot be held against each other, in words; empty where they can."""
    if (old.kind, old.unit) != (new.kind, new.unit):
        return f"was {old.kind} in {old.unit}, is {new.kind} in {new.unit}"
    if old.better != new.better:
        return f"{old.better} was better, {new.better} is"
    if (old.provenance == "reported") != (new.provenance == "reported"):
        reported, other = (old, new) if old.provenance == "reported" else (new, old)
        return f"one is {other.provenance}, the other reported by {reported.source}"
    if old.provenance == "reported":
        return ""
    return incomparable(new.kind, new.unit, old.environment, new.environment) or ""


def _difference(test: str, name: str, old: Entry | None, new: Entry | None) -> Difference:
    if old is None or new is None:
        return Difference(test, name, old, new, "added" if old is None else "removed")
    return Difference(test, name, old, new, *judged(old, new))


def _gate(on_file: Entry, made: Entry) -> Gate:
    metric = Metric(
        _NAME,
        made.value,
        made.unit,
        made.kind,
        made.better,
        made.interval,
        made.samples,
        dict(made.detail or {}) or None,
    )
    # None is what a compiled metric may have, and then nothing in the gate asks for it.
    return judge_baseline("", metric, on_file, now=cast(Environment, made.environment))


def _overlap(old: Entry, new: Entry) -> bool:
    if old.interval is None or new.interval is None:
        return False
    return old.interval.low <= new.interval.high and new.interval.low <= old.interval.high
