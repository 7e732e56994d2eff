"""What a save changes, by four rules.

A new metric is recorded. An exact one replaces the old one if it differs, or if a version does; instructions, only if
their gate tells them apart. A sampled one replaces it unless their intervals meet. One that its test no longer makes
goes. Information, which nothing gates, is replaced where another metric of its test is written: else each save would
write its noise.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from perfsuite.gate.baseline import Baselines, Entry, Provenance, Revision, is_guard, name_of
from perfsuite.gate.environment import incomparable, version_changes
from perfsuite.gate.verdict import SAMPLED, TOLERANCES
from perfsuite.measure.metric import CALLS_TO_TRACE, INSTRUCTIONS, Interval

Action = Literal["create", "update", "trim", "keep"]
Direction = Literal["better", "worse", "same", "not comparable"]


@dataclasses.dataclass(frozen=True)
class Change:
    """How a save changed one metric of a test. `old` is None when it was created, `new` when it was trimmed.

    `new` is what the file holds now: for a metric that was kept, the old entry.
    """

    test: str
    id: str
    action: Action
    old: Entry | None
    new: Entry | None
    direction: Direction = "same"

    @property
    def name(self) -> str:
        """What people call the metric."""
        entry = self.new or self.old
        assert entry is not None
        return name_of(self.id, entry)

    @property
    def versions(self) -> list[str]:
        """The versions that differ between the two entries: `["jax 0.10.2 -> 0.11.0"]`."""
        if self.old is None or self.new is None:
            return []
        return version_changes(self.old.environment, self.new.environment)


def merge(
    old: Baselines,
    new: Mapping[str, Mapping[str, Entry]],
    *,
    trim: Collection[str] = (),
    gone: Collection[str] = (),
    provenances: tuple[Provenance, ...] = ("measured",),
    revision: Revision | None = None,
) -> tuple[Baselines, tuple[Change, ...]]:
    """The baselines after a run that measured `new` at `revision`, and the change of each metric.

    `trim` are the ids of tests that ran completely: those of their metrics that were not made again go, if they are of
    the `provenances` that this run makes for the device. `gone` are ids of tests that no longer exist: their metrics
    go, but for those reported by a document, whose ids were never tests. Every other metric stays, and is not among the
    changes unless it is in `new`.
    """
    vanishing: dict[str, tuple[Provenance, ...]] = dict.fromkeys(trim, provenances)
    vanishing |= dict.fromkeys(gone, ("measured", "compiled"))
    changes = [*_made(old, new), *_trimmed(old, new, vanishing)]
    metrics = {test: dict(entries) for test, entries in old.metrics.items()}
    for change in changes:
        entries = metrics.setdefault(change.test, {})
        if change.new is None:
            del entries[change.id]
        else:
            entries[change.id] = change.new
    metrics = {test: entries for test, entries in metrics.items() if entries}
    changed = {change.test for change in changes if change.action != "keep"}
    revisions = {test: each for test, each in old.revisions.items() if test in metrics and test not in changed}
    if revision is not None:
        revisions |= dict.fromkeys(changed & metrics.keys(), revision)
    return Baselines(old.device, metrics, revisions), tuple(changes)


def _made(old: Baselines, new: Mapping[str, Mapping[str, Entry]]) -> Iterator[Change]:
    """The changes of the metrics that were made."""
    for test, entries in sorted(new.items()):
        changes = [_recorded(test, id, old.get(test, id), entry) for id, entry in sorted(entries.items())]
        is_written = any(change.action != "keep" and entries[change.id].kind != "info" for change in changes)
        for change in changes:
            entry = entries[change.id]
            is_information = change.old is not None and change.old.kind == entry.kind == "info"
            if is_written and is_information and entry != change.new:
                change = dataclasses.replace(change, action="update", new=entry)
            yield change


def _trimmed(
    old: Baselines, new: Mapping[str, Mapping[str, Entry]], vanishing: Mapping[str, tuple[Provenance, ...]]
) -> Iterator[Change]:
    """The metrics that go: those of `vanishing` tests that were not made again, if of the provenances given."""
    for test in sorted(vanishing.keys() & old.metrics.keys()):
        for id in sorted(old.metrics[test].keys() - new.get(test, {}).keys()):
            entry = old.metrics[test][id]
            if entry.provenance in vanishing[test]:
                yield Change(test, id, "trim", entry, None)


def _recorded(test: str, id: str, old: Entry | None, new: Entry) -> Change:
    if old is None:
        return Change(test, id, "create", None, new)
    if (old.unit, old.kind, old.better) != (new.unit, new.kind, new.better):
        return Change(test, id, "update", old, new, "not comparable")
    if _stands(old, new):
        kept = dataclasses.replace(old, label=new.label)
        return Change(test, id, "keep" if kept == old else "update", old, kept)
    return Change(test, id, "update", old, new, _direction(id, old, new))


_DIFFERING = (INSTRUCTIONS, CALLS_TO_TRACE)
"""Units of sizes that differ a little between two processes that run the same code."""


def _stands(old: Entry, new: Entry) -> bool:
    """Whether the old entry stays, because the new one adds nothing to it but the name that the metric has now."""
    if old.kind == "ratio" and old.interval and new.samples and not new.interval:
        return True  # a comparison of too few pairs for an interval
    if old.kind == "info" and "reported" not in (old.provenance, new.provenance):
        return not _other_versions(old, new)
    if old.provenance != new.provenance:
        # A document never displaces what a device or its compiler says, and a compiled metric that agrees with the
        # measured one adds nothing. Otherwise saves on two machines would swap the provenance for ever.
        if "reported" in (old.provenance, new.provenance):
            return new.provenance == "reported"
        return new.provenance == "compiled" and _same_result(old, new)
    if old.kind in ("count", "size") or old.provenance == "reported":
        # A count or a size depends on the versions, not on the processor or the device count.
        same = _same_result(old, new) or (old.unit in _DIFFERING and _within_tolerance(old, new))
        return same and not _other_versions(old, new) and old.source == new.source
    then, now = old.environment, new.environment
    if then is not None and now is not None:
        # Which packages the test's parts name may depend on what other tests import: only other versions count.
        then = dataclasses.replace(then, packages=now.packages)
    return then == now and not _other_versions(old, new) and _within_noise(old, new)


def _same_result(old: Entry, new: Entry) -> bool:
    return (old.value, old.interval, old.detail) == (new.value, new.interval, new.detail)


def _other_versions(old: Entry, new: Entry) -> bool:
    if old.environment is None or new.environment is None:
        return old.environment is not new.environment
    return bool(version_changes(old.environment, new.environment))


def _within_noise(old: Entry, new: Entry) -> bool:
    was, is_now = _range(old), _range(new)
    return was.low <= is_now.high and is_now.low <= was.high


def _within_tolerance(old: Entry, new: Entry) -> bool:
    """Whether two values are one for their gate."""
    return max(old.value, new.value) <= (1 + TOLERANCES[old.kind]) * min(old.value, new.value)


def _range(entry: Entry) -> Interval:
    # A value need not lie in its own interval: a file may have been edited by hand.
    interval = entry.interval or Interval(entry.value, entry.value)
    return Interval(min(interval.low, entry.value), max(interval.high, entry.value))


def _direction(id: str, old: Entry, new: Entry) -> Direction:
    if old.provenance == "reported" or incomparable(old.kind, old.unit, old.environment, new.environment):
        return "not comparable"
    if old.kind == "info" or old.value == new.value or (old.kind not in ("count", "size") and _within_noise(old, new)):
        return "same"
    if (old.kind in SAMPLED or old.unit in _DIFFERING) and _within_tolerance(old, new):
        return "same"
    if (new.value < old.value) != (old.better == "lower"):
        return "worse"
    return "same" if is_guard(id) else "better"
