"""What changed between the base and the head, of what is exact, and where: trace, lower, compile, host calls, program.

Counts and sizes are compared by the gate's own rules (`gate.verdict`), with the metrics of the base as the baseline.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perfsuite.against.found import Called, MetricChange, TestChange, Where
from perfsuite.against.notes import Place, Runs, Stage
from perfsuite.against.runs import FirstRun, Window
from perfsuite.gate.baseline import Baselines, Entry, name_of
from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import judge_baseline
from perfsuite.measure import units
from perfsuite.measure.metric import Metric, title

_STAGE_UNITS: dict[Stage, str] = {"trace": "traces", "lower": "lowerings", "compile": "compiles"}
_OF_STAGES: dict[str, Where] = {
    **{unit: stage for stage, unit in _STAGE_UNITS.items()},
    units.CALLS_TO_TRACE: "trace",
    units.EQUATIONS: "trace",
    units.CALLS_TO_LOWER: "lower",
}
_HOST_UNITS = (units.HOST_CALLS, units.MISSES, *units.IMPORTED, units.BACKENDS)
_CALLED: dict[str, Called] = {
    "fail": "worse",
    "improved": "better",
    "inconclusive": "undecided",
    "not comparable": "not comparable",
}
_SAME = Environment("the same on both sides", 1, "", "", "", "")


def outcomes_changed(base: FirstRun, head: FirstRun) -> list[TestChange]:
    """Every test that failed or could not run on one of the sides, those that passed at the base first."""
    old, new = base.run.notes, head.run.notes
    found: list[TestChange] = []
    for test in dict.fromkeys([*old.tests, *new.tests]):
        (was, why_base), (now, why_head) = (notes.tests.get(test, ("not run", "")) for notes in (old, new))
        if {was, now} - {"passed", "skipped"} or was != now:
            found.append(TestChange(test, was, now, _reasons(why_base, why_head)))
    for file in dict.fromkeys([*old.uncollected, *new.uncollected]):
        was, now = ("not run" if file in notes.uncollected else "collected" for notes in (old, new))
        found.append(TestChange(file, was, now, _reasons(old.uncollected.get(file, ""), new.uncollected.get(file, ""))))
    return sorted(found, key=lambda change: not change.worse)


def metrics_changed(base: FirstRun, head: FirstRun) -> list[MetricChange]:
    """Every exact metric of the tests that passed on both sides, by the gate's rules.

    Times and sampled ratios are left out: many processes measure them, and these runs took one look at each.
    """
    passed = passed_in_both(base, head)
    here = base.run.notes.device or head.run.notes.device
    found: list[MetricChange] = []
    for device in sorted({*base.baselines, *head.baselines}):
        old, new = (each.baselines.get(device, Baselines(device)).metrics for each in (base, head))
        for key in sorted({*old, *new}):
            test = _test_of(key)
            if test not in passed:
                continue
            was, now = old.get(key, {}), new.get(key, {})
            for id, entry in sorted({**was, **now}.items()):
                shown = title(name_of(id, entry), None if device == here else device)
                place = next((each for run in (head, base) if (each := run.place(test, shown))), Place())
                if place.sampled:
                    continue
                found += _metric_changed(key, shown, was.get(id), now.get(id), place)
    return found


def to_time(base: FirstRun, head: FirstRun, changes: Iterable[MetricChange]) -> tuple[set[str], set[str]]:
    """The tests with times that may have changed, and those with times that run what they ran.

    A test is timed where any of its exact metrics changed, and where what a call of it runs differs between the sides,
    or is not known.
    """
    changed = {change.test for change in changes if change.called != "no change seen"}
    may: set[str] = set()
    same: set[str] = set()
    for test, (old, new) in _runs(base, head).items():
        alike = old == new and all(runs.known for runs in new.values())
        (same if alike and test not in changed else may).add(test)
    return may, same


def explained(
    times: Iterable[MetricChange], base: FirstRun, head: FirstRun, exact: Sequence[MetricChange]
) -> list[MetricChange]:
    """The times that are worse, each with what else changed in its test."""
    runs = _runs(base, head)
    found = []
    for change in times:
        if change.called == "worse":
            place = head.place(change.test, change.metric) or Place()
            rose = [each.metric for each in exact if each.test == change.test and each.called == "worse"]
            old, new = runs.get(change.test, ({}, {}))
            parts = [what for name in old.keys() & new.keys() for what in old[name].differing(new[name])]
            change = dataclasses.replace(change, line=place.line, changed=tuple(dict.fromkeys([*parts, *rose])))
        found.append(change)
    return found


def stages_changed(base: FirstRun, head: FirstRun, windows: Sequence[Window] = ()) -> list[MetricChange]:
    """How often each test traced, lowered and compiled.

    More is called only where every process of the head counted more than every one of the base: the first runs, and
    those that only timed, each compared among themselves, because they run different instruments.
    """
    sides = [[run.notes for window in windows for run in window.sides[side] if not run.problem] for side in (0, 1)]
    found = []
    for test in sorted(passed_in_both(base, head)):
        for stage, unit in _STAGE_UNITS.items():
            old, new = (each.run.notes.counts(test, stage) for each in (base, head))
            if not old and not new:
                continue
            entry = Entry(sum(old.values()), unit, "count", "measured", _SAME, detail=old or None)
            places = head.run.notes.stage_places(test, stage)
            metric = Metric(unit, sum(new.values()), unit, "count", detail=new or None, places=places or None)
            change = _judged(test, metric, entry, stage)
            totals = [[sum(n.counts(test, stage).values()) for n in side if test in n.passed] for side in sides]
            apart = not all(totals) or min(totals[1]) > max(totals[0]) or max(totals[1]) < min(totals[0])
            if change.called in ("worse", "better") and not apart:
                seen = " and ".join(f"{min(side)} to {max(side)}" for side in totals)
                reason = f"but in the processes that only timed, {seen}: not called"
                change = dataclasses.replace(change, called="undecided", reason=reason, grown=())
            found.append(change)
    return found


def passed_in_both(base: FirstRun, head: FirstRun) -> set[str]:
    """The tests whose metrics can be compared."""
    return base.run.notes.passed & head.run.notes.passed


def _test_of(key: str) -> str:
    return key.partition(" --perf-size=")[0]


def _runs(base: FirstRun, head: FirstRun) -> dict[str, tuple[Mapping[str, Runs], Mapping[str, Runs]]]:
    """What each test that passed on both sides runs to time it: at the base and at the head, by the metrics' titles."""
    found = {
        test: tuple(
            {name: place.runs for name, place in each.run.notes.places.get(test, {}).items() if place.sampled}
            for each in (base, head)
        )
        for test in passed_in_both(base, head)
    }
    return {test: (old, new) for test, (old, new) in found.items() if old or new}


def _metric_changed(key: str, name: str, old: Entry | None, new: Entry | None, place: Place) -> Iterator[MetricChange]:
    """Nothing for a time, which is compared over processes, nor for information, which no gate judges."""
    known = new or old
    if known is None or known.kind in ("time", "info"):
        return
    where, test = where_of(name, known.unit), _test_of(key)
    if new is None:
        yield MetricChange(where, test, name, known.unit, known.value, None, "gone")
    elif old is None:
        yield MetricChange(where, test, name, known.unit, None, known.value, "new")
    else:
        detail = dict(new.detail) if new.detail else None
        metric = Metric(
            name, new.value, new.unit, new.kind, new.better, new.interval, detail=detail, places=place.parts or None
        )
        yield dataclasses.replace(_judged(test, metric, old, where), line=place.line)


def _judged(test: str, metric: Metric, old: Entry, where: Where) -> MetricChange:
    # Both are of this machine. The gate must not name the versions, which differ for every metric.
    gate = judge_baseline(test, metric, old, now=old.environment or _SAME)
    ratio = metric.value / gate.baseline if gate.baseline else None
    return MetricChange(
        where,
        test,
        metric.name,
        metric.unit,
        gate.baseline,
        metric.value,
        _CALLED.get(gate.verdict, "no change seen"),
        ratio=ratio,
        grown=gate.grown if gate.failed else (),
    )


def where_of(name: str, unit: str) -> Where:
    """The place of a metric."""
    if unit in _HOST_UNITS or (unit == "transfers" and not name.partition(" @ ")[0].endswith(" host transfers")):
        return "host calls"
    if unit in _OF_STAGES:
        return _OF_STAGES[unit]
    if unit == "programs" or name.endswith(" eager operations"):
        return "dispatch"
    if unit in ("x", "us", "waits", "stalls", "us/unit"):
        return "dispatch" if unit == "waits" or name.endswith((" to return", " to return per unit")) else "device"
    return "program"


def _reasons(base: str, head: str) -> str:
    """Why a test ended as it did; what is the same on both sides stands there once."""
    if base == head:
        return head
    return "; ".join(f"{name}: {why}" for name, why in (("head", head), ("base", base)) if why)
