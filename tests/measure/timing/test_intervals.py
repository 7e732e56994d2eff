"""`measure.timing.intervals`: intervals of quantiles that assume no distribution."""

import math

import numpy as np
import pytest
import scipy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from perfsuite.measure.metric import Interval
from perfsuite.measure.timing.intervals import error_of_check, median_interval, median_within_run, quantile_interval

INFINITE = Interval(-math.inf, math.inf)
REPEATS = 2000


@pytest.mark.parametrize("samples", [[], [1.0], [math.nan] * 50, [*range(50), math.inf], [*range(50), math.nan]])
def test_no_samples_or_samples_that_are_no_numbers_give_an_infinite_interval(samples):
    assert median_interval(np.asarray(samples, dtype=float), 0.05) == INFINITE


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 600), st.sampled_from([0.5, 0.9, 0.99, 0.01]) | st.floats(0.001, 0.999), st.floats(1e-6, 0.5))
def test_the_lower_end_is_that_of_scipy_and_the_upper_one_its_mirror(size, quantile, error):
    samples = np.arange(float(size))
    low = scipy.stats.quantile_test(samples, q=0, p=quantile).confidence_interval(1 - error).low
    # What lies within a rounding error of half the error falls to either side.
    assume(abs(scipy.stats.binom.cdf(np.arange(size), size, quantile) / (error / 2) - 1).min() > 1e-9)
    found = quantile_interval(samples, quantile, error)
    assert found.low == (-math.inf if math.isnan(low) else low)
    assert -quantile_interval(-samples, 1 - quantile, error).high == found.low


@pytest.mark.parametrize("alike", [0, 0.5, 0.9])
def test_the_median_within_a_run_is_held_as_often_as_it_says_also_where_neighbours_are_alike(alike):
    rng = np.random.default_rng(3)
    runs = lfilter([1], [1, -alike], rng.normal(size=(500, 2000)))  # a first-order autoregression, of median 0
    covered = [(interval := median_within_run(run)).low <= 0 <= interval.high for run in runs]
    assert np.mean(covered) >= 0.92  # 0.95 and three standard errors; the sign test of all samples gets 0.4 at 0.9


def test_the_interval_within_a_run_holds_its_median_whatever_the_batches_say():
    run = np.concatenate([np.tile([0.0, 0.0, 9.0, 9.0, 9.0], 15), np.zeros(25)])
    assert np.median(run) == 0 == median_within_run(run).low


def test_a_sample_that_is_no_number_leaves_the_run_without_an_interval():
    assert median_within_run(np.array([1.0] * 50 + [math.nan])) == INFINITE


# Several checks.


def test_peeking_until_the_interval_misses_does_not_raise_the_error():
    """The worst user: checks after every few samples and stops at the first interval that excludes the truth."""
    rng = np.random.default_rng(3)
    checks = [20, 29, 41, 58, 82, 115, 162, 227, 318, 446]
    samples = rng.standard_t(2, size=(600, checks[-1]))
    paid = unpaid = np.zeros(600, bool)
    for n, size in enumerate(checks, 1):
        ordered = np.sort(samples[:, :size])
        paid = paid | misses_zero(ordered, error_of_check(n, 0.05))
        unpaid = unpaid | misses_zero(ordered, 0.05)
    assert paid.sum() <= 0.05 * 600
    assert unpaid.sum() > 0.1 * 600, "without paying, the simulation must raise false alarms, or it shows nothing"


def misses_zero(ordered, error):
    """Whether the interval of the median of each row excludes 0."""
    ranks = median_interval(np.arange(float(ordered.shape[1])), error)
    return (ordered[:, int(ranks.low)] > 0) | (ordered[:, int(ranks.high)] < 0)
