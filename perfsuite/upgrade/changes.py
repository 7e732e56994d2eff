"""What changed between two environments, and where: trace, lower, compile, dispatch, host calls, program, device.

Counts and sizes are held against each other by the gate's own rules (`gate.verdict`), the metrics of the old
environment being the baseline. Of times one process says little: it has a speed of its own (where its memory came to
lie), and the machine's drifts. So every time of a process, and every ratio of times, is one observation, and old and
new processes ran in windows, in random order. Of one ratio, with the same host calls, one process of each said 1.4 and
3.2 (`filter_jit` over `jit`, jax 0.10.0 and 0.10.2, 2 cores at a load average of 15).
"""

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.environment import HOST_CALLS_UNIT, Environment, environment_from_dict
from perfsuite.gate.verdict import judge_baseline
from perfsuite.hooks.upgrade_child import Notes
from perfsuite.measure.measurement import Interval, Metric, title
from perfsuite.measure.stats.rank_sum import Windows, shift, shift_interval
from perfsuite.upgrade.found import ERROR, PLACES, Called, Change, TestChange, Where
from perfsuite.upgrade.runs import Metrics, Window, sizes

LEAST_STAGE_SECONDS = 0.01
"""Stages of a function that take less, on both sides together on average, are summed over the functions of a test."""

OTHERS = "all others"

_STAGES: dict[str, tuple[Where, str]] = {
    "trace": ("trace", "traces"),
    "lower": ("lower", "lowerings"),
    "compile": ("compile", "compiles"),
}
_HOST_UNITS = (HOST_CALLS_UNIT, "misses")


def outcomes_changed(before: Metrics, after: Metrics) -> list[TestChange]:
    """Every test that failed or could not run in one of the environments, those that passed before first."""
    notes = [each.run.notes or Notes() for each in (before, after)]
    found: list[TestChange] = []
    for test in dict.fromkeys([*notes[0].tests, *notes[1].tests]):
        (was, why_before), (now, why_after) = (each.tests.get(test, ("not run", "")) for each in notes)
        if {was, now} - {"passed", "skipped"} or was != now:
            found.append(TestChange(test, was, now, _reasons(why_before, why_after)))
    for file in dict.fromkeys([*notes[0].uncollected, *notes[1].uncollected]):
        was, now = ("not run" if file in each.uncollected else "collected" for each in notes)
        found.append(TestChange(file, was, now, _reasons(*(each.uncollected.get(file, "") for each in notes))))
    return sorted(found, key=lambda change: not change.worse)


def metrics_changed(before: Metrics, after: Metrics, times: Sequence[Change] = ()) -> list[Change]:
    """Every count, size and ratio of the tests that passed in both environments, by the gate's rules.

    Not the ratios that are among `times`: of those one process of each side says less than many.
    """
    timed = {(change.test, change.metric) for change in times}
    passed = passed_in_both(before, after)
    found: list[Change] = []
    for device in sorted({*before.baselines, *after.baselines}):
        old, new = (each.baselines.get(device, Baselines(device)).metrics for each in (before, after))
        target = None if device == _device(before, after) else device
        for test in sorted({*old, *new}):
            if test.partition(" --perf-size=")[0] in passed:
                of_test = old.get(test, {}), new.get(test, {})
                for name in sorted({*of_test[0], *of_test[1]}):
                    made = _metric(test, title(name, target), *(entries.get(name) for entries in of_test))
                    found += [change for change in made if (test, change.metric) not in timed]
    return found


def stages_changed(before: Metrics, after: Metrics, windows: Sequence[Window] = ()) -> list[Change]:
    """How often each test traced, lowered and compiled.

    More is called only where every process of the new environment counted more than every one of the old: the first
    runs, and those that only timed, each among themselves, for they run different instruments.
    """
    environment = _environment(after)
    timed = [[_counts(run.notes) for window in windows for run in side(window)] for side in (_before, _after)]
    first = [_counts(each.run.notes) for each in (before, after)]
    found = []
    for test in sorted(passed_in_both(before, after)):
        for stage, (where, unit) in _STAGES.items():
            old, new = (each.get((test, stage), {}) for each in first)
            if not old and not new:
                continue
            totals = [[sum(each.get((test, stage), {}).values()) for each in side if each] for side in timed]
            change = _count(test, where, unit, old, new, environment)
            apart = not all(totals) or min(totals[1]) > max(totals[0]) or max(totals[1]) < min(totals[0])
            if change.called in ("worse", "better") and not apart:
                seen = " and ".join(f"{min(each)} to {max(each)}" for each in totals)
                reason = f"but in the processes that only timed, {seen}: not called"
                change = dataclasses.replace(change, called="undecided", reason=reason, grown=())
            found.append(change)
    return found


def times_changed(windows: Sequence[Window], tests: set[str]) -> list[Change]:
    """The times of `tests`: after / before over processes, with intervals that hold for all of them together.

    Each interval has the shifts of the logarithm that the rank-sum test over the windows does not reject
    (`measure.rank_sum`). Of the times it needs nothing but the random order of the processes, where Student's t would
    need means of few and heavy-tailed times to be normal; the price is that a few processes give no interval at all.
    The error is shared out equally among the metrics (O. J. Dunn, Multiple comparisons among means, Journal of the
    American Statistical Association 56, 1961).
    """
    whole = [window for window in windows if window.whole]
    rows = _rows(whole, tests)
    return [_time(key, sides, ERROR / len(rows)) for key, sides in rows.items()]


def passed_in_both(before: Metrics, after: Metrics) -> set[str]:
    """The tests whose metrics can be held against each other."""
    notes = [each.run.notes or Notes() for each in (before, after)]
    return set.intersection(*({test for test in each.tests if each.tests[test][0] == "passed"} for each in notes))


def rounds_needed(metrics: int) -> int:
    """The fewest rounds that can call any change of so many times: all of the old processes on one side of the new."""
    rounds = 2
    while 2 * math.prod(1 / math.comb(2 * size, size) for size in sizes(rounds)) > ERROR / max(metrics, 1):
        rounds += 1
    return rounds


def smallest_seen(changes: Sequence[Change]) -> float | None:
    """The change that would have been called in half of the times, as a ratio - 1; None where no interval was had."""
    widths = [math.log(c.interval.high / c.interval.low) / 2 for c in changes if c.interval and c.processes > 1]
    return math.expm1(float(np.median(widths))) if widths else None


def _metric(test: str, name: str, old: Entry | None, new: Entry | None) -> Iterator[Change]:
    made = new or old
    if made is None or made.kind in ("time", "info"):
        return  # times are compared over processes; what is information is none of a gate's
    where = _where(name, made.unit)
    if old is None or new is None:
        said: Called = "new" if old is None else "gone"
        was, now = (None, made.value) if old is None else (made.value, None)
        yield Change(where, test, name, made.unit, was, now, said)
        return
    metric = Metric(name, new.value, new.unit, new.kind, new.better, new.interval, new.samples, _detail(new.detail))
    # Both were made on this machine, and that the versions differ need not be said of each metric.
    gate = judge_baseline(test, metric, old, now=old.environment or _UNKNOWN)
    called: Mapping[str, Called] = {
        "fail": "worse",
        "improved": "better",
        "inconclusive": "undecided",
        "not comparable": "not comparable",
    }
    ratio = new.value / old.value if old.value else None
    interval = None
    if new.kind == "ratio" and new.interval is not None and old.value > 0:
        interval = Interval(new.interval.low / old.value, new.interval.high / old.value)
    held = "of one process each: --rounds says whether it holds" if new.kind == "ratio" and gate.failed else ""
    yield Change(
        where,
        test,
        name,
        new.unit,
        old.value,
        new.value,
        called.get(gate.verdict, "no change seen"),
        held,
        ratio,
        interval,
        grown=gate.grown if gate.failed else (),
    )


def _count(
    test: str, where: Where, unit: str, old: Mapping[str, int], new: Mapping[str, int], environment: Environment
) -> Change:
    before, after = sum(old.values()), sum(new.values())
    entry = Entry(before, unit, "count", "measured", environment, detail=old or None)
    metric = Metric(unit, after, unit, "count", detail=dict(new) or None)
    gate = judge_baseline(test, metric, entry, now=environment)
    called: Called = "worse" if gate.failed else "better" if gate.verdict == "improved" else "no change seen"
    ratio = after / before if before else None
    grown = gate.grown if gate.failed else ()
    return Change(where, test, unit, unit, before, after, called, ratio=ratio, grown=grown)


def _where(name: str, unit: str) -> Where:
    if unit in _HOST_UNITS or (unit == "transfers" and not name.partition(" @ ")[0].endswith(" host transfers")):
        return "host calls"
    if unit == "compiles":
        return "compile"
    if unit in ("x", "us", "waits", "stalls", "us/unit"):
        return "dispatch" if unit == "waits" or name.endswith((" to return", " to return per unit")) else "device"
    return "program"


Key = tuple[Where, str, str, str]
"""Where, test, metric and unit."""


def _rows(windows: Sequence[Window], tests: set[str]) -> dict[Key, list[Windows]]:
    """The times of each metric, shape (1, processes) of each side and window; only those that all processes have."""
    if not windows:
        return {}
    sides = [[[_times(run.notes) for run in side(window)] for side in (_before, _after)] for window in windows]
    functions = _large_stages([times for window in sides for side in window for times in side])
    folded = [[[_folded(times, functions) for times in side] for side in window] for window in sides]
    every = [times for window in folded for side in window for times in side]
    common = set.intersection(*(set(times) for times in every))
    rows: dict[Key, list[Windows]] = {}
    for key in sorted(common, key=lambda key: (PLACES.index(key[0]), *key[1:])):
        if key[1] in tests:
            rows[key] = [
                (
                    np.log([[times[key] for times in window[1]]]),
                    np.log([[times[key] for times in window[0]]]),
                )
                for window in folded
            ]
    return rows


def _times(notes: Notes | None) -> dict[Key, float]:
    if notes is None:
        return {}
    times: dict[Key, float] = {}
    for test, function, stage, _, seconds in notes.stages:
        if test and seconds > 0:
            times[_STAGES[stage][0], test, function, "s"] = seconds
    for test, name, value, unit in notes.times:
        times[_where(name, unit), test, name, unit] = value
    return times


def _large_stages(every: Sequence[Mapping[Key, float]]) -> set[Key]:
    """Functions whose stage takes long enough to stand alone, in every process: a row more makes all others harder."""
    common = set.intersection(*(set(times) for times in every)) if every else set()
    return {
        key
        for key in common
        if key[3] == "s" and sum(times[key] for times in every) / len(every) >= LEAST_STAGE_SECONDS
    }


def _folded(times: Mapping[Key, float], functions: set[Key]) -> dict[Key, float]:
    """The same times, those of small functions together."""
    found: collections.defaultdict[Key, float] = collections.defaultdict(float)
    for key, seconds in times.items():
        where, test, _, unit = key
        found[key if unit != "s" or key in functions else (where, test, OTHERS, unit)] += seconds
    return dict(found)


def _time(key: Key, sides: list[Windows], error: float) -> Change:
    where, test, metric, unit = key
    logs = shift_interval(sides, error)
    after, before = (float(np.median(np.exp(np.concatenate([w[side].ravel() for w in sides])))) for side in (0, 1))
    interval = Interval(math.exp(logs.low), math.exp(logs.high)) if math.isfinite(logs.high) else None
    called: Called = "no change seen"
    if interval is None:
        called = "undecided"
    elif interval.low > 1:
        called = "worse"
    elif interval.high < 1:
        called = "better"
    processes = sum(window[0].size for window in sides)
    ratio = math.exp(shift(sides))
    return Change(where, test, metric, unit, before, after, called, "", ratio, interval, processes)


def _counts(notes: Notes | None) -> dict[tuple[str, str], dict[str, int]]:
    """By test and stage, how often each function went through it."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for test, function, stage, number, _ in notes.stages if notes else ():
        of_test = found.setdefault((test, stage), {})
        of_test[function] = of_test.get(function, 0) + number
    return found


def _reasons(before: str, after: str) -> str:
    """Why a test ended as it did; what is the same on both sides is said once."""
    if before == after:
        return after
    return "; ".join(f"{name}: {why}" for name, why in (("after", after), ("before", before)) if why)


def _environment(metrics: Metrics) -> Environment:
    values: Mapping[str, Any] = metrics.run.notes.environment if metrics.run.notes else {}
    return environment_from_dict(values) if values else _UNKNOWN


def _device(*sides: Metrics) -> str | None:
    from perfsuite.gate.environment import device_slug

    return next((device_slug(_environment(each).device_kind) for each in sides if each.run.notes), None)


def _before(window: Window) -> Sequence[Any]:
    return window.before


def _after(window: Window) -> Sequence[Any]:
    return window.after


def _detail(detail: Mapping[str, int] | None) -> dict[str, int] | None:
    return dict(detail) if detail else None


_UNKNOWN = Environment("unknown", 1, "", "", "", "")
