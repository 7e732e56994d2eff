"""The median and other quantiles of a sample with intervals that assume no distribution, and a line through points.

`scipy.stats` has them too, but takes 0.5 s of processor time to load in each process that times something. So it is
what the tests compare with. `scipy.special` takes 0.25 s, at its first use: a session that times nothing never does so,
and what times calls does before its first sample (`load`).
"""

import importlib
import math

import numpy as np
import scipy

from perfsuite.measure.metric import Interval
from perfsuite.measure.stats.error_rates import INFORMING_ERROR

LEAST_FOR_MEDIAN = 6
"""Fewer samples have no interval of their median: all of 5 lie on one side of it once in 16 times."""

BATCHES = 20
"""Fewer would widen the interval for chance alone, and more would be alike."""


def load() -> None:
    """Load `scipy.special`, so that it takes no time from the samples of a timing."""
    importlib.import_module("scipy.special")


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
    return int(np.searchsorted(scipy.special.bdtr(np.arange(count), count, quantile), error, side="right"))


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


def median_is_known(samples: np.ndarray, to: float) -> bool:
    """Whether the half-width of `median_within_run` is at most this share of the median."""
    return median_within_run(samples).half_width <= to * abs(float(np.median(samples)))


def line_fit(sizes: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Least squares through (size, value): slope, intercept and the coefficient of determination R^2.

    R^2 is 1 for constant values, which a flat line explains fully.
    """
    spread = np.ptp(values)
    if spread == 0:  # the rounding errors of the fit would be compared with each other
        return 0.0, float(values[0]), 1.0
    variance, covariance = np.cov(sizes, values, bias=True)[0]
    slope = covariance / variance
    intercept = values.mean() - slope * sizes.mean()
    left = (values - slope * sizes - intercept) / spread  # of the spread: the squares of tiny numbers are zero
    whole = (values - values.mean()) / spread
    return float(slope), float(intercept), float(1 - left @ left / (whole @ whole))
