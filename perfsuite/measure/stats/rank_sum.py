"""The shift between two sides that ran in windows, m times each, in random order: Wilcoxon's rank sum, by windows.

Only the order of a window's blocks counts, and chance chose that order: without a shift, each of the (2m over m) orders
is equally likely, whatever the times are. So the intervals hold under drift, under clocks of several speeds, beside
neighbours that come and go, and for tails however heavy. A burst counts only for the blocks that it hits.

SciPy has the rank sum of two samples (`scipy.stats.mannwhitneyu`), but neither its sum over windows nor its interval.
"""

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from perfsuite.measure.metric import Interval

Windows = tuple[np.ndarray, np.ndarray]
"""Candidate and reference of windows of one size, each of shape (windows, m)."""

EXACT = 64
"""Up to this many windows the distribution is exact. Beyond, the normal one takes its place, which errs on the safe
side: the rank sum has lighter tails."""


def pair_differences(windows: Sequence[Windows]) -> np.ndarray:
    """Candidate - reference for all m * m pairs of each window, in ascending order."""
    return np.sort(np.concatenate([(a[:, :, None] - b[:, None, :]).ravel() for a, b in windows]))


def shift(windows: Sequence[Windows]) -> float:
    """The median of the differences inside windows (J. L. Hodges and E. L. Lehmann, Estimates of location based on rank
    tests, Annals of Mathematical Statistics 34, 1963).
    """
    return float(np.median(pair_differences(windows)))


def shift_interval(windows: Sequence[Windows], error: float) -> Interval:
    """The interval that holds the shift with probability 1 - `error`; infinite where the windows are too few for one.

    It has the shifts that the rank-sum test does not reject (F. Wilcoxon, Individual comparisons by ranking methods,
    Biometrics Bulletin 1, 1945; the sum over windows: P. van Elteren, On the combination of independent two-sample
    tests of Wilcoxon, Bulletin of the International Statistical Institute 37, 1960). The statistic of H. B. Mann and
    D. R. Whitney (On a test of whether one of two random variables is stochastically larger than the other, Annals of
    Mathematical Statistics 18, 1947) counts the differences below the true shift, so the ends are order statistics of
    the differences. With windows of one pair it is the interval of the sign test.
    """
    ordered = pair_differences(windows)
    rank = _rank([(a.shape[1], len(a)) for a, _ in windows], error / 2)
    if rank < 0 or not np.isfinite(ordered).all():
        return Interval(-math.inf, math.inf)
    return Interval(float(ordered[rank]), float(ordered[-1 - rank]))


def least_windows(m: int, error: float) -> int:
    """The fewest windows of m pairs for which `shift_interval` is finite at this error, between 0 and 1.

    Two of the (2m over m) orders of each window are the most extreme ones.
    """
    return math.ceil(math.log(2 / error) / math.log(math.comb(2 * m, m)))


def _variance(m: int) -> float:
    return m * m * (2 * m + 1) / 12


def _rank(sizes: Sequence[tuple[int, int]], tail: float) -> int:
    """The highest rank, from 0, with the shift below it with a chance of at most `tail`; negative where there is none.

    `sizes` has m and the number of windows of that size.
    """
    if tail <= 0:
        return -1
    if sum(number for _, number in sizes) <= EXACT:
        distribution = functools.reduce(np.convolve, (_sum_of_statistics(m, number) for m, number in sizes))
        return int(np.searchsorted(np.cumsum(distribution), tail, side="right")) - 1
    middle = sum(number * m * m for m, number in sizes) / 2
    deviation = math.sqrt(sum(number * _variance(m) for m, number in sizes))
    return math.floor(middle - 0.5 + deviation * NormalDist().inv_cdf(tail))


@functools.cache
def _sum_of_statistics(m: int, number: int) -> np.ndarray:
    """The distribution of the sum of `number` Mann-Whitney statistics of m against m, of 0, 1, ... m * m * number."""
    counts = np.ones(1)
    for i in range(1, m + 1):  # the Gaussian binomial coefficient: the product of (x^(m + i) - 1) / (x^i - 1)
        dividend, divisor = np.zeros(m + i + 1), np.zeros(i + 1)
        dividend[[0, -1]] = divisor[[0, -1]] = 1, -1
        counts, _ = np.polydiv(np.polymul(counts, dividend), divisor)
    return np.polynomial.polynomial.polypow(counts / counts.sum(), number)
