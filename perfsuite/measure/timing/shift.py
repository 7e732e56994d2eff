"""The shift between two sides that ran in windows, m times each, in random order, with two intervals.

Only the order of a window's blocks counts, and chance chose that order: without a shift each of the (2m over m) orders
is equally likely, whatever the times are. So the intervals hold under drift, under clocks of several speeds, beside
neighbours that come and go, and for tails however heavy. A burst counts only for the blocks that it hits. Means and
standard errors have none of this.

Few windows: Wilcoxon's rank sum, window by window (`rank_sum_interval`). It is exact where a block takes as long as it
takes whichever side runs. SciPy has the rank sum of two samples, but neither its sum over windows nor its interval.

Many windows: a self-normalised confidence sequence (`sequence_interval`), which holds at any time. Each window gives
one score: the share of its pairs whose difference is above the shift that is tested, less one half. At the true shift
a score is as likely to be s as -s. For such scores S with C = sum S and Q = sum S^2, exp(x C - x^2 Q / 2) is a
supermartingale for every x (V. H. de la Pena, A general class of exponential inequalities for martingales and ratios,
Annals of Probability 27, 1999). Its mixture over x is one as well (H. Robbins, Statistical methods related to the law
of the iterated logarithm, Annals of Mathematical Statistics 41, 1970), so

    |C| >= sqrt((Q + rho) log((Q + rho) / (rho error^2)))

happens at any time with probability `error` at most. A shift is excluded where that holds, so sampling may stop at any
moment, for any reason.

The scores measure their own scatter, so the sides may scatter differently. Noise that one side has by itself and that
lasts over several blocks makes scores in a row alike. Therefore the same must hold for sums of 2, 4, 8, ... scores, as
long as there are `LEAST_SUMS` of them, with Q enlarged as for an autoregressive series with their correlation. That
covers noise whose states last for less than some 100 blocks.
"""

import bisect
import functools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from perfsuite.measure.metric import Interval

Windows = tuple[np.ndarray, np.ndarray]
"""Candidate and reference of windows of one size, each of shape (windows, m)."""

EXACT = 64
"""Up to this many windows the distribution of the rank sum is exact. Beyond, the normal one takes its place, which errs
on the safe side: the rank sum has lighter tails."""

LEAST_WINDOWS = 24
"""Of 18 windows of five pairs it can exclude the first shift at an error of 0.001. The first few checks are those
that noise of a side's own fools most often."""

LEAST_SUMS = 52
"""In the simulation so many sums show noise of a side's own as well as 26 longer ones do, and on a real machine the
intervals of 1,000 pairs are a fourth narrower with them. Of fewer than 26 long sums not even a shift beyond all
differences is excluded."""

RHO = 5
"""In variances of a score where all orders are equally likely. The bound is tightest where Q is some 10 to 20 times as
much: after about 50 to 100 windows."""

MOST_CORRELATED = 0.8
"""A higher correlation of sums is not believed: of 52 sums it is known to 0.14."""


def _differences(windows: Sequence[Windows]) -> np.ndarray:
    """Candidate - reference for all m * m pairs of each window, in ascending order."""
    return np.sort(np.concatenate([(a[:, :, None] - b[:, None, :]).ravel() for a, b in windows]))


def shift(windows: Sequence[Windows]) -> float:
    """The median of the differences inside windows (J. L. Hodges and E. L. Lehmann, Estimates of location based on rank
    tests, Annals of Mathematical Statistics 34, 1963).
    """
    return float(np.median(_differences(windows)))


def rank_sum_interval(windows: Sequence[Windows], error: float) -> Interval:
    """The interval that holds the shift with probability 1 - `error`; infinite where the windows are too few for one.

    It has the shifts that the rank-sum test does not reject (F. Wilcoxon, Individual comparisons by ranking methods,
    Biometrics Bulletin 1, 1945; the sum over windows: P. van Elteren, On the combination of independent two-sample
    tests of Wilcoxon, Bulletin of the International Statistical Institute 37, 1960). The statistic of H. B. Mann and
    D. R. Whitney (On a test of whether one of two random variables is stochastically larger than the other, Annals of
    Mathematical Statistics 18, 1947) counts the differences below the true shift, so the ends are order statistics of
    the differences. With windows of one pair it is the interval of the sign test.
    """
    ordered = _differences(windows)
    rank = _rank([(a.shape[1], len(a)) for a, _ in windows], error / 2)
    if rank < 0 or not np.isfinite(ordered).all():
        return Interval(-math.inf, math.inf)
    return Interval(float(ordered[rank]), float(ordered[-1 - rank]))


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
    deviation = math.sqrt(sum(number * m * m * (2 * m + 1) / 12 for m, number in sizes))
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


def sequence_interval(windows: Windows, error: float) -> Interval:
    """The shifts that are not excluded; infinite where the windows are too few, or a time is not finite.

    Takes candidate and reference, each of shape (windows, m), in the order of sampling. An end is the difference of two
    blocks of one window, found by bisection: the further from the median of the differences, the larger is |C|.
    """
    candidate, reference = windows
    differences = (candidate[:, :, None] - reference[:, None, :]).reshape(len(candidate), candidate.shape[1] ** 2)
    if len(candidate) < LEAST_WINDOWS or not np.isfinite(differences).all():
        return Interval(-math.inf, math.inf)
    m, ordered = candidate.shape[1], np.sort(differences, axis=None)
    # Differences that are equal to an end count as beyond it, so the end itself is not excluded.
    below = bisect.bisect_left(ordered, True, key=lambda by: not excluded(0.5 - (differences < by).mean(1), m, error))
    above = bisect.bisect_left(
        ordered[::-1], True, key=lambda by: not excluded(0.5 - (differences > by).mean(1), m, error)
    )
    return Interval(float(ordered[below - 1]) if below else -math.inf, float(ordered[-above]) if above else math.inf)


def excluded(scores: np.ndarray, m: int, error: float) -> bool:
    """Whether the scores of windows of m pairs are too high for the true shift, at this error over all times."""
    rho = RHO * ((2 * m + 1) / 12 / m**2)
    length = 1
    while length == 1 or len(scores) // length >= LEAST_SUMS:
        sums = scores[len(scores) % length :].reshape(-1, length).sum(1)
        if not _beyond(sums, rho * length, error):
            return False
        length *= 2
    return True


def _beyond(sums: np.ndarray, rho: float, error: float) -> bool:
    total, squares = float(sums.sum()), float(sums @ sums) + rho
    if total < _bound(squares, rho, error):  # nearly always so, and correlation only adds to the bound
        return False
    return total >= _bound(squares + _correlated(sums - sums.mean()), rho, error)


def _bound(squares: float, rho: float, error: float) -> float:
    return math.sqrt(squares * math.log(squares / (rho * error**2)))


def _correlated(centred: np.ndarray) -> float:
    """What the correlation r of neighbours adds to the variance of all the sums together: 2 r / (1 - r) of it.

    The correlation of so few numbers comes out too low by about (1 + 3 r) / n (M. G. Kendall, Note on bias in the
    estimation of autocorrelation, Biometrika 41, 1954).
    """
    squares = float(centred @ centred)
    if not squares:
        return 0.0
    correlation = float(centred[1:] @ centred[:-1]) / squares
    correlation += (1 + 3 * correlation) / len(centred)
    correlation = min(max(correlation, 0.0), MOST_CORRELATED)
    return squares * 2 * correlation / (1 - correlation)
