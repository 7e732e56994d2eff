"""A ratio that moves while it is sampled: one side is not warm yet, or its state grows with every call."""

import dataclasses
import math

import numpy as np
from scipy.special import ndtri

from perfsuite.measure.measurement import Interval
from perfsuite.measure.stats.rank_sum import Windows, centred_statistics, pair_differences, shift, shift_interval

TREND_ERROR = 1e-4
"""The chance that a look finds a trend in a ratio that stands still. A trend only widens an interval."""

LEAST_WINDOWS = 12
"""Fewer windows cannot tell a trend from chance at this error, and the parts of the run would have no medians."""

START = 0.1
"""The share of a run that is compared with its last third where the ratio moved at the start."""


@dataclasses.dataclass(frozen=True)
class Trend:
    """The ratio before window `early` differs from that from window `late` on. `start`: it moved most at the start."""

    early: int
    late: int
    early_ratio: float
    late_ratio: float
    start: bool

    def widened(self, interval: Interval, windows: Windows, error: float) -> Interval:
        """`interval`, wide enough to hold the intervals of the early and of the late windows."""
        low, high = interval.low, interval.high
        for part in _early_and_late(windows, self.early, self.late):
            one = shift_interval([part], error)
            if math.isinf(one.high):  # too few windows: all that they saw
                every = pair_differences([part])
                one = Interval(float(every[0]), float(every[-1]))
            low, high = min(low, one.low), max(high, one.high)
        return Interval(low, high)

    def __str__(self) -> str:
        if self.start:
            return (
                f"the ratio had not settled: it was {self.early_ratio:.4g} at the start and {self.late_ratio:.4g} "
                "at the end, so one side was not warm yet"
            )
        return (
            f"the ratio drifted from {self.early_ratio:.4g} in the first third of the pairs to {self.late_ratio:.4g} "
            "in the last, so something in one side changes with every call"
        )


def trend(logs: Windows) -> Trend | None:
    """The trend in the shift of logarithms over the windows, or None where none shows.

    It adds up the rank sums of the windows, less their mean under a constant shift, with weights that rise with time,
    as D. R. Cox and A. Stuart do with signs (Some quick sign tests for trend in location and dispersion, Biometrika 42,
    1955). The weights are time itself, which shows drift, and its logarithm, which shows a different start. What both
    sides have in common drops out inside each window, so the drift of a machine is no trend.
    """
    number = len(logs[0])
    if number < LEAST_WINDOWS:
        return None
    statistics, variance = centred_statistics(*logs, shift([logs]))
    time = np.arange(1.0, number + 1)
    by_weights = {start: _strength(statistics, weights) for start, weights in ((False, time), (True, np.log(time)))}
    start = by_weights[True] > by_weights[False]
    if by_weights[start] / math.sqrt(variance) < -ndtri(TREND_ERROR / 4):  # two directions, two sets of weights
        return None
    early, late = max(1, round(number * START)) if start else number // 3, number - number // 3
    before, after = (math.exp(shift([part])) for part in _early_and_late(logs, early, late))
    return Trend(early, late, before, after, start)


def _early_and_late(windows: Windows, early: int, late: int) -> tuple[Windows, Windows]:
    candidate, reference = windows
    return (candidate[:early], reference[:early]), (candidate[late:], reference[late:])


def _strength(statistics: np.ndarray, weights: np.ndarray) -> float:
    centred = weights - weights.mean()
    return abs(float(centred @ statistics)) / math.sqrt(float(centred @ centred))
