"""Which times changed between the base and the head, over many processes of both.

Each process has a speed of its own (it depends on where its memory lies), and the machine drifts: for one ratio with
the same host calls, one process of each side gave 1.4 and 3.2 (`filter_jit` over `jit`, jax 0.10.0 and 0.10.2, 2 cores
at a load average of 15). So each process gives one observation of each time or ratio of times, and processes of both
sides run in windows, in random order.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from perfsuite.against.changes import ERROR, Called, MetricChange
from perfsuite.against.notes import Notes
from perfsuite.against.runs import Window, share
from perfsuite.measure.metric import Interval
from perfsuite.measure.stats.rank_sum import Windows, shift, shift_interval

LEAST_STAGE_SECONDS = 0.01
"""A stage of compiling that takes less in a test, on average, is not compared: each time more widens all intervals."""

PRECISION = 0.02
"""A time whose ratio is known to so much, either way, needs no more processes."""

Key = tuple[str, str, str]
"""Test, metric and unit."""


def times_changed(windows: Sequence[Window], tests: set[str]) -> list[MetricChange]:
    """The times of `tests`: head / base over processes, with intervals that hold for all of them together.

    Each interval has the shifts of the logarithm that the rank-sum test over the windows does not reject
    (`measure.stats.rank_sum`). It assumes nothing of the times but the random order of the processes, where Student's t
    needs means of few and heavy-tailed times to be normal; the price is that a few processes give no interval at all.
    The error is shared out equally among the metrics (O. J. Dunn, Multiple comparisons among means, Journal of the
    American Statistical Association 56, 1961), and among the looks, one after each window but the first.
    """
    times = rows(windows, tests)
    error = ERROR * share(max(1, len(windows) - 1)) / max(1, len(times))
    return [_time_changed(key, sides, error) for key, sides in times.items()]


def decided(changes: Sequence[MetricChange]) -> bool:
    """Whether every time of a call is known: as better, as worse, or to `PRECISION`.

    The times of tracing, lowering and compiling do not count: they happen once a process, and scatter too much.
    """
    return all(change.unit == "s" or _is_decided(change) for change in changes)


def _is_decided(change: MetricChange) -> bool:
    if change.interval is None:
        return False
    return change.called != "no change seen" or change.interval.high / change.interval.low <= (1 + PRECISION) ** 2


def smallest_seen(changes: Sequence[MetricChange]) -> float | None:
    """The change that would have been called for half of the times, as a ratio - 1; None where none has an interval."""
    widths = [math.log(c.interval.high / c.interval.low) / 2 for c in changes if c.interval and c.processes > 1]
    return math.expm1(float(np.median(widths))) if widths else None


def rows(windows: Sequence[Window], tests: set[str]) -> dict[Key, list[Windows]]:
    """The logarithm of each time that all processes have, by window: (head, base), each of shape (1, processes).

    A window of which a process has no notes does not count: the order of the others was not drawn by lot.
    """
    sides = [
        [[_times(run.notes, tests) for run in runs] for runs in (window.head, window.base)]
        for window in windows
        if not window.problems
    ]
    every = [times for pair in sides for side in pair for times in side]
    common = set.intersection(*map(set, every)) if every else set()
    return {
        key: [
            (np.log([[times[key] for times in head]]), np.log([[times[key] for times in base]])) for head, base in sides
        ]
        for key in sorted(common)
        if key[2] != "s" or sum(times[key] for times in every) >= LEAST_STAGE_SECONDS * len(every)
    }


def _times(notes: Notes, tests: set[str]) -> dict[Key, float]:
    stages: defaultdict[Key, float] = defaultdict(float)
    for note in notes.stages:
        stages[note.test, f"seconds to {note.stage}", "s"] += note.seconds
    times = {(note.test, note.name, note.unit): note.value for note in notes.times}
    return {key: value for key, value in (stages | times).items() if key[0] in tests and value > 0}


def _time_changed(key: Key, windows: list[Windows], error: float) -> MetricChange:
    logs = shift_interval(windows, error)
    head, base = (float(np.exp(np.median(np.concatenate([w[side].ravel() for w in windows])))) for side in (0, 1))
    interval = Interval(math.exp(logs.low), math.exp(logs.high)) if math.isfinite(logs.high) else None
    called: Called = "no change seen"
    if interval is None:
        called = "undecided"
    elif interval.low > 1:
        called = "worse"
    elif interval.high < 1:
        called = "better"
    processes = sum(window[0].size for window in windows)
    return MetricChange(*key, base, head, called, math.exp(shift(windows)), interval, processes)
