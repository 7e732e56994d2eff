"""The median and other quantiles of a sample with intervals that assume no distribution, and a line through points.

`scipy.stats` takes 0.6 s of processor time to load, so only what times calls imports this module.
"""

import math

import numpy as np
from scipy.stats import linregress, quantile_test

from perfsuite.measure.measurement import Interval
from perfsuite.measure.stats.error_rates import INFORMING_ERROR


def quantile_interval(samples: np.ndarray, quantile: float, error: float) -> Interval:
    """The interval of a quantile from order statistics (`scipy.stats.quantile_test`), for any distribution.

    An end is infinite where the samples are too few for it: both ends of the median need 11 samples at error 0.001.
    So are both where a sample is not finite.
    """
    samples = np.asarray(samples, dtype=np.float64)
    if not len(samples) or not np.isfinite(samples).all():
        return Interval(-math.inf, math.inf)
    low, high = quantile_test(samples, q=0, p=quantile).confidence_interval(1 - error)
    return Interval(-math.inf if math.isnan(low) else float(low), math.inf if math.isnan(high) else float(high))


def median_interval(samples: np.ndarray, error: float) -> Interval:
    """`quantile_interval` of the median: the sign test's interval."""
    return quantile_interval(samples, 0.5, error)


def median_or_range(samples: np.ndarray) -> Interval:
    """The interval of the median that informs; where the samples are too few for one, their range."""
    interval = median_interval(samples, INFORMING_ERROR)
    return interval if math.isfinite(interval.half_width) else Interval(float(samples.min()), float(samples.max()))


def median_is_known(samples: np.ndarray, to: float) -> bool:
    """Whether the half-width of the median's interval is at most this share of the median."""
    return median_interval(samples, INFORMING_ERROR).half_width <= to * abs(float(np.median(samples)))


def line_fit(sizes: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Least squares through (size, value): slope, intercept and the coefficient of determination R^2.

    R^2 is 1 for constant values, which a flat line explains fully.
    """
    if np.ptp(values) == 0:  # SciPy would compare the rounding errors of the fit with each other
        return 0.0, float(values[0]), 1.0
    line = linregress(sizes, values)
    return float(line.slope), float(line.intercept), float(line.rvalue**2)
