"""`measure.statistics`: intervals that hold without a distribution, and looks that are paid for."""

import math

import numpy as np
import pytest

from perfsuite.measure.measurement import Interval
from perfsuite.measure.stats.intervals import (
    DECIDING_ERROR,
    INFORMING_ERROR,
    SESSION_ERROR,
    error_of_gate,
    error_of_look,
    line_fit,
    median_interval,
    quantile_floor,
    quantile_interval,
)

REPEATS = 2000


def normal(rng, size):
    return rng.normal(size=size)


def heavy_tailed(rng, size):
    """Cauchy: no mean and no variance, so an interval made from a standard error would be worthless."""
    return rng.standard_cauchy(size=size)


def coarse(rng, size):
    """A clock of few ticks: most samples are ties."""
    return rng.integers(0, 5, size=size).astype(float)


@pytest.mark.parametrize("noise", [normal, heavy_tailed])
@pytest.mark.parametrize(("quantile", "size"), [(0.5, 30), (0.5, 101), (0.99, 500)])
def test_interval_misses_the_true_quantile_as_seldom_as_it_says(noise, quantile, size):
    rng = np.random.default_rng(7)
    truth = np.quantile(noise(rng, 2_000_000), quantile)
    intervals = [quantile_interval(noise(rng, size), quantile, 0.05) for _ in range(REPEATS)]
    missed = sum(not interval.low <= truth <= interval.high for interval in intervals)
    assert missed <= 0.05 * REPEATS
    assert missed >= 0.01 * REPEATS, "far too wide: an interval that never misses says nothing"


def test_interval_of_tied_samples_still_covers():
    rng = np.random.default_rng(7)
    intervals = [median_interval(coarse(rng, 41), 0.05) for _ in range(REPEATS)]
    assert sum(not interval.low <= 2 <= interval.high for interval in intervals) <= 0.05 * REPEATS


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
def test_too_few_samples_give_no_interval(error, least):
    assert median_interval(np.arange(least - 1.0), error) is None
    assert median_interval(np.arange(float(least)), error) == Interval(0, least - 1)


def test_the_tail_needs_more_samples_than_the_median():
    assert quantile_interval(np.arange(367.0), 0.99, INFORMING_ERROR) is None
    assert quantile_interval(np.arange(368.0), 0.99, INFORMING_ERROR) is not None


def test_the_floor_is_the_lower_end_of_the_interval_also_where_there_is_no_upper_end():
    assert quantile_floor(np.arange(368.0), 0.99, 0.05) == quantile_interval(np.arange(368.0), 0.99, 0.05).low
    # 97 of 100 and no fewer lie below the 99th percentile with 98 %.
    assert quantile_floor(np.arange(100.0), 0.99, 0.05) == 96
    assert quantile_floor(np.arange(2.0), 0.5, 0.05) == -math.inf


def test_the_floor_lies_above_the_true_quantile_as_seldom_as_it_says():
    rng = np.random.default_rng(9)
    truth = np.quantile(rng.standard_cauchy(size=2_000_000), 0.99)
    above = sum(quantile_floor(rng.standard_cauchy(size=100), 0.99, 0.05) > truth for _ in range(REPEATS))
    assert above <= 0.025 * REPEATS


@pytest.mark.parametrize("samples", [[], [1.0], [math.nan] * 50, [*range(50), math.inf], [*range(50), math.nan]])
def test_no_samples_or_samples_that_are_no_numbers_give_no_interval(samples):
    assert median_interval(np.asarray(samples, dtype=float), 0.05) is None


def test_one_wild_sample_does_not_move_the_interval():
    quiet = np.arange(100.0)
    wild = np.append(quiet[:-1], 1e12)
    assert median_interval(quiet, 0.05) == median_interval(wild, 0.05)


def test_interval_narrows_with_samples():
    rng = np.random.default_rng(1)
    widths = [median_interval(rng.normal(size=size), 0.05).half_width for size in (10, 100, 1000, 10_000)]
    assert widths == sorted(widths, reverse=True)


def test_the_shares_of_all_looks_sum_to_the_error():
    shares = [error_of_look(look, 0.001) for look in range(1, 100_001)]
    assert sum(shares) == pytest.approx(0.001, rel=1e-4)
    assert sum(shares) < 0.001
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("expected", [0, 1, 5, 30, 3000])
def test_the_gates_of_a_session_share_its_error_however_many_they_turn_out_to_be(expected):
    shares = np.array([error_of_gate(gate, expected) for gate in range(1, expected + 50_001)])
    assert np.cumsum(shares)[-1] < SESSION_ERROR
    assert shares.max() <= DECIDING_ERROR
    assert (shares > 0).all()
    # Those that were expected are all held to the same, and those beyond them lose theirs slowly.
    assert len(set(shares[:expected])) <= 1
    assert shares[expected + 9] > SESSION_ERROR / 400


def test_few_gates_that_were_expected_get_all_that_a_gate_may_have():
    assert {error_of_gate(gate, 5) for gate in range(1, 6)} == {DECIDING_ERROR}
    assert error_of_gate(30, 30) == pytest.approx(SESSION_ERROR / 60)


def test_peeking_until_the_interval_misses_does_not_raise_the_error():
    """The worst user: looks after every few samples and stops at the first interval that excludes the truth."""
    rng = np.random.default_rng(3)
    paid = unpaid = 0
    looks = [20, 29, 41, 58, 82, 115, 162, 227, 318, 446]
    for _ in range(600):
        samples = rng.standard_t(2, size=looks[-1])
        intervals = [median_interval(samples[:size], error_of_look(n, 0.05)) for n, size in enumerate(looks, 1)]
        paid += any(not interval.low <= 0 <= interval.high for interval in intervals)
        intervals = [median_interval(samples[:size], 0.05) for size in looks]
        unpaid += any(not interval.low <= 0 <= interval.high for interval in intervals)
    assert paid <= 0.05 * 600
    assert unpaid > 0.1 * 600, "without paying, the simulation must raise false alarms, or it shows nothing"


def test_line_fit_finds_the_line():
    sizes = np.array([1.0, 2.0, 5.0, 9.0])
    assert line_fit(sizes, 3 * sizes + 7) == pytest.approx((3, 7, 1))


def test_line_fit_says_how_much_the_line_explains():
    slope, intercept, r_squared = line_fit(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 1.0, 0.0]))
    assert (slope, intercept, r_squared) == pytest.approx((0, 0.5, 0), abs=1e-12)


@pytest.mark.parametrize("constant", [0.0, 4.0, 0.1, 1e-9])
def test_line_through_a_constant_is_flat_and_explains_it(constant):
    # Three times 0.1 has a mean that is not 0.1: a total of 1e-34 must not be held against a residual of 1e-34.
    assert line_fit(np.array([1.0, 2.0, 4.0]), np.full(3, constant)) == (0.0, constant, 1.0)
