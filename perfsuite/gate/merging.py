"""What a save changes: the rules by which new metrics replace those of a baseline file."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

from perfsuite.gate.baseline import OF_PROCESSOR, Baselines, Entry, Provenance, Revision, name_of
from perfsuite.gate.environment import incomparable, version_changes
from perfsuite.measure.metric import Interval

Action = Literal["create", "update", "trim", "keep"]
Direction = Literal["better", "worse", "same", "not comparable"]

# An info metric (compile seconds) is never gated and rarely has an interval. One that moved by less than this, relative
# to the recorded one, is left alone, or every save would rewrite it.
INFO_SLACK = 0.25

_SAMPLED_KINDS = (*OF_PROCESSOR, "info")

_Table = dict[str, dict[str, Entry]]
"""Entries by the test's id and the metric's."""


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
    kinds: Collection[str] | None = None,
) -> tuple[Baselines, tuple[Change, ...]]:
    """The baselines after a run that measured `new` at `revision`, and the change of each metric.

    `trim` are the ids of tests that ran completely: those of their metrics that were not made again go, if they are of
    the `provenances` that this run makes for the device. `gone` are ids of tests that no longer exist: their metrics
    go, but for those reported by a document, whose ids were never tests. Every other metric stays, and is not among the
    changes unless it is in `new`.

    `kinds` restrict the changes to those that they name: "new" metrics, "better" or "worse" ones, and "missing" ones,
    which go. None leaves nothing out.
    """
    changes = list(_made(old, new, kinds))
    if kinds is None or "missing" in kinds:
        vanishing: dict[str, tuple[Provenance, ...]] = dict.fromkeys(trim, provenances)
        changes += _trimmed(old, new, vanishing | dict.fromkeys(gone, ("measured", "compiled")))
    metrics, others = _applied(old, changes)
    changed = {change.test for change in changes if change.action != "keep"}
    revisions = {test: each for test, each in old.revisions.items() if test in metrics and test not in changed}
    if revision is not None:
        revisions |= dict.fromkeys(changed & metrics.keys(), revision)
    return Baselines(old.device, metrics, revisions, others), tuple(changes)


def _applied(old: Baselines, changes: Iterable[Change]) -> tuple[_Table, dict[str, _Table]]:
    """The metrics after the changes, and those of other processors.

    What was measured on a further processor goes beside what is there. So does what this processor has there, as long
    as it did not get better or worse: then the code is another one, and what was measured of the old one goes, on
    whatever processor.
    """
    metrics = {test: dict(entries) for test, entries in old.metrics.items()}
    others = {
        processor: {test: dict(entries) for test, entries in table.items()}
        for processor, table in old.other_processors.items()
    }
    for test, id, change in ((each.test, each.id, each) for each in changes):
        if change.action == "trim" or (change.action == "update" and change.direction != "same"):
            for table in (metrics, *others.values()):
                table.get(test, {}).pop(id, None)
        if change.new is not None and change.action != "keep":
            first = metrics.get(test, {}).get(id)
            beside = first is not None and _on_two_processors(first, change.new)
            table = others.setdefault(_processor(change.new), {}) if beside else metrics
            table.setdefault(test, {})[id] = change.new
    found = {processor: _without_empty(_beside(metrics, table)) for processor, table in others.items()}
    return _without_empty(metrics), {processor: table for processor, table in found.items() if table}


def _beside(metrics: _Table, others: _Table) -> _Table:
    """Those of another processor that stand beside one of `metrics`: git may have merged a file otherwise."""
    return {
        test: {
            id: entry
            for id, entry in entries.items()
            if (first := metrics.get(test, {}).get(id)) is not None and _processor(first) != _processor(entry)
        }
        for test, entries in others.items()
    }


def _without_empty(table: _Table) -> _Table:
    return {test: entries for test, entries in table.items() if entries}


def _processor(entry: Entry) -> str:
    return entry.environment.processor if entry.environment is not None else ""


def _on_two_processors(old: Entry, new: Entry) -> bool:
    """Whether both are measurements that depend on the processor, each of another one: neither replaces the other."""
    measured = old.provenance == new.provenance == "measured" and old.kind == new.kind and new.kind in OF_PROCESSOR
    return measured and _processor(old) != _processor(new)


def _of_another_code(old: Entry, new: Entry) -> bool:
    return None not in (old.fingerprint, new.fingerprint) and old.fingerprint != new.fingerprint


def _of_the_same_code(old: Entry, new: Entry) -> bool:
    """Whether it is known that the same ran in the same environment, so that only the day can be another one."""
    return old.fingerprint is not None and (old.fingerprint, old.environment) == (new.fingerprint, new.environment)


def _of_both_days(old: Entry, new: Entry) -> Entry:
    """The old entry, with an interval that holds what the same code took on either day."""
    was, is_now = _range(old), _range(new)
    interval = Interval(min(was.low, is_now.low), max(was.high, is_now.high))
    return dataclasses.replace(old, interval=interval, label=new.label)


def _made(old: Baselines, new: Mapping[str, Mapping[str, Entry]], kinds: Collection[str] | None) -> Iterator[Change]:
    """The changes of the metrics that were made."""
    for test in sorted(new):
        for name in sorted(new[test]):
            entry = new[test][name]
            on_this = old.other_processors.get(_processor(entry), {}).get(test, {}).get(name)
            change = _recorded(test, name, on_this or old.get(test, name), entry)
            if _is_wanted(change, kinds):
                yield change
            elif change.old is not None:
                yield Change(test, name, "keep", change.old, change.old)


def _trimmed(
    old: Baselines, new: Mapping[str, Mapping[str, Entry]], vanishing: Mapping[str, tuple[Provenance, ...]]
) -> Iterator[Change]:
    """The metrics that go: those of `vanishing` tests that were not made again, if of the provenances given."""
    for test in sorted(vanishing.keys() & old.metrics.keys()):
        for name in sorted(old.metrics[test].keys() - new.get(test, {}).keys()):
            entry = old.metrics[test][name]
            if entry.provenance in vanishing[test]:
                yield Change(test, name, "trim", entry, None)


def _is_wanted(change: Change, kinds: Collection[str] | None) -> bool:
    kind = "new" if change.action == "create" else change.direction
    return change.action == "keep" or kinds is None or kind in kinds


def _recorded(test: str, name: str, old: Entry | None, new: Entry) -> Change:
    if old is None:
        return Change(test, name, "create", None, new)
    if old.kind == "ratio" and new.kind == "info" and new.samples and old.unit == new.unit:
        # A comparison of too few pairs for an interval: it must not take the place of a metric that gates.
        return Change(test, name, "keep", old, old)
    if (old.unit, old.kind, old.better) != (new.unit, new.kind, new.better):
        return Change(test, name, "update", old, new, "not comparable")
    if _on_two_processors(old, new):
        if _of_another_code(old, new):
            return Change(test, name, "update", old, new, "not comparable")
        return Change(test, name, "create", None, new)
    if _stands(old, new):
        kept = _renewed(old, new)
        return Change(test, name, "keep" if kept == old else "update", old, kept)
    if _of_the_same_code(old, new):
        return Change(test, name, "update", old, _of_both_days(old, new))
    return Change(test, name, "update", old, new, _direction(old, new))


def _stands(old: Entry, new: Entry) -> bool:
    """Whether the old entry stays, but for what `_renewed` renews, because the new one adds nothing to it."""
    if _renewed(old, new) == new:
        return True
    if old.provenance != new.provenance:
        # A document never displaces what a device or its compiler says, and a compiled metric that agrees with the
        # measured one adds nothing. Otherwise saves on two machines would swap the provenance for ever.
        if "reported" in (old.provenance, new.provenance):
            return new.provenance == "reported"
        return new.provenance == "compiled" and _same_result(old, new)
    if old.provenance == "compiled" and old.kind == "info" and old.unit == new.unit == "s":
        return not _other_versions(old, new)  # seconds of whichever machine compiled it
    if old.kind in ("count", "size") or old.provenance == "reported":
        # A count or a size depends on the versions, not on the processor or the device count.
        return _same_result(old, new) and not _other_versions(old, new) and old.source == new.source
    return old.environment == new.environment and _within_noise(old, new)


def _renewed(old: Entry, new: Entry) -> Entry:
    """The old entry, with the name that the metric has now, and the fingerprint of what was found to take as long."""
    return dataclasses.replace(old, label=new.label, fingerprint=new.fingerprint)


def _same_result(old: Entry, new: Entry) -> bool:
    return (old.value, old.interval, old.detail) == (new.value, new.interval, new.detail)


def _other_versions(old: Entry, new: Entry) -> bool:
    if old.environment is None or new.environment is None:
        return old.environment is not new.environment
    return bool(version_changes(old.environment, new.environment))


def _within_noise(old: Entry, new: Entry) -> bool:
    if old.value == new.value:
        return True
    if old.kind == "info" and abs(new.value - old.value) <= INFO_SLACK * abs(old.value):
        return True
    was, is_now = _range(old), _range(new)
    return was.low <= is_now.high and is_now.low <= was.high


def _range(entry: Entry) -> Interval:
    # A value need not lie in its own interval: a file may have been edited by hand.
    interval = entry.interval or Interval(entry.value, entry.value)
    return Interval(min(interval.low, entry.value), max(interval.high, entry.value))


def _direction(old: Entry, new: Entry) -> Direction:
    if old.provenance == "reported" or incomparable(old.kind, old.unit, old.environment, new.environment):
        return "not comparable"
    if old.value == new.value or (old.kind in _SAMPLED_KINDS and _within_noise(old, new)):
        return "same"
    return "better" if (new.value < old.value) == (old.better == "lower") else "worse"
