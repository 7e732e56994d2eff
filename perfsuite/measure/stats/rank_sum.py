"""The shift between two sides that ran in windows, m times each, in random order: Wilcoxon's rank sum, by windows.

Only the order of a window's blocks is used, and that order was drawn by lot: but for the shift, each of the (2m over m)
orders was equally likely, whatever times the machine gave. So the intervals hold under drift, clocks of several paces,
neighbours that come and go, and tails however heavy; and a burst counts for no more than the blocks that it hit.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from perfsuite.measure.measurement import Interval

Windows = tuple[np.ndarray, np.ndarray]
"""Candidate and reference of windows of one size, each of shape (windows, m)."""

EXACT = 64
"""Up to so many windows the distribution is computed. For more it is taken as normal, which errs on the safe side: the
rank sum has lighter tails."""


def differences(windows: Sequence[Windows]) -> np.ndarray:
    """Candidate - reference for all m * m pairs of each window, in ascending order."""
    return np.sort(np.concatenate([(a[:, :, None] - b[:, None, :]).ravel() for a, b in windows]))


def shift(windows: Sequence[Windows]) -> float:
    """The median of the differences inside windows.

    (J. L. Hodges and E. L. Lehmann, Estimates of location based on rank tests, Annals of Mathematical Statistics 34,
    1963.)
    """
    return float(np.median(differences(windows)))


def shift_interval(windows: Sequence[Windows], error: float) -> Interval | None:
    """The interval that holds the shift with probability 1 - `error`, or None where there are too few windows for one.

    It has the shifts that the rank-sum test does not reject (F. Wilcoxon, Individual comparisons by ranking methods,
    Biometrics Bulletin 1, 1945; the sum over windows: P. van Elteren, On the combination of independent two-sample
    tests of Wilcoxon, Bulletin of the International Statistical Institute 37, 1960). As many of the differences lie
    below the true shift as the statistic of H. B. Mann and D. R. Whitney says (On a test of whether one of two random
    variables is stochastically larger than the other, Annals of Mathematical Statistics 18, 1947), so the ends are
    order statistics of the differences. With windows of one pair it is the interval of the sign test.
    """
    ordered = differences(windows)
    if not len(ordered) or not np.isfinite(ordered).all():
        return None
    sizes = tuple((a.shape[1], len(a)) for a, _ in windows)
    rank = _rank(sizes, error / 2)
    if rank < 0:
        return None
    return Interval(float(ordered[rank]), float(ordered[-1 - rank]))


def least_windows(m: int, error: float) -> int:
    """The fewest windows of m pairs for which `shift_interval` is an interval with this error, between 0 and 1.

    Two of the (2m over m) orders of each window are the most extreme ones.
    """
    return math.ceil(math.log(2 / error) / math.log(math.comb(2 * m, m)))


def centred_statistics(candidate: np.ndarray, reference: np.ndarray, by: float) -> tuple[np.ndarray, float]:
    """Of each window the Mann-Whitney statistic of the sides, the candidate shifted back by `by`, less its mean.

    Shapes (windows, m); returns shape (windows,) and the variance that each has where `by` is the true shift.
    """
    m = candidate.shape[1]
    above = candidate[:, :, None] - by - reference[:, None, :]
    return np.sign(above).sum((1, 2)) / 2, _variance(m)


def _variance(m: int) -> float:
    return m * m * (2 * m + 1) / 12


def _rank(sizes: Sequence[tuple[int, int]], tail: float) -> int:
    """The highest rank, from 0, below which the shift lies with a chance of at most `tail`; negative where none is."""
    if tail <= 0:
        return -1
    if sum(number for _, number in sizes) <= EXACT:
        distribution = np.ones(1)
        for m, number in sizes:
            distribution = np.convolve(distribution, _sum_of_statistics(m, number))
        return int(np.searchsorted(np.cumsum(distribution), tail, side="right")) - 1
    middle = sum(number * m * m for m, number in sizes) / 2
    deviation = math.sqrt(sum(number * _variance(m) for m, number in sizes))
    return math.floor(middle - 0.5 + deviation * ndtri(tail))


@functools.cache
def _sum_of_statistics(m: int, number: int) -> np.ndarray:
    """The distribution of the sum of `number` Mann-Whitney statistics of m against m, of 0, 1, ... m * m * number."""
    if number == 1:
        counts = np.ones(1)
        for i in range(1, m + 1):  # the Gaussian binomial coefficient: the product of (1 - x^(m + i)) / (1 - x^i)
            counts = np.convolve(counts, [1.0, *[0.0] * (m + i - 1), -1.0])
            for power in range(i, len(counts)):
                counts[power] += counts[power - i]
            counts = counts[: m * i + 1]
        return counts / counts.sum()
    half = _sum_of_statistics(m, number // 2)
    whole = np.convolve(half, half)
    return np.convolve(whole, _sum_of_statistics(m, 1)) if number % 2 else whole
