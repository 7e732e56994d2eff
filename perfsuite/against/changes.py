"""What changed between the base and the head, of what is exact, and which tests cannot be compared.

Counts and sizes are compared by the gate's own rules (`gate.verdict`), with the metrics of the base as the baseline.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from perfsuite.against.notes import Place, Runs, Stage
from perfsuite.against.runs import FirstRun
from perfsuite.gate.baseline import Baselines, Entry, name_of
from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import Part, Verdict, judge_baseline
from perfsuite.measure.metric import Interval, Metric, title

Called = Literal["worse", "better", "no change seen", "undecided", "new", "gone", "not comparable"]

ERROR = 0.05
"""The probability that a whole check calls any change of a time where there is none."""

_STAGE_UNITS: dict[Stage, str] = {"lower": "lowerings", "compile": "compiles"}
"""Not traces: JAX tells of them around calls whose trace is cached too, so there are as many as calls."""

_CALLED: dict[Verdict, Called] = {
    Verdict.FAIL: "worse",
    Verdict.IMPROVED: "better",
    Verdict.INCONCLUSIVE: "undecided",
    Verdict.NOT_COMPARABLE: "not comparable",
}
_TOLERANCE = 0.05
"""By how much a ratio that a test records may be worse: both are of this machine and of now, not of another day."""

_SAME = Environment("the same on both sides", 1, "", "", "", "")


@dataclasses.dataclass(frozen=True)
class MetricChange:
    """One metric of one test on both sides, and what the check calls its change.

    `base` and `head` are in `unit`; for a time they are the medians over the processes, and `ratio` is head / base
    with `interval`, which holds over all times of the check together with probability 1 - `ERROR`. `processes` is the
    number on each side. `reason` says why the two cannot be compared; `grown` are the parts of the metric that got
    worse. `line` is where the test makes the metric. `changed` names what else differs in the test: the programs or the
    host calls of what is timed, and counts that rose.
    """

    test: str
    metric: str
    unit: str
    base: float | None
    head: float | None
    called: Called
    ratio: float | None = None
    interval: Interval | None = None
    processes: int = 1
    reason: str = ""
    grown: tuple[Part, ...] = ()
    line: str = ""
    changed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TestChange:
    """A test that did not pass on both sides, or a file that was not collected: how it ended on each, and why."""

    __test__ = False

    test: str
    base: str
    head: str
    reason: str

    @property
    def worse(self) -> bool:
        """Whether it can no longer be run, or fails where it passed."""
        return self.base == "passed" != self.head

    @property
    def only_at_head(self) -> bool:
        """Whether it is a test for what only the head has."""
        return self.head == "passed" and self.base not in ("passed", "skipped")


def outcomes_changed(base: FirstRun, head: FirstRun) -> list[TestChange]:
    """Every test that failed or could not run on one of the sides, those that passed at the base first."""
    found: list[TestChange] = []
    for test in dict.fromkeys([*base.notes.tests, *head.notes.tests]):
        (was, why_base), (now, why_head) = (side.notes.tests.get(test, ("not run", "")) for side in (base, head))
        if {was, now} - {"passed", "skipped"} or was != now:
            both = (("head", why_head), ("base", why_base))
            why = why_head if why_base == why_head else "; ".join(f"{name}: {text}" for name, text in both if text)
            found.append(TestChange(test, was, now, why))
    return sorted(found, key=lambda change: not change.worse)


def passed_in_both(base: FirstRun, head: FirstRun) -> set[str]:
    """The tests whose metrics can be compared."""
    return base.notes.passed & head.notes.passed


def metrics_changed(base: FirstRun, head: FirstRun) -> list[MetricChange]:
    """Every exact metric of the tests that passed on both sides, by the gate's rules.

    Times and sampled ratios are left out: many processes measure them, and these runs took one look at each.
    """
    passed = passed_in_both(base, head)
    here = base.notes.device or head.notes.device
    found: list[MetricChange] = []
    for device in sorted({*base.baselines, *head.baselines}):
        old, new = (each.baselines.get(device, Baselines(device)).metrics for each in (base, head))
        for key in sorted({*old, *new}):
            test = test_of(key)
            if test not in passed:
                continue
            was, now = old.get(key, {}), new.get(key, {})
            for id, entry in sorted({**was, **now}.items()):
                shown = title(name_of(id, entry), None if device == here else device)
                place = head.place(test, shown) or base.place(test, shown) or Place()
                if not place.sampled and entry.kind not in ("time", "info"):
                    found.append(_metric_changed(test, shown, was.get(id), now.get(id), place))
    return found


def stages_changed(base: FirstRun, head: FirstRun) -> list[MetricChange]:
    """How often each test lowered and compiled, by function."""
    found = []
    for test in sorted(passed_in_both(base, head)):
        for stage, unit in _STAGE_UNITS.items():
            old, new = (each.notes.stages_of(test, stage) for each in (base, head))
            if not old and not new:
                continue
            was, now = (Counter({note.function: note.count for note in notes}) for notes in (old, new))
            entry = Entry(was.total(), unit, "count", "measured", _SAME, detail=dict(was) or None)
            places = {note.function: note.place for note in new if note.place}
            metric = Metric(unit, now.total(), unit, "count", detail=dict(now) or None, places=places or None)
            found.append(judged(test, metric, entry))
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


def test_of(key: str) -> str:
    """The test as pytest knows it: a baseline file adds the size."""
    return key.partition(" --perf-size=")[0]


def judged(test: str, metric: Metric, old: Entry) -> MetricChange:
    """What the gate says of a metric, with `old` as its baseline."""
    # Both are of this machine. The gate must not name the versions, which differ for every metric.
    result = judge_baseline(test, metric, old, now=old.environment or _SAME, tolerance=_TOLERANCE)
    return MetricChange(
        test,
        metric.name,
        metric.unit,
        result.baseline,
        metric.value,
        _CALLED.get(result.verdict, "no change seen"),
        ratio=metric.value / result.baseline if result.baseline else None,
        reason=result.incomparable,
        grown=result.grown if result.failed else (),
    )


def metric_of(name: str, entry: Entry, places: dict[str, str] | None = None) -> Metric:
    """A recorded metric, to be judged again. `places` are those of its parts."""
    detail = dict(entry.detail) if entry.detail else None
    return Metric(
        name,
        entry.value,
        entry.unit,
        entry.kind,
        entry.better,
        entry.interval,
        detail=detail,
        places=places,
    )


def _metric_changed(test: str, name: str, old: Entry | None, new: Entry | None, place: Place) -> MetricChange:
    if old is not None and new is not None:
        return dataclasses.replace(judged(test, metric_of(name, new, place.parts or None), old), line=place.line)
    if new is not None:
        return MetricChange(test, name, new.unit, None, new.value, "new")
    assert old is not None
    return MetricChange(test, name, old.unit, old.value, None, "gone")


def _runs(base: FirstRun, head: FirstRun) -> dict[str, tuple[Mapping[str, Runs], Mapping[str, Runs]]]:
    """What each test that passed on both sides runs to time it: at the base and at the head, by the metrics' titles."""
    found: dict[str, tuple[Mapping[str, Runs], Mapping[str, Runs]]] = {}
    for test in passed_in_both(base, head):
        old, new = (
            {name: place.runs for name, place in each.notes.places.get(test, {}).items() if place.sampled}
            for each in (base, head)
        )
        if old or new:
            found[test] = old, new
    return found


def versions_changed(base: Mapping[str, str], head: Mapping[str, str]) -> list[str]:
    """The packages that differ: `["jax 0.10.0 -> 0.10.2"]`."""
    return [
        f"{name} {base.get(name, 'absent')} -> {head.get(name, 'absent')}"
        for name in sorted({*base, *head})
        if base.get(name) != head.get(name)
    ]
