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
from perfsuite.measure.stats.intervals import line_fit, median_interval, median_within_run, quantile_interval

INFINITE = Interval(-math.inf, math.inf)
REPEATS = 2000


def normal(rng, size):
    return rng.normal(size=size)


def heavy_tailed(rng, size):
    """Cauchy: no mean and no variance, so an interval made from a standard error would be worthless."""
    return rng.standard_cauchy(size=size)


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


@pytest.mark.parametrize("constant", [0.0, 4.0, 0.1, 1e-9])
def test_line_through_a_constant_is_flat_and_explains_it(constant):
    # Three times 0.1 has a mean that is not 0.1: the fit must not compare a total of 1e-34 with a residual of 1e-34.
    assert line_fit(np.array([1.0, 2.0, 4.0]), np.full(3, constant)) == (0.0, constant, 1.0)
