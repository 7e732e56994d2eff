"""What changed between the base and the head, and where: trace, lower, compile, dispatch, host calls, program, device.

Counts and sizes are compared by the gate's own rules (`gate.verdict`), with the metrics of the base as the baseline.
Times, and ratios of times, are compared over processes, because each process has a speed of its own (it depends on
where its memory lies), and the machine drifts: for one ratio with the same host calls, one process of each side gave
1.4 and 3.2 (`filter_jit` over `jit`, jax 0.10.0 and 0.10.2, 2 cores at a load average of 15). So each process gives one
observation of each time, and processes of both sides run in windows, in random order.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from perfsuite.against.found import ERROR, PLACES, Called, MetricChange, TestChange, Where
from perfsuite.against.notes import Notes, Place, Stage
from perfsuite.against.runs import FirstRun, Window, looks, sizes
from perfsuite.gate.baseline import Baselines, Entry, name_of
from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import judge_baseline
from perfsuite.measure import units
from perfsuite.measure.metric import Interval, Metric, title
from perfsuite.measure.stats.rank_sum import Windows, shift, shift_interval

LEAST_STAGE_SECONDS = 0.01
"""Stages of a function that take less, averaged over the processes of both sides, are summed over the functions."""

OTHERS = "all others"

PRECISION = 0.02
"""A time whose ratio is known to so much, either way, needs no more processes."""

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
_PLACES_OF_STAGES: tuple[Where, ...] = tuple(_STAGE_UNITS)

Prints = Mapping[str, Mapping[str, str] | None]
"""The fingerprint of each timed metric, by its title; None where it has none."""

Key = tuple[Where, str, str, str]
"""Place, test, metric and unit."""


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

    A test is timed where any of its exact metrics changed, and where a call that it times has no fingerprint or not the
    same on both sides.
    """
    changed = {change.test for change in changes if change.called != "no change seen"}
    may: set[str] = set()
    same: set[str] = set()
    for test, (old, new) in _prints(base, head).items():
        alike = old == new and None not in new.values()
        (same if alike and test not in changed else may).add(test)
    return may, same


def explained(
    times: Iterable[MetricChange], base: FirstRun, head: FirstRun, exact: Sequence[MetricChange]
) -> list[MetricChange]:
    """The times that are worse, each with what else changed in its test."""
    prints = _prints(base, head)
    found = []
    for change in times:
        if change.called == "worse":
            place = head.place(change.test, change.metric) or Place()
            rose = [each.metric for each in exact if each.test == change.test and each.called == "worse"]
            old, new = prints.get(change.test, ({}, {}))
            parts = [
                part
                for name in old.keys() & new.keys()
                for part, hashed in (new[name] or {}).items()
                if (old[name] or {}).get(part) != hashed
            ]
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


def times_changed(windows: Sequence[Window], tests: set[str], looks: int = 1) -> list[MetricChange]:
    """The times of `tests`: head / base over processes, with intervals that hold for all of them together.

    Each interval has the shifts of the logarithm that the rank-sum test over the windows does not reject
    (`measure.stats.rank_sum`). It assumes nothing of the times but the random order of the processes, where Student's t
    needs means of few and heavy-tailed times to be normal; the price is that a few processes give no interval at all.
    The error is shared out equally among the metrics (O. J. Dunn, Multiple comparisons among means, Journal of the
    American Statistical Association 56, 1961), and among the looks after which the processes may have been ended: so
    ending them when enough is seen does not add to it.
    """
    rows = _rows([window for window in windows if window.complete], tests)
    return [_time_changed(key, sides, ERROR / len(rows) / looks) for key, sides in rows.items()]


def decided(changes: Sequence[MetricChange]) -> bool:
    """Whether every time of a call is known: as better, as worse, or to `PRECISION`.

    The times of tracing, lowering and compiling do not count: they happen once a process, and scatter too much.
    """
    return all(change.where in _PLACES_OF_STAGES or _is_decided(change) for change in changes)


def _is_decided(change: MetricChange) -> bool:
    if change.interval is None:
        return False
    return change.called != "no change seen" or change.interval.high / change.interval.low <= (1 + PRECISION) ** 2


def passed_in_both(base: FirstRun, head: FirstRun) -> set[str]:
    """The tests whose metrics can be compared."""
    return base.run.notes.passed & head.run.notes.passed


def rounds_needed(metrics: int, shared: int = 1) -> int:
    """The fewest rounds that can call any change of so many times: all processes of one side below all of the other.

    `shared` is the number of looks among which the error is shared.
    """
    rounds = 2
    while 2 * math.prod(1 / math.comb(2 * size, size) for size in sizes(rounds)) > ERROR / max(metrics, 1) / shared:
        rounds += 1
    return rounds


def smallest_called(rounds: int, metrics: int) -> float | None:
    """The smallest change of so many times that so many rounds call half of the time, or None where they call none.

    It is in units of the standard deviation of a time's logarithm between processes of the same code: the median
    half width of the interval of `times_changed`, over 200 draws of normal noise.
    """
    shared = looks(rounds)
    if rounds < rounds_needed(metrics, shared):
        return None
    draw, windows = np.random.default_rng(0).standard_normal, sizes(rounds)
    noise = ([(draw((1, size)), draw((1, size))) for size in windows] for _ in range(200))
    widths = [shift_interval(each, ERROR / max(metrics, 1) / shared) for each in noise]
    return float(np.median([(each.high - each.low) / 2 for each in widths]))


def smallest_seen(changes: Sequence[MetricChange]) -> float | None:
    """The change that would have been called for half of the times, as a ratio - 1; None where none has an interval."""
    widths = [math.log(c.interval.high / c.interval.low) / 2 for c in changes if c.interval and c.processes > 1]
    return math.expm1(float(np.median(widths))) if widths else None


def _test_of(key: str) -> str:
    return key.partition(" --perf-size=")[0]


def _prints(base: FirstRun, head: FirstRun) -> dict[str, tuple[Prints, Prints]]:
    """The fingerprints of what each test that passed on both sides times: at the base and at the head, by title."""
    found = {
        test: tuple(
            {name: place.fingerprint for name, place in each.run.notes.places.get(test, {}).items() if place.sampled}
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
    where, test = _where(name, known.unit), _test_of(key)
    if new is None:
        yield MetricChange(where, test, name, known.unit, known.value, None, "gone")
    elif old is None:
        yield MetricChange(where, test, name, known.unit, None, known.value, "new")
    else:
        detail = dict(new.detail) if new.detail else None
        metric = Metric(name, new.value, new.unit, new.kind, new.better, detail=detail, places=place.parts or None)
        yield dataclasses.replace(_judged(test, metric, old, where), line=place.line)


def _judged(test: str, metric: Metric, old: Entry, where: Where) -> MetricChange:
    # Both are of this machine. The gate must not name the versions, which differ for every metric.
    gate = judge_baseline(test, metric, old, now=old.environment or _SAME)
    ratio = metric.value / old.value if old.value else None
    return MetricChange(
        where,
        test,
        metric.name,
        metric.unit,
        old.value,
        metric.value,
        _CALLED.get(gate.verdict, "no change seen"),
        ratio=ratio,
        grown=gate.grown if gate.failed else (),
    )


def _where(name: str, unit: str) -> Where:
    if unit in _HOST_UNITS or (unit == "transfers" and not name.partition(" @ ")[0].endswith(" host transfers")):
        return "host calls"
    if unit in _OF_STAGES:
        return _OF_STAGES[unit]
    if unit == "programs" or name.endswith(" eager operations"):
        return "dispatch"
    if unit in ("x", "us", "waits", "stalls", "us/unit"):
        return "dispatch" if unit == "waits" or name.endswith((" to return", " to return per unit")) else "device"
    return "program"


def _rows(windows: Sequence[Window], tests: set[str]) -> dict[Key, list[Windows]]:
    """The logarithm of each time that all processes have, by window: (head, base), each of shape (1, processes)."""
    if not windows:
        return {}
    runs_of_sides = [side for window in windows for side in window.sides]
    times = [_times(run.notes, tests) for runs in runs_of_sides for run in runs]
    large = _large_stages(times)
    times = [_folded(each, large) for each in times]
    common = set.intersection(*map(set, times))
    ends = np.cumsum([len(runs) for runs in runs_of_sides])[:-1]
    rows: dict[Key, list[Windows]] = {}
    for key in sorted(common, key=lambda key: (PLACES.index(key[0]), *key[1:])):
        sides = np.split(np.log([[each[key] for each in times]]), ends, axis=1)
        rows[key] = list(zip(sides[1::2], sides[::2], strict=True))
    return rows


def _times(notes: Notes, tests: set[str]) -> dict[Key, float]:
    stages: dict[Key, float] = {
        (note.stage, note.test, note.function, "s"): note.seconds for note in notes.stages if note.seconds > 0
    }
    times = {(_where(note.name, note.unit), note.test, note.name, note.unit): note.value for note in notes.times}
    return {key: value for key, value in (stages | times).items() if key[1] in tests}


def _large_stages(every: Sequence[Mapping[Key, float]]) -> set[Key]:
    """Functions whose stage takes long enough for a row of its own: each row more widens the intervals of all."""
    common = set.intersection(*(set(times) for times in every))
    return {
        key
        for key in common
        if key[3] == "s" and sum(times[key] for times in every) / len(every) >= LEAST_STAGE_SECONDS
    }


def _folded(times: Mapping[Key, float], large: set[Key]) -> dict[Key, float]:
    """The same times, with the seconds of small functions summed."""
    found: defaultdict[Key, float] = defaultdict(float)
    for key, seconds in times.items():
        where, test, _, unit = key
        found[key if unit != "s" or key in large else (where, test, OTHERS, unit)] += seconds
    return dict(found)


def _time_changed(key: Key, windows: list[Windows], error: float) -> MetricChange:
    logs = shift_interval(windows, error)
    head, base = (float(np.median(np.exp(np.concatenate([w[side].ravel() for w in windows])))) for side in (0, 1))
    interval = Interval(math.exp(logs.low), math.exp(logs.high)) if math.isfinite(logs.high) else None
    called: Called = "no change seen"
    if interval is None:
        called = "undecided"
    elif interval.low > 1:
        called = "worse"
    elif interval.high < 1:
        called = "better"
    processes = sum(window[0].size for window in windows)
    return MetricChange(*key, base, head, called, "", math.exp(shift(windows)), interval, processes)


def _reasons(base: str, head: str) -> str:
    """Why a test ended as it did; what is the same on both sides stands there once."""
    if base == head:
        return head
    return "; ".join(f"{name}: {why}" for name, why in (("head", head), ("base", base)) if why)
