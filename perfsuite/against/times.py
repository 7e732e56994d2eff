"""Which times changed between the base and the head, over many processes of both.

Each process has a speed of its own (it depends on where its memory lies), and the machine drifts: for one ratio with
the same host calls, one process of each side gave 1.4 and 3.2 (`filter_jit` over `jit`, jax 0.10.0 and 0.10.2, 2 cores
at a load average of 15). So each process gives one observation of each time or ratio of times, and processes of both
sides run in windows, in random order.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from perfsuite.against.changes import where_of
from perfsuite.against.found import ERROR, PLACES, Called, MetricChange, Where
from perfsuite.against.notes import Notes
from perfsuite.against.runs import Window, looks, sizes
from perfsuite.measure.metric import Interval
from perfsuite.measure.stats.rank_sum import Windows, shift, shift_interval

LEAST_STAGE_SECONDS = 0.01
"""Stages of a function that take less, averaged over the processes of both sides, are summed over the functions."""

OTHERS = "all others"

PRECISION = 0.02
"""A time whose ratio is known to so much, either way, needs no more processes."""

_PLACES_OF_STAGES: tuple[Where, ...] = ("trace", "lower", "compile")

Key = tuple[Where, str, str, str]
"""Place, test, metric and unit."""


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
    times = {(where_of(note.name, note.unit), note.test, note.name, note.unit): note.value for note in notes.times}
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
