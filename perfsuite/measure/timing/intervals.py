"""The median and other quantiles of a sample, with intervals that assume no distribution.

`scipy.stats` has them too, but takes 0.5 s of processor time to load in each process that times something. So it is
what the tests compare with.
"""

import math

import numpy as np

from perfsuite.measure.metric import Interval

DECIDING_ERROR = 0.001
"""The chance that the interval of a comparison misses the truth, over all of its checks together."""

INFORMING_ERROR = 0.05
"""The chance that the interval of a plain timing misses the truth. It informs, and its gates have wide tolerances."""

LEAST_FOR_MEDIAN = 6
"""Fewer samples have no interval of their median: all of 5 lie on one side of it once in 16 times."""

BATCHES = 20
"""Fewer would widen the interval for chance alone, and more would be alike."""


def error_of_check(number: int, error: float) -> float:
    """The share of `error` that the n-th check of an interval (from 1) may spend: error * 6 / (pi * n)^2.

    The shares of all checks sum to `error`, so by the union bound the intervals of all checks hold at once with
    probability 1 - `error`: stopping at any check does not raise the rate of false alarms. (Alpha spending after
    K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983, with the series of 1 / n^2.)
    """
    return error * 6 / (math.pi * number) ** 2


def quantile_interval(samples: np.ndarray, quantile: float, error: float) -> Interval:
    """The interval of a quantile from order statistics, for any distribution.

    An end is infinite where the samples are too few for it: both ends of the median need 11 samples at error 0.001.
    So are both where a sample is not finite.
    """
    samples = np.sort(np.asarray(samples, dtype=np.float64))
    if not len(samples) or not np.isfinite(samples).all():
        return Interval(-math.inf, math.inf)
    low, high = _outside(len(samples), quantile, error / 2), _outside(len(samples), 1 - quantile, error / 2)
    return Interval(float(samples[low - 1]) if low else -math.inf, float(samples[-high]) if high else math.inf)


def _outside(count: int, quantile: float, error: float) -> int:
    """How many of the smallest samples lie below the quantile, except with probability `error`.

    The rank k + 1 lies above it where at most k samples lie below it. The binomial distribution says how often.
    """
    below = np.arange(count + 1)
    log_factorials = np.append(0.0, np.cumsum(np.log(below[1:])))
    log_ways = log_factorials[-1] - log_factorials - log_factorials[::-1]
    chances = np.exp(log_ways + below * math.log(quantile) + below[::-1] * math.log1p(-quantile))
    return int(np.searchsorted(np.cumsum(chances[:-1]), error, side="right"))


def median_interval(samples: np.ndarray, error: float) -> Interval:
    """`quantile_interval` of the median: the sign test's interval."""
    return quantile_interval(samples, 0.5, error)


def median_within_run(samples: np.ndarray) -> Interval:
    """The interval of the median of one run's samples, in their order: within this run, and not of another one.

    Samples that follow each other are alike on a shared machine. So the run is cut into 20 batches, whose medians are
    nearly independent where a 20th of the run outlasts what makes the samples alike (batch means: B. Schmeiser, Batch
    size effects in the analysis of simulation output, Operations Research 30, 1982), and the interval is that of their
    median. Of fewer than `LEAST_FOR_MEDIAN` samples it is the range, and infinite where a sample is not finite.
    """
    if not np.isfinite(samples).all():
        return Interval(-math.inf, math.inf)
    batches = np.array_split(samples, min(BATCHES, len(samples)))
    interval = median_interval(np.asarray([np.median(batch) for batch in batches]), INFORMING_ERROR)
    if math.isinf(interval.half_width):
        return Interval(float(samples.min()), float(samples.max()))
    middle = float(np.median(samples))  # the batches' medians may all lie above or below it
    return Interval(min(interval.low, middle), max(interval.high, middle))


def median_is_precise(samples: np.ndarray, share: float) -> bool:
    """Whether the half-width of `median_within_run` is at most this share of the median."""
    return median_within_run(samples).half_width <= share * abs(float(np.median(samples)))
