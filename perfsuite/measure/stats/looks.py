"""When a comparison looks at its times, and with which rule: of many pairs a confidence sequence, of few a rank sum."""

import dataclasses
import math

import numpy as np

from perfsuite.measure.estimate import Estimate
from perfsuite.measure.metric import Interval
from perfsuite.measure.stats.error_rates import DECIDING_ERROR
from perfsuite.measure.stats.rank_sum import Windows, least_windows, shift, shift_interval
from perfsuite.measure.stats.sequence import LEAST_WINDOWS, sequence_interval

WINDOW = 5
"""Pairs in a window. For the same noise in all blocks its intervals are 14 % narrower than those of single pairs (the
sign test). Ever larger windows gain 18 % at most, and let more of the machine's drift in."""

SMALL = 2
"""Pairs in a window where there is time for fewer than 50."""

FIRST = LEAST_WINDOWS * WINDOW
"""Pairs at the first look of a confidence sequence."""

MANY = 200
"""Where there is time for fewer pairs, the rank sum judges. Blocks that do not count leave about 130 of 200, and the
sequence needs 120 to begin."""

GROWTH = 1.15
"""A confidence sequence may look at any time; it does so rarely because a look takes up to a tenth of a second."""

EARLY = 0.25
"""The share of the time after which a rank sum looks for the first time. The second and last look is at the end."""


@dataclasses.dataclass(frozen=True)
class Look:
    """What one look saw: the ratio, and the overhead in the unit of the times. Of too few pairs both are unbounded."""

    ratio: Estimate
    overhead: Estimate


def is_bounded(ratio: Estimate) -> bool:
    """Whether the pairs of a ratio are enough for an interval, to both sides."""
    return ratio.interval.low > 0 and math.isfinite(ratio.interval.high)


class Looks:
    """The looks at one comparison for which there is time for about `pairs` pairs, if all blocks counted.

    The intervals of all looks hold at once with probability 1 - `error`. Those of the rank sum assume that a block
    takes as long as it takes whichever side runs. Those of the sequence need no such assumption.
    """

    def __init__(self, pairs: float, error: float = DECIDING_ERROR):
        self.error = error
        self.window = _window(pairs, error)
        self.sequential = pairs >= MANY
        self._next = FIRST
        self._looked = False

    def due(self, pairs: int, time_passed: float) -> bool:
        """Whether to look after so many pairs; `time_passed` is a share, above 1 when time is up."""
        if time_passed > 1:
            return True
        return pairs >= self._next if self.sequential else time_passed >= EARLY and not self._looked

    def wait(self, pairs: int) -> None:
        """No look is due until there are some more than so many pairs."""
        self._looked, self._next = True, int(pairs * GROWTH) + 1

    def look(self, candidate: np.ndarray, reference: np.ndarray, rounding: float = 0.0) -> Look:
        """Look at the times so far, shape (pairs,), whole windows, all above zero.

        Each time may be off by `rounding`, in their unit, so no interval is narrower than that.
        """
        times = candidate.reshape(-1, self.window), reference.reshape(-1, self.window)
        logs = np.log(times[0]), np.log(times[1])
        self.wait(len(candidate))
        hidden = rounding / min(np.median(times[0]), np.median(times[1]))
        ratio = self._interval(logs).widened(math.log1p(hidden))
        return Look(
            Estimate(math.exp(shift([logs])), Interval(math.exp(ratio.low), math.exp(ratio.high))),
            Estimate(shift([times]), self._interval(times).widened(rounding)),
        )

    def _interval(self, windows: Windows) -> Interval:
        if not self.sequential:
            return shift_interval([windows], self.error / 2)
        if len(windows[0]) < LEAST_WINDOWS:  # time is up earlier than thought, before any other look
            return shift_interval([windows], self.error)
        return sequence_interval(windows, self.error)


def fewest_pairs(error: float = DECIDING_ERROR) -> int:
    """The pairs, in windows of two, of which the rank sum has an interval at its first look."""
    return SMALL * least_windows(SMALL, error / 2)


def _window(pairs: float, error: float) -> int:
    if pairs >= WINDOW * 10:
        return WINDOW
    return SMALL if pairs >= fewest_pairs(error) else 1
