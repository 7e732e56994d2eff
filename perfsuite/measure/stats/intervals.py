"""Intervals that hold on shared machines: no normal distribution assumed, and repeated looks paid for.

Only order statistics are used. Clock drift, bursts and heavy tails move a mean and its standard error at will; they
move the ranks of paired differences hardly at all.
"""

import math

import numpy as np
from scipy.special import bdtr, bdtrc

from perfsuite.measure.measurement import Interval

DECIDING_ERROR = 0.001
"""Chance that a comparison's interval misses the truth, over all of its looks together: these fail builds."""

SESSION_ERROR = 0.01
"""Chance that any comparison of a session does, over all of its gates together, however many they turn out to be."""

INFORMING_ERROR = 0.05
"""Chance that a plain timing's interval misses the truth: these inform, their gates have wide tolerances."""


def quantile_interval(samples: np.ndarray, quantile: float, error: float) -> Interval | None:
    """The distribution-free interval of a quantile, from order statistics.

    The number of samples below the q-quantile is binomial(n, q), so the ranks that enclose the quantile with
    probability 1 - `error` follow from the binomial distribution alone (H. A. David and H. N. Nagaraja, Order
    Statistics, 3rd edition, section 7.1). Returns None when there are too few samples for a lower or an upper end:
    for the median at error 0.001, fewer than 11.
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    n = len(ordered)
    if n == 0 or not np.isfinite(ordered).all():
        return None
    ranks = np.arange(n)
    # ordered[rank] lies above the quantile when at most `rank` samples lie below it, and below it when more do.
    lower = np.flatnonzero(bdtr(ranks, n, quantile) <= error / 2)
    upper = np.flatnonzero(bdtrc(ranks, n, quantile) <= error / 2)
    if not len(lower) or not len(upper):
        return None
    return Interval(float(ordered[lower[-1]]), float(ordered[upper[0]]))


def quantile_floor(samples: np.ndarray, quantile: float, error: float) -> float:
    """The lower end alone of `quantile_interval`, minus infinity where even that needs more samples."""
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    ranks = np.flatnonzero(bdtr(np.arange(len(ordered)), len(ordered), quantile) <= error / 2)
    return float(ordered[ranks[-1]]) if len(ranks) else -math.inf


def median_interval(samples: np.ndarray, error: float) -> Interval | None:
    """`quantile_interval` of the median: the sign test's interval."""
    return quantile_interval(samples, 0.5, error)


def error_of_look(look: int, error: float) -> float:
    """The share of `error` that the n-th look (from 1) may spend: error * 6 / (pi * n)^2.

    The shares of all looks sum to `error`, so by the union bound the intervals of every look hold at once with
    probability 1 - `error`: stopping at whichever look pleases does not raise the rate of false alarms. (Alpha
    spending after K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983, with the series of 1 / n^2.)
    """
    return error * 6 / (math.pi * look) ** 2


def error_of_gate(gate: int, expected: int) -> float:
    """The error of the n-th gate (from 1) of a session that is thought to have `expected` gates.

    Half of `SESSION_ERROR` is shared out equally among those that are expected, the other half goes to those beyond
    them as a series that never ends (`error_of_look`), and none gets more than `DECIDING_ERROR`. So the shares of any
    number of gates sum to `SESSION_ERROR` at most, which by the union bound is the most that the chance of any false
    alarm can be, however the gates depend on each other (O. J. Dunn, Multiple comparisons among means, Journal of the
    American Statistical Association 56, 1961; the shares need not be equal).
    """
    if gate <= expected:
        return min(DECIDING_ERROR, SESSION_ERROR / 2 / expected)
    return min(DECIDING_ERROR, error_of_look(gate - expected, SESSION_ERROR / 2))


def line_fit(sizes: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Least squares through (size, value): slope, intercept and the coefficient of determination R^2.

    R^2 is 1 for a constant `values`, which the line explains fully.
    """
    if np.ptp(values) == 0:  # or the rounding errors of the fit would be compared with each other
        return 0.0, float(values[0]), 1.0
    slope, intercept = np.polyfit(sizes, values, 1)
    residual = np.sum((values - (slope * sizes + intercept)) ** 2)
    total = np.sum((values - values.mean()) ** 2)
    return float(slope), float(intercept), float(1 - residual / total) if total > 0 else 1.0
