"""What changed between two environments, and where: trace, lower, compile, dispatch, host calls, program, device.

Counts, sizes and ratios are compared by the gate's own rules (`gate.verdict`), with the metrics of the old environment
as the baseline. Times are compared over processes, because each process has a speed of its own (it depends on where its
memory lies), and the machine drifts: for one ratio with the same host calls, one process of each side gave 1.4 and 3.2
(`filter_jit` over `jit`, jax 0.10.0 and 0.10.2, 2 cores at a load average of 15). So each process gives one observation
of each time, and old and new processes run in windows, in random order.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from perfsuite.against.found import ERROR, PLACES, Called, MetricChange, TestChange, Where
from perfsuite.against.notes import Notes, Stage
from perfsuite.against.runs import FirstRun, Run, Window, sizes
from perfsuite.gate.baseline import Baselines, Entry, name_of
from perfsuite.gate.environment import HOST_CALLS_UNIT, Environment
from perfsuite.gate.verdict import judge_baseline
from perfsuite.measure.metric import Interval, Metric, title
from perfsuite.measure.stats.rank_sum import Windows, shift, shift_interval

LEAST_STAGE_SECONDS = 0.01
"""Stages of a function that take less, averaged over the processes of both sides, are summed over the functions."""

OTHERS = "all others"

_STAGE_UNITS: dict[Stage, str] = {"trace": "traces", "lower": "lowerings", "compile": "compiles"}
_HOST_UNITS = (HOST_CALLS_UNIT, "misses")
_ONE_PROCESS = "of one process each: --rounds says whether it holds"
_CALLED: dict[str, Called] = {
    "fail": "worse",
    "improved": "better",
    "inconclusive": "undecided",
    "not comparable": "not comparable",
}
_SAME = Environment("the same on both sides", 1, "", "", "", "")

Key = tuple[Where, str, str, str]
"""Place, test, metric and unit."""


def outcomes_changed(before: FirstRun, after: FirstRun) -> list[TestChange]:
    """Every test that failed or could not run in one of the environments, those that passed before first."""
    old, new = before.run.notes, after.run.notes
    found: list[TestChange] = []
    for test in dict.fromkeys([*old.tests, *new.tests]):
        (was, why_before), (now, why_after) = (notes.tests.get(test, ("not run", "")) for notes in (old, new))
        if {was, now} - {"passed", "skipped"} or was != now:
            found.append(TestChange(test, was, now, _reasons(why_before, why_after)))
    for file in dict.fromkeys([*old.uncollected, *new.uncollected]):
        was, now = ("not run" if file in notes.uncollected else "collected" for notes in (old, new))
        found.append(TestChange(file, was, now, _reasons(old.uncollected.get(file, ""), new.uncollected.get(file, ""))))
    return sorted(found, key=lambda change: not change.worse)


def metrics_changed(before: FirstRun, after: FirstRun, times: Sequence[MetricChange] = ()) -> list[MetricChange]:
    """Every count, size and ratio of the tests that passed in both environments, by the gate's rules.

    Ratios that are among `times` are left out: many processes measured them there, and one of each side here.
    """
    timed = {(change.test, change.metric) for change in times}
    passed = passed_in_both(before, after)
    here = before.run.notes.device or after.run.notes.device
    found: list[MetricChange] = []
    for device in sorted({*before.baselines, *after.baselines}):
        old, new = (each.baselines.get(device, Baselines(device)).metrics for each in (before, after))
        for test in sorted({*old, *new}):
            if test.partition(" --perf-size=")[0] not in passed:
                continue
            was, now = old.get(test, {}), new.get(test, {})
            for id, entry in sorted({**was, **now}.items()):
                shown = title(name_of(id, entry), None if device == here else device)
                if (test, shown) not in timed:
                    found += _metric_changed(test, shown, was.get(id), now.get(id))
    return found


def stages_changed(before: FirstRun, after: FirstRun, windows: Sequence[Window] = ()) -> list[MetricChange]:
    """How often each test traced, lowered and compiled.

    More is called only where every process of the new environment counted more than every one of the old: the first
    runs, and those that only timed, each compared among themselves, because they run different instruments.
    """
    sides = [[run.notes for window in windows for run in window.sides[side] if not run.problem] for side in (0, 1)]
    found = []
    for test in sorted(passed_in_both(before, after)):
        for stage, unit in _STAGE_UNITS.items():
            old, new = (each.run.notes.counts(test, stage) for each in (before, after))
            if not old and not new:
                continue
            entry = Entry(sum(old.values()), unit, "count", "measured", _SAME, detail=old or None)
            change = _judged(test, Metric(unit, sum(new.values()), unit, "count", detail=new or None), entry, stage)
            totals = [[sum(notes.counts(test, stage).values()) for notes in side] for side in sides]
            apart = not all(totals) or min(totals[1]) > max(totals[0]) or max(totals[1]) < min(totals[0])
            if change.called in ("worse", "better") and not apart:
                seen = " and ".join(f"{min(side)} to {max(side)}" for side in totals)
                reason = f"but in the processes that only timed, {seen}: not called"
                change = dataclasses.replace(change, called="undecided", reason=reason, grown=())
            found.append(change)
    return found


def times_changed(windows: Sequence[Window], tests: set[str]) -> list[MetricChange]:
    """The times of `tests`: after / before over processes, with intervals that hold for all of them together.

    Each interval has the shifts of the logarithm that the rank-sum test over the windows does not reject
    (`measure.stats.rank_sum`). It assumes nothing of the times but the random order of the processes, where Student's t
    needs means of few and heavy-tailed times to be normal; the price is that a few processes give no interval at all.
    The error is shared out equally among the metrics (O. J. Dunn, Multiple comparisons among means, Journal of the
    American Statistical Association 56, 1961).
    """
    rows = _rows([window for window in windows if window.complete], tests)
    return [_time_changed(key, sides, ERROR / len(rows)) for key, sides in rows.items()]


def passed_in_both(before: FirstRun, after: FirstRun) -> set[str]:
    """The tests whose metrics can be compared."""
    return before.run.notes.passed & after.run.notes.passed


def rounds_needed(metrics: int) -> int:
    """The fewest rounds that can call any change of so many times: all of the old processes on one side of the new."""
    rounds = 2
    while 2 * math.prod(1 / math.comb(2 * size, size) for size in sizes(rounds)) > ERROR / max(metrics, 1):
        rounds += 1
    return rounds


def times_expected(run: Run, tests: set[str]) -> int:
    """How many times processes give that measure what `run` did."""
    return len(_rows([Window((run,), (run,))], tests))


def smallest_called(rounds: int, metrics: int) -> float | None:
    """The smallest change of so many times that so many rounds call half of the time, or None where they call none.

    It is in units of the standard deviation of a time's logarithm between processes of the same code: the median
    half width of the interval of `times_changed`, over 200 draws of normal noise.
    """
    if rounds < rounds_needed(metrics):
        return None
    draw, windows = np.random.default_rng(0).standard_normal, sizes(rounds)
    noise = ([(draw((1, size)), draw((1, size))) for size in windows] for _ in range(200))
    widths = [shift_interval(each, ERROR / max(metrics, 1)) for each in noise]
    return float(np.median([(each.high - each.low) / 2 for each in widths]))


def smallest_seen(changes: Sequence[MetricChange]) -> float | None:
    """The change that would have been called for half of the times, as a ratio - 1; None where none has an interval."""
    widths = [math.log(c.interval.high / c.interval.low) / 2 for c in changes if c.interval and c.processes > 1]
    return math.expm1(float(np.median(widths))) if widths else None


def _metric_changed(test: str, name: str, old: Entry | None, new: Entry | None) -> Iterator[MetricChange]:
    """Nothing for a time, which is compared over processes, nor for information, which no gate judges."""
    known = new or old
    if known is None or known.kind in ("time", "info"):
        return
    where = _where(name, known.unit)
    if new is None:
        yield MetricChange(where, test, name, known.unit, known.value, None, "gone")
    elif old is None:
        yield MetricChange(where, test, name, known.unit, None, known.value, "new")
    else:
        detail = dict(new.detail) if new.detail else None
        metric = Metric(name, new.value, new.unit, new.kind, new.better, new.interval, new.samples, detail)
        yield _judged(test, metric, old, where)


def _judged(test: str, metric: Metric, old: Entry, where: Where) -> MetricChange:
    # Both are of this machine. The gate must not name the versions, which differ for every metric.
    gate = judge_baseline(test, metric, old, now=old.environment or _SAME)
    ratio = metric.value / old.value if old.value else None
    interval = None
    if metric.kind == "ratio" and metric.interval is not None and old.value > 0:
        interval = Interval(metric.interval.low / old.value, metric.interval.high / old.value)
    return MetricChange(
        where,
        test,
        metric.name,
        metric.unit,
        old.value,
        metric.value,
        _CALLED.get(gate.verdict, "no change seen"),
        _ONE_PROCESS if metric.kind == "ratio" and gate.failed else "",
        ratio,
        interval,
        grown=gate.grown if gate.failed else (),
    )


def _where(name: str, unit: str) -> Where:
    if unit in _HOST_UNITS or (unit == "transfers" and not name.partition(" @ ")[0].endswith(" host transfers")):
        return "host calls"
    if unit == "compiles":
        return "compile"
    if unit in ("programs", "operations"):
        return "dispatch"
    if unit in ("x", "us", "waits", "stalls", "us/unit"):
        return "dispatch" if unit == "waits" or name.endswith((" to return", " to return per unit")) else "device"
    return "program"


def _rows(windows: Sequence[Window], tests: set[str]) -> dict[Key, list[Windows]]:
    """The logarithm of each time that all processes have, by window: (after, before), each of shape (1, processes)."""
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
    after, before = (float(np.median(np.exp(np.concatenate([w[side].ravel() for w in windows])))) for side in (0, 1))
    interval = Interval(math.exp(logs.low), math.exp(logs.high)) if math.isfinite(logs.high) else None
    called: Called = "no change seen"
    if interval is None:
        called = "undecided"
    elif interval.low > 1:
        called = "worse"
    elif interval.high < 1:
        called = "better"
    processes = sum(window[0].size for window in windows)
    return MetricChange(*key, before, after, called, "", math.exp(shift(windows)), interval, processes)


def _reasons(before: str, after: str) -> str:
    """Why a test ended as it did; what is the same on both sides stands there once."""
    if before == after:
        return after
    return "; ".join(f"{name}: {why}" for name, why in (("after", after), ("before", before)) if why)
