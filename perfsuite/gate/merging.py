"""What a save changes: the rules by which new metrics replace those of a baseline file."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

from perfsuite.gate.baseline import Baselines, Entry, Provenance, Revision, beside, name_of
from perfsuite.gate.environment import OTHER_PROCESSOR, incomparable, version_changes
from perfsuite.gate.verdict import TOLERANCES
from perfsuite.measure.metric import Interval

Action = Literal["create", "update", "trim", "keep"]
Direction = Literal["better", "worse", "same", "not comparable"]

# An info metric (compile seconds) is never gated and rarely has an interval. One that moved by less than this, relative
# to the recorded one, is left alone, or every save would rewrite it.
INFO_SLACK = 0.25

_SAMPLED_KINDS = ("ratio", "time", "info")


@dataclasses.dataclass(frozen=True)
class Change:
    """How a save changed one metric of a test. `old` is None when it was created, `new` when it was trimmed.

    `new` is what the file holds now: for a metric that was kept, the old entry. Where the code is another one
    (`other_code`), the entries of all other processors go with the old one, each in a change of its own (`trim`).
    `beside`: it is of another processor than the first that the file has the metric of.
    """

    test: str
    id: str
    action: Action
    old: Entry | None
    new: Entry | None
    direction: Direction = "same"
    other_code: bool = False
    beside: bool = False

    @property
    def name(self) -> str:
        """What people call the metric."""
        entry = self.new or self.old
        assert entry is not None
        name = name_of(self.id, entry)
        return beside(name, entry.processor) if self.beside else name

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
    changes += list(_left_behind(old, changes))
    merged = _applied(old, changes)
    changes = [dataclasses.replace(each, beside=_is_beside(old, each)) for each in changes]
    changed = {change.test for change in changes if change.action != "keep"}
    revisions = {test: each for test, each in old.revisions.items() if test in merged.metrics and test not in changed}
    if revision is not None:
        revisions |= dict.fromkeys(changed & merged.metrics.keys(), revision)
    return dataclasses.replace(merged, revisions=revisions), tuple(changes)


def _left_behind(old: Baselines, changes: Iterable[Change]) -> Iterator[Change]:
    """What other processors have of metrics that go, or that are of another code now."""
    for change in changes:
        if change.action == "trim" or change.other_code:
            direction: Direction = "not comparable" if change.other_code else "same"
            for entry in old.of_each_processor(change.test, change.id).values():
                if entry != change.old:
                    yield Change(change.test, change.id, "trim", entry, None, direction)


def _applied(old: Baselines, changes: Iterable[Change]) -> Baselines:
    """The metrics after the changes. What was measured on a further processor goes beside what is there."""
    made = {(test, id): old.of_each_processor(test, id) for test, entries in old.metrics.items() for id in entries}
    for change in changes:
        entries = made.setdefault((change.test, change.id), {})
        if change.old is not None and (change.new is None or change.new.processor != change.old.processor):
            del entries[change.old.processor]
        if change.new is not None:
            entries[change.new.processor] = change.new
    metrics: dict[str, dict[str, Entry]] = {}
    others: dict[str, dict[str, dict[str, Entry]]] = {}
    for (test, id), entries in made.items():
        for place, (processor, entry) in enumerate(entries.items()):
            table = others.setdefault(processor, {}) if place else metrics
            table.setdefault(test, {})[id] = entry
    return Baselines(old.device, metrics, other_processors=others)


def _on_two_processors(old: Entry, new: Entry) -> bool:
    """Whether each was measured on another processor, on which it depends: neither replaces the other."""
    return old.kind == new.kind and bool(old.processor and new.processor) and old.processor != new.processor


def _made(old: Baselines, new: Mapping[str, Mapping[str, Entry]], kinds: Collection[str] | None) -> Iterator[Change]:
    """The changes of the metrics that were made."""
    for test in sorted(new):
        for id in sorted(new[test]):
            entry = new[test][id]
            was = old.of_each_processor(test, id).get(entry.processor) or old.get(test, id)
            change = _recorded(test, id, was, entry)
            if _is_wanted(change, kinds):
                yield change
            elif change.old is not None:
                yield Change(test, id, "keep", change.old, change.old)


def _trimmed(
    old: Baselines, new: Mapping[str, Mapping[str, Entry]], vanishing: Mapping[str, tuple[Provenance, ...]]
) -> Iterator[Change]:
    """The metrics that go: those of `vanishing` tests that were not made again, if of the provenances given."""
    for test in sorted(vanishing.keys() & old.metrics.keys()):
        for id in sorted(old.metrics[test].keys() - new.get(test, {}).keys()):
            entry = old.metrics[test][id]
            if entry.provenance in vanishing[test]:
                yield Change(test, id, "trim", entry, None)


def _is_beside(before: Baselines, change: Change) -> bool:
    first, entry = before.get(change.test, change.id), change.old or change.new
    return first is not None and entry is not None and _on_two_processors(first, entry)


def _is_wanted(change: Change, kinds: Collection[str] | None) -> bool:
    kind = "new" if change.action == "create" and change.direction == "same" else change.direction
    return change.action == "keep" or kinds is None or kind in kinds


def _recorded(test: str, id: str, old: Entry | None, new: Entry) -> Change:
    if old is None:
        return Change(test, id, "create", None, new)
    if old.kind == "ratio" and new.kind == "info" and new.samples and old.unit == new.unit:
        # A comparison of too few pairs for an interval: it must not take the place of a metric that gates.
        return Change(test, id, "keep", old, old)
    if (old.unit, old.kind, old.better) != (new.unit, new.kind, new.better):
        return Change(test, id, "update", old, new, "not comparable", other_code=True)
    if _on_two_processors(old, new):
        return Change(test, id, "create", None, new, "worse" if _fails_on_any_processor(old, new) else "same")
    if _stands(old, new):
        kept = _renewed(old, new)
        return Change(test, id, "keep" if kept == old else "update", old, kept)
    direction = _direction(old, new)
    # What depends on no processor any more stands for all.
    other_code = direction in ("better", "worse") or bool(old.processor and not new.processor)
    return Change(test, id, "update", old, new, direction, other_code)


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
    return old.environment == new.environment and _within_noise(old, new) and not _narrows(old, new)


def _narrows(old: Entry, new: Entry) -> bool:
    """Whether the old interval is so wide that its gate sees little, and the new one, which meets it, is not wide."""
    return _is_wide(old) and not _is_wide(new) and _within_noise(old, new)


def _is_wide(entry: Entry) -> bool:
    """Whether the limit of its gate starts further from the value than the tolerance of its kind."""
    if entry.kind not in ("ratio", "time") or entry.interval is None:
        return False
    end = entry.interval.high if entry.better == "lower" else entry.interval.low
    return abs(end - entry.value) > TOLERANCES[entry.kind] * abs(entry.value)


def _renewed(old: Entry, new: Entry) -> Entry:
    """The old entry, with the name that the metric has now."""
    return dataclasses.replace(old, label=new.label)


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


def _fails_on_any_processor(old: Entry, new: Entry) -> bool:
    """Whether a ratio is as far above another processor's as no two processors are apart: a gate fails it."""
    was, is_now = _range(old), _range(new)
    if new.kind != "ratio":
        return False
    return is_now.low > OTHER_PROCESSOR * was.high if new.better == "lower" else is_now.high < was.low / OTHER_PROCESSOR


def _direction(old: Entry, new: Entry) -> Direction:
    if old.provenance == "reported" or incomparable(old.kind, old.unit, old.environment, new.environment):
        return "not comparable"
    if old.value == new.value or (old.kind in _SAMPLED_KINDS and _within_noise(old, new)):
        return "same"
    return "better" if (new.value < old.value) == (old.better == "lower") else "worse"
