"""`measure.stats.intervals`: intervals of quantiles that assume no distribution, and a line."""

import math
import subprocess
import sys

import numpy as np
import pytest
import scipy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from perfsuite.measure.metric import Interval
from perfsuite.measure.stats.error_rates import DECIDING_ERROR, INFORMING_ERROR
from perfsuite.measure.stats.intervals import line_fit, median_interval, median_within_run, quantile_interval

INFINITE = Interval(-math.inf, math.inf)
REPEATS = 2000


def normal(rng, size):
    return rng.normal(size=size)


def heavy_tailed(rng, size):
    """Cauchy: no mean and no variance, so an interval made from a standard error would be worthless."""
    return rng.standard_cauchy(size=size)


def coarse(rng, size):
    """A clock of few ticks: most samples are ties."""
    return rng.integers(0, 5, size=size).astype(float)


def intervals_of(samples, quantile, error):
    """Both ends for each row: the ranks of an interval depend on the number of samples alone."""
    ranks = quantile_interval(np.arange(float(samples.shape[1])), quantile, error)
    ordered = np.sort(samples)
    return ordered[:, int(ranks.low)], ordered[:, int(ranks.high)]


@pytest.mark.parametrize("noise", [normal, heavy_tailed])
@pytest.mark.parametrize(("quantile", "size"), [(0.5, 30), (0.5, 101), (0.99, 500)])
def test_interval_misses_the_true_quantile_as_seldom_as_it_says(noise, quantile, size):
    rng = np.random.default_rng(7)
    truth = np.quantile(noise(rng, 2_000_000), quantile)
    low, high = intervals_of(noise(rng, (REPEATS, size)), quantile, 0.05)
    missed = ((truth < low) | (high < truth)).sum()
    assert missed <= 0.05 * REPEATS
    assert missed >= 0.01 * REPEATS, "far too wide: an interval that never misses says nothing"


def test_interval_of_tied_samples_still_covers():
    low, high = intervals_of(coarse(np.random.default_rng(7), (REPEATS, 41)), 0.5, 0.05)
    assert ((low > 2) | (high < 2)).sum() <= 0.05 * REPEATS


@pytest.mark.parametrize(
    ("size", "error", "low", "high"),
    [
        # The ranks of the sign test's interval (from 1), from tables: n = 10 at 97.9 %, n = 20 at 95.9 %.
        (10, 0.05, 2, 9),
        (20, 0.05, 6, 15),
        (50, 0.05, 18, 33),
        (11, 0.001, 1, 11),
    ],
)
def test_median_interval_takes_the_ranks_of_the_sign_test(size, error, low, high):
    samples = np.random.default_rng(0).permutation(np.arange(1.0, size + 1))
    assert median_interval(samples, error) == Interval(low, high)


@pytest.mark.parametrize(("error", "least"), [(DECIDING_ERROR, 11), (INFORMING_ERROR, 6)])
def test_too_few_samples_give_an_infinite_interval(error, least):
    assert median_interval(np.arange(least - 1.0), error) == INFINITE
    assert median_interval(np.arange(float(least)), error) == Interval(0, least - 1)


def test_the_tail_needs_more_samples_than_the_median_for_its_upper_end():
    assert quantile_interval(np.arange(367.0), 0.99, INFORMING_ERROR).high == math.inf
    assert quantile_interval(np.arange(368.0), 0.99, INFORMING_ERROR).high == 367


def test_the_lower_end_of_the_tail_is_known_before_the_upper_one():
    # 97 of 100 and no fewer lie below the 99th percentile with 98 %.
    assert quantile_interval(np.arange(100.0), 0.99, 0.05) == Interval(96, math.inf)
    assert quantile_interval(np.arange(2.0), 0.5, 0.05) == INFINITE


def test_the_lower_end_alone_lies_above_the_true_quantile_as_seldom_as_it_says():
    rng = np.random.default_rng(9)
    truth = np.quantile(rng.standard_cauchy(size=2_000_000), 0.99)
    rank = int(quantile_interval(np.arange(100.0), 0.99, 0.05).low)
    above = np.sort(rng.standard_cauchy(size=(REPEATS, 100)))[:, rank] > truth
    assert 0.005 * REPEATS <= above.sum() <= 0.025 * REPEATS


@pytest.mark.parametrize("samples", [[], [1.0], [math.nan] * 50, [*range(50), math.inf], [*range(50), math.nan]])
def test_no_samples_or_samples_that_are_no_numbers_give_an_infinite_interval(samples):
    assert median_interval(np.asarray(samples, dtype=float), 0.05) == INFINITE


def test_one_wild_sample_does_not_move_the_interval():
    quiet = np.arange(100.0)
    wild = np.append(quiet[:-1], 1e12)
    assert median_interval(quiet, 0.05) == median_interval(wild, 0.05)


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


FIRST_TIMINGS = """
import sys
import jax, jax.numpy as jnp, numpy as np
from perfsuite.measure.call import call
from perfsuite.measure.timing import asynchrony, block, scaling, timing

loaded, run_block = [], block.run_block

def first_block(*args, **kwargs):
    loaded.append("scipy.special" in sys.modules)
    return run_block(*args, **kwargs)

step = call(jax.jit(lambda x: x + 1), jnp.ones(4))
for module, measure in (
    (timing, lambda: timing.time_call(step, seconds=0.01)),
    (asynchrony, lambda: asynchrony.asynchrony(step, seconds=0.01)),
    (scaling, lambda: scaling.fit_calls([step, step], np.array([1.0, 2.0]), metric="ready", seconds=0.01)),
):
    for name in [each for each in sys.modules if each.split(".")[:2] == ["scipy", "special"]]:
        del sys.modules[name]
    loaded.clear()
    module.run_block = first_block
    measure()
    print(module.__name__.rpartition(".")[2], loaded[0])
"""


def test_what_intervals_need_is_loaded_before_the_first_sample_of_a_timing():
    printed = subprocess.run([sys.executable, "-c", FIRST_TIMINGS], capture_output=True, text=True, check=False)
    assert printed.stdout.splitlines() == ["timing True", "asynchrony True", "scaling True"], printed.stderr


def test_interval_narrows_with_samples():
    rng = np.random.default_rng(1)
    widths = [median_interval(rng.normal(size=size), 0.05).half_width for size in (10, 100, 1000, 10_000)]
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("alike", [0, 0.5, 0.9])
def test_the_median_within_a_run_is_held_as_often_as_it_says_also_where_neighbours_are_alike(alike):
    rng = np.random.default_rng(3)
    runs = lfilter([1], [1, -alike], rng.normal(size=(500, 2000)))  # a first-order autoregression, of median 0
    covered = [(interval := median_within_run(run)).low <= 0 <= interval.high for run in runs]
    assert np.mean(covered) >= 0.92  # 0.95 and three standard errors; the sign test of all samples gets 0.4 at 0.9


def test_few_samples_of_a_run_have_their_range():
    assert median_within_run(np.array([3.0, 1.0, 2.0])) == Interval(1, 3)


def test_the_interval_within_a_run_holds_its_median_whatever_the_batches_say():
    run = np.concatenate([np.tile([0.0, 0.0, 9.0, 9.0, 9.0], 15), np.zeros(25)])
    assert np.median(run) == 0 == median_within_run(run).low


def test_a_sample_that_is_no_number_leaves_the_run_without_an_interval():
    assert median_within_run(np.array([1.0] * 50 + [math.nan])) == INFINITE


def test_line_fit_finds_the_line():
    sizes = np.array([1.0, 2.0, 5.0, 9.0])
    assert line_fit(sizes, 3 * sizes + 7) == pytest.approx((3, 7, 1))


def test_line_fit_says_how_much_the_line_explains():
    slope, intercept, r_squared = line_fit(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 1.0, 0.0]))
    assert (slope, intercept, r_squared) == pytest.approx((0, 0.5, 0), abs=1e-12)


@pytest.mark.parametrize("constant", [0.0, 4.0, 0.1, 1e-9])
def test_line_through_a_constant_is_flat_and_explains_it(constant):
    # Three times 0.1 has a mean that is not 0.1: the fit must not compare a total of 1e-34 with a residual of 1e-34.
    assert line_fit(np.array([1.0, 2.0, 4.0]), np.full(3, constant)) == (0.0, constant, 1.0)
