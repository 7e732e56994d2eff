"""Compare two baseline files by the gate's own rules, so that noise to a gate is noise here.

The older file stands for the baselines, the newer one for a run: the tolerances by kind, the intervals and what makes
two metrics incomparable are those of `gate.verdict` and `gate.environment`. There is one more rule: a metric is better
when it would be worse with the files exchanged, so one comparison mirrors the other. No file has the tolerance that a
test sets for itself, so each metric gets the tolerance of its kind.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable
from typing import Literal, cast, get_args

from perfsuite.gate.baseline import Baselines, Entry, name_of
from perfsuite.gate.environment import Environment, incomparable, version_changes
from perfsuite.gate.verdict import Part, Result, Verdict, judge_baseline
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.words import plural

Outcome = Literal["worse", "better", "unclear", "not comparable", "added", "removed", "info", "tolerated", "same"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""In the order in which a reader wants them. "tolerated" metrics differ by no more than the gate allows."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One metric of two files, `name` for people. `old` is None where it was added, `new` where it was removed.

    `reason` says why the two are not comparable or unclear; `grown` are the parts of the metric that got worse.
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
        """Relative to the old value: 0.02 is 2 % more; infinite from 0. None without two comparable values."""
        if self.old is None or self.new is None or self.outcome == "not comparable":
            return None
        old, new = self.old.value, self.new.value
        if old == new:
            return 0.0
        return (new - old) / abs(old) if old else math.copysign(math.inf, new)

    @property
    def entry(self) -> Entry:
        """The new entry, or the old one where the metric was removed."""
        entry = self.new or self.old
        assert entry is not None
        return entry


def _amount(change: float | None) -> float:
    """By how much to sort a change: a doubling is as much as a halving, and no change comes last."""
    if change is None:
        return -1.0
    return math.inf if change <= -1 else abs(math.log1p(change))


def compare(old: Baselines, new: Baselines) -> list[Difference]:
    """The outcome of every metric of either file: sorted by outcome, then by how much it changed, then by name."""
    ids = {(test, id): None for each in (old, new) for test, entries in each.metrics.items() for id in entries}
    found = []
    for test, id in ids:
        was, now = old.get(test, id), new.get(test, id)
        entry = now or was
        assert entry is not None
        name = name_of(id, entry)
        if was is None or now is None:
            found.append(Difference(test, name, was, now, "added" if was is None else "removed"))
        else:
            found.append(Difference(test, name, was, now, *_judged(was, now)))
    return sorted(found, key=lambda each: (OUTCOMES.index(each.outcome), -_amount(each.change), each.test, each.name))


def version_lines(differences: Iterable[Difference]) -> list[str]:
    """The versions that differ, with the number of metrics: `jax 0.10.2 -> 0.11.0 (of 120 metrics)`."""
    counts = collections.Counter(
        change
        for each in differences
        if each.old is not None and each.new is not None
        for change in version_changes(each.old.environment, each.new.environment)
    )
    return [f"{change} (of {plural(count, 'metric')})" for change, count in counts.most_common()]


def _judged(old: Entry, new: Entry) -> tuple[Outcome, str, tuple[Part, ...]]:
    """The outcome of a metric, why it is not comparable or unclear, and which parts of it got worse."""
    if why := _why_incomparable(old, new):
        return "not comparable", why, ()
    if new.kind == "info" or "reported" in (old.provenance, new.provenance):
        return ("same" if old.value == new.value else "info"), "", ()
    if old.value == new.value:
        return "same", "", ()
    forward, backward = _gate(old, new), _gate(new, old)
    if forward.verdict == Verdict.FAIL:
        return "worse", "", forward.grown
    if backward.verdict == Verdict.FAIL:
        return "better", "", ()
    if Verdict.INCONCLUSIVE in (forward.verdict, backward.verdict):
        return "unclear", "an interval reaches beyond what is allowed", ()
    return "tolerated", "", ()


def _why_incomparable(old: Entry, new: Entry) -> str:
    """Why two entries of one name are not comparable, in words; empty where they are."""
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


def _gate(on_file: Entry, made: Entry) -> Result:
    detail = dict(made.detail or {}) or None
    # What two files say is compared as they say it, also where one has no interval.
    interval = made.interval or Interval(made.value, made.value)
    metric = Metric("metric", made.value, made.unit, made.kind, made.better, interval, made.samples, detail)
    # A compiled metric may have no environment, and the gate of such a metric does not read it.
    return judge_baseline("", metric, on_file, now=cast(Environment, made.environment))
