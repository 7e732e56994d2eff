"""When a comparison is looked at, what each look may spend, and what it sees: the rule without the sampling."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from perfsuite.measure.measurement import Interval
from perfsuite.measure.stats.drift import trend
from perfsuite.measure.stats.intervals import DECIDING_ERROR
from perfsuite.measure.stats.rank_sum import Windows, least_windows, shift, shift_interval

FIRST_LOOK = 20
LOOK_GROWTH = 1.4

WINDOW = 5
"""Pairs in a window. For the same noise in all blocks its intervals are 14 % narrower than those of single pairs (the
sign test); ever larger windows win 18 % at most, and more of the machine's drift comes into them."""

LEAST_WINDOWS = 10
"""A window must be small against the time that there is, for sampling ends with a whole one."""

SMALL = 2
"""Pairs in a window where there is time for fewer than 20."""

LEAD = 3
"""Pairs for which there must be time before the last window begins: the first is no sample, and later ones may take
longer than the first has."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A metric with its interval, which holds over all looks together with the probability that its maker says."""

    value: float
    interval: Interval

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.interval.low:.4g}, {self.interval.high:.4g}]"


@dataclasses.dataclass(frozen=True)
class Look:
    """What one look saw: the ratio, the overhead in the unit of the times, and in words whether the ratio moved."""

    ratio: Estimate
    overhead: Estimate
    unsettled: str | None


def window_of(pairs: float, error: float = DECIDING_ERROR) -> int:
    """Pairs in a window, where about `pairs` fit into the time, so that there is an interval with this error.

    Of slow calls there are few pairs, and the more of them share a window, the fewer are needed: at an error of 1e-4
    that is 15 windows of one pair, 6 of two, and 2 of five, the last of which may begin when time is nearly up.
    """
    usual = int(min(WINDOW, pairs / LEAST_WINDOWS))
    if usual >= SMALL:
        return usual
    if pairs >= fewest_pairs(error):
        return SMALL
    return WINDOW if pairs >= WINDOW * (least_windows(WINDOW, error) - 1) + LEAD else 1


def fewest_pairs(error: float) -> int:
    """The pairs for which there must be time, if there is to be an interval with this error."""
    return SMALL * (least_windows(SMALL, error) - 1) + LEAD


class Sequential:
    """The looks at one comparison. Their intervals hold at once with probability 1 - `error`.

    Error is spent as time passes: when a share t of the time is over, t * `error` has been spent, and the last look has
    what is left (K. Kim and D. L. DeMets, Design and analysis of group sequential tests based on the type I error
    spending rate function, Biometrika 74, 1987; the shares are added up, so the looks may depend on each other in any
    way). Late looks, which have to tell small effects apart, thereby get most of it; a large effect needs little.
    """

    def __init__(self, error: float = DECIDING_ERROR):
        self.error = error
        self.looks = 0
        self._spent = 0.0
        self._next = FIRST_LOOK

    def due(self, pairs: int, time_passed: float) -> bool:
        """Whether to look after so many pairs: after 20, and then after every 40 % more, and when time is up.

        Not shortly before the end, so that the last look has a good part of the error left.
        """
        return time_passed > 1 or (pairs >= self._next and time_passed < 1 / LOOK_GROWTH)

    def look(self, candidate: np.ndarray, reference: np.ndarray, window: int, time_passed: float) -> Look | None:
        """Look at the times so far, shape (pairs,), whole windows, when `time_passed`, a share that is 1 at the end.

        None where they are too few for an interval, and where times are not positive, which is for the sampler to say.
        """
        self.looks += 1
        self._next = int(len(candidate) * LOOK_GROWTH) + 1
        if not len(candidate) or not (candidate > 0).all() or not (reference > 0).all():
            return None
        allowed = self.error * min(time_passed, 1.0)
        seen = estimates([in_windows(candidate, reference, window)], allowed - self._spent)
        if seen is not None:
            self._spent = allowed
        return seen


def in_windows(candidate: np.ndarray, reference: np.ndarray, window: int) -> Windows:
    """Times of shape (pairs,) as windows, shape (windows, pairs in a window)."""
    return candidate.reshape(-1, window), reference.reshape(-1, window)


def estimates(times: Sequence[Windows], error: float) -> Look | None:
    """Ratio and overhead of positive times, their intervals each with this error; None where they are too few.

    Where the ratio moved, the intervals hold those of its early and of its late part, and decide what both say.
    """
    logs = [(np.log(candidate), np.log(reference)) for candidate, reference in times]
    ratio, overhead = shift_interval(logs, error), shift_interval(times, error)
    if ratio is None or overhead is None:
        return None
    trends = []
    for of_ratio, of_overhead in zip(logs, times, strict=True):
        if found := trend(of_ratio):
            trends.append(found)
            ratio, overhead = found.widened(ratio, of_ratio, error), found.widened(overhead, of_overhead, error)
    return Look(
        Estimate(math.exp(shift(logs)), Interval(math.exp(ratio.low), math.exp(ratio.high))),
        Estimate(shift(times), overhead),
        "; ".join(map(str, trends)) or None,
    )


def unbounded(times: Sequence[Windows]) -> Look:
    """What too few pairs say: the metrics without an interval."""
    logs = [(np.log(candidate), np.log(reference)) for candidate, reference in times]
    return Look(
        Estimate(math.exp(shift(logs)), Interval(0.0, math.inf)),
        Estimate(shift(times), Interval(-math.inf, math.inf)),
        None,
    )
