"""When a comparison looks at its times, what each look may spend, and what it sees: the rule without the sampling."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from perfsuite.measure.estimate import Estimate
from perfsuite.measure.measurement import Interval
from perfsuite.measure.stats.drift import trend
from perfsuite.measure.stats.error_rates import DECIDING_ERROR
from perfsuite.measure.stats.rank_sum import Windows, least_windows, shift, shift_interval

FIRST_LOOK = 20
LOOK_GROWTH = 1.4

WINDOW = 5
"""Pairs in a window. For the same noise in all blocks its intervals are 14 % narrower than those of single pairs (the
sign test). Ever larger windows gain 18 % at most, and let more of the machine's drift in."""

WINDOWS_IN_A_RUN = 10
"""At least: a window must be short against the time for sampling, which ends with a whole window."""

SMALL = 2
"""Pairs in a window where there is time for fewer than 20."""

LEAD = 3
"""Pairs for which there must be time before the last window begins: the first pair is no sample, and later ones may
take longer than the first."""


@dataclasses.dataclass(frozen=True)
class Look:
    """What one look saw: the ratio, the overhead in the unit of the times, and a sentence where the ratio moved.

    The intervals are infinite where the pairs are too few for one.
    """

    ratio: Estimate
    overhead: Estimate
    unsettled: str | None


def window_of(pairs: float, error: float = DECIDING_ERROR) -> int:
    """Pairs in a window, where about `pairs` fit into the time, so that the interval is finite at this error.

    A slow call has few pairs. The more of them share a window, the fewer an interval needs: at an error of 1e-4 15
    windows of one pair, 6 of two, or 2 of five, the last of which may begin when the time is nearly over.
    """
    usual = int(min(WINDOW, pairs / WINDOWS_IN_A_RUN))
    if usual >= SMALL:
        return usual
    if pairs >= fewest_pairs(error):
        return SMALL
    return WINDOW if pairs >= fewest_pairs(error, WINDOW) else 1


def fewest_pairs(error: float, window: int = SMALL) -> int:
    """The pairs for which there must be time, so that the interval is finite at this error."""
    return window * (least_windows(window, error) - 1) + LEAD


class Sequential:
    """The looks at one comparison. Their intervals hold at once with probability 1 - `error`.

    The looks spend the error as time passes: `share * error` by the time that a share has passed, and the last look the
    rest (K. Kim and D. L. DeMets, Design and analysis of group sequential tests based on the type I error spending rate
    function, Biometrika 74, 1987; the shares are added up, so the looks may depend on each other in any way). So late
    looks, which tell small effects apart, get most of it; a large effect needs little.
    """

    def __init__(self, error: float = DECIDING_ERROR):
        self.error = error
        self.looks = 0
        self._spent = 0.0
        self._next = FIRST_LOOK

    def due(self, pairs: int, time_passed: float) -> bool:
        """Whether to look after so many pairs: after 20, after every 40 % more, and when time is up.

        Not shortly before the end, so that the last look has a good part of the error left.
        """
        return time_passed > 1 or (pairs >= self._next and time_passed < 1 / LOOK_GROWTH)

    def look(self, candidate: np.ndarray, reference: np.ndarray, window: int, time_passed: float) -> Look | None:
        """Look at the times so far, shape (pairs,), whole windows; `time_passed` is a share, 1 at the end.

        None where they are too few for an interval, and where a time is not positive, which the sampler reports.
        """
        self.looks += 1
        self._next = int(len(candidate) * LOOK_GROWTH) + 1
        if not len(candidate) or not (candidate > 0).all() or not (reference > 0).all():
            return None
        allowed = self.error * min(time_passed, 1.0)
        seen = estimates([in_windows(candidate, reference, window)], allowed - self._spent)
        if math.isinf(seen.ratio.interval.high):
            return None
        self._spent = allowed
        return seen


def in_windows(candidate: np.ndarray, reference: np.ndarray, window: int) -> Windows:
    """Times of shape (pairs,) as windows, shape (windows, pairs in a window)."""
    return candidate.reshape(-1, window), reference.reshape(-1, window)


def estimates(times: Sequence[Windows], error: float) -> Look:
    """Ratio and overhead of positive times, each with its interval at this error: an error of 0 gives infinite ones.

    Where the ratio moved, the intervals also hold those of its early and of its late part.
    """
    logs = [(np.log(candidate), np.log(reference)) for candidate, reference in times]
    ratio, overhead = shift_interval(logs, error), shift_interval(times, error)
    trends = []
    if math.isfinite(ratio.high):
        for of_ratio, of_overhead in zip(logs, times, strict=True):
            if moved := trend(of_ratio):
                trends.append(str(moved))
                ratio, overhead = moved.widened(ratio, of_ratio, error), moved.widened(overhead, of_overhead, error)
    return Look(
        Estimate(math.exp(shift(logs)), Interval(math.exp(ratio.low), math.exp(ratio.high))),
        Estimate(shift(times), overhead),
        "; ".join(trends) or None,
    )
