"""A ratio that moves while it is sampled: one side not warm yet, or a state that grows with every call."""

import dataclasses
import math

import numpy as np
from scipy.special import ndtri

from perfsuite.measure.measurement import Interval
from perfsuite.measure.stats.rank_sum import Windows, centred_statistics, differences, shift, shift_interval

TREND_ERROR = 1e-4
"""Chance that a look finds a trend in a ratio that stands still. All that it does is to widen an interval."""

LEAST_WINDOWS = 12
"""With fewer, a trend cannot be told from chance at this error, and parts of the run have no medians to speak of."""

START = 0.1
"""The share of a run that is held against its last third where the ratio moved at the start."""


@dataclasses.dataclass(frozen=True)
class Trend:
    """The ratio was another one before window `early` than from window `late` on. `start` tells when it moved most."""

    early: int
    late: int
    early_ratio: float
    late_ratio: float
    start: bool

    def widened(self, interval: Interval, windows: Windows, error: float) -> Interval:
        """The interval of a shift, wide enough to hold those of the early and of the late windows."""
        parts = [interval]
        for part in (slice(self.early), slice(self.late, None)):
            one = (windows[0][part], windows[1][part])
            every = differences([one])
            parts.append(shift_interval([one], error) or Interval(float(every[0]), float(every[-1])))
        return Interval(min(part.low for part in parts), max(part.high for part in parts))

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
    """The trend of the shift of logarithms over the windows, or None where there is none to be seen.

    The windows' rank sums, less their mean under a constant shift, are added up with weights that rise with time, as
    D. R. Cox and A. Stuart do with signs (Some quick sign tests for trend in location and dispersion, Biometrika 42,
    1955): with time itself, to see drift, and with its logarithm, to see a start that was different. What both sides
    have in common drops out inside each window, so the drift of a machine is no trend.
    """
    number = len(logs[0])
    if number < LEAST_WINDOWS:
        return None
    statistics, variance = centred_statistics(*logs, shift([logs]))
    time = np.arange(1.0, number + 1)
    third, start = number // 3, max(1, round(number * START))
    found = [
        (_strength(statistics, np.log(time) if at_start else time) / math.sqrt(variance), at_start)
        for at_start in (False, True)
    ]
    strength, at_start = max(found)
    if strength < -ndtri(TREND_ERROR / 4):  # two ways to go, two sets of weights
        return None
    early, late = start if at_start else third, number - third
    first, last = ((logs[0][part], logs[1][part]) for part in (slice(early), slice(late, None)))
    return Trend(early, late, math.exp(shift([first])), math.exp(shift([last])), at_start)


def _strength(statistics: np.ndarray, weights: np.ndarray) -> float:
    centred = weights - weights.mean()
    return abs(float(centred @ statistics)) / math.sqrt(float(centred @ centred))
