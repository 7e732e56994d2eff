"""`measure.timing.shift`: the shift between two sides of windows in random order, with intervals that hold."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promise.simulation import OF_BOTH, sides
from scipy import signal

from perfsuite.measure.metric import Interval
from perfsuite.measure.timing import shift as module
from perfsuite.measure.timing.intervals import median_interval
from perfsuite.measure.timing.shift import (
    LEAST_WINDOWS,
    excluded,
    rank_sum_interval,
    sequence_interval,
    shift,
)

INFINITE = Interval(-math.inf, math.inf)


def windows(seed, number, m=5, scale=1.0):
    rng = np.random.default_rng(seed)
    return scale * rng.normal(size=(number, m)), scale * rng.normal(size=(number, m))


# The rank sum.


def test_the_shift_is_the_median_of_the_differences_inside_windows_alone():
    # Between the windows lies a jump of 100 that both sides have in common.
    a, b = np.array([[1.0, 2], [103, 107]]), np.array([[0.0, 0], [100, 101]])
    assert shift([(a, b)]) == 2


@pytest.mark.parametrize("number", [11, 12, 20, 41, 63, 200])
def test_windows_of_one_pair_give_the_interval_of_the_sign_test(number):
    a, b = windows(number, number, 1)
    assert rank_sum_interval([(a, b)], 0.001) == median_interval((a - b).ravel(), 0.001)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_distribution_is_that_of_every_order_being_as_likely(m):
    def above(turns):
        return sum(turns[i] > turns[j] for i in range(2 * m) for j in range(i + 1, 2 * m))

    orders = set(itertools.permutations([0] * m + [1] * m))
    counts = np.bincount([above(order) for order in orders], minlength=m * m + 1)
    once = counts / len(orders)
    np.testing.assert_allclose(module._sum_of_statistics(m, 1), once)
    np.testing.assert_allclose(module._sum_of_statistics(m, 3), np.convolve(once, np.convolve(once, once)))


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("tail", [0.005, 5e-4, 5e-6, 5e-8])
def test_the_normal_rank_is_no_higher_than_the_exact_one_and_hardly_lower(monkeypatch, m, tail):
    sizes = [(m, module.EXACT + 1)]
    normal = module._rank(sizes, tail)
    monkeypatch.setattr(module, "EXACT", 1000)
    assert 0 <= module._rank(sizes, tail) - normal <= 1


def test_windows_of_several_sizes_are_weighed_together():
    missed = 0
    for seed in range(1500):
        small, large = windows([2, seed], 15, 1), windows([3, seed], 6, 5)
        interval = rank_sum_interval([small, large], 0.05)
        missed += not interval.low <= 0 <= interval.high
    assert 0.02 * 1500 <= missed <= 0.05 * 1500 + 3 * math.sqrt(0.05 * 1500)


@pytest.mark.parametrize("model", OF_BOTH, ids=lambda model: model.__name__)
def test_the_interval_misses_the_shift_as_seldom_as_it_says_whatever_the_noise(model):
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(600):
        a, b = (np.log(side).reshape(-1, 5) for side in sides(rng, model, 100, 5, math.exp(0.1)))
        interval = rank_sum_interval([(a, b)], 0.05)
        missed += not interval.low <= 0.1 <= interval.high
    assert 0.01 * 600 <= missed <= 0.05 * 600 + 3 * math.sqrt(0.05 * 600), "never missing would be far too wide"


# The confidence sequence.


def excludes(windows, by, error):
    """Whether the candidate's shift is not `by`, at this error over all times at which one asks."""
    candidate, reference = windows
    scores = np.sign(candidate[:, :, None] - by - reference[:, None, :]).mean((1, 2)) / 2
    return excluded(scores * np.sign(scores.sum()), candidate.shape[1], error)


@pytest.mark.parametrize("number", [0, 1, LEAST_WINDOWS - 1])
def test_too_few_windows_have_no_interval(number):
    a, b = windows(0, number)
    assert sequence_interval((a + 1e3, b), 0.001) == INFINITE


def test_asking_again_and_again_is_wrong_no_more_often_than_the_error_allows():
    wrong = 0
    for seed in range(400):
        a, b = windows(seed, 450, m=1)
        wrong += any(
            excludes((a[:number], b[:number]), 0.0, 0.05) for number in (24, 30, 40, 60, 90, 130, 200, 300, 450)
        )
    assert wrong <= 0.025 * 400, "where the error stands in the bound by itself, not its square, it is 6 %"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_time_that_is_not_finite_leaves_it_infinite(value):
    a, b = windows(2, 50)
    a[3, 2] = value
    assert sequence_interval((a, b), 0.001) == INFINITE


def test_noise_of_a_sides_own_that_neighbours_hardly_show_is_seen_in_sums():
    """A side that wanders slowly, by half of what its blocks scatter: neighbouring windows are correlated by a third."""
    wrong = 0
    for seed in range(200):
        a, b = windows(seed, 800)
        shocks = 0.5 * math.sqrt(1 - 0.95**2) * np.random.default_rng([1, seed]).normal(size=800)
        wander = signal.lfilter([1], [1, -0.95], shocks)
        wrong += excludes((a + wander[:, None], b), 0.0, 0.001)
    assert wrong <= 1, "without the sums of several scores it is 10 and more"


@pytest.mark.parametrize("correlation", [0.3, 0.5, 0.6])
def test_what_correlation_adds_to_the_variance_is_not_underestimated_of_few_sums(correlation):
    """2 r / (1 - r) of it; without the correction of its bias a fifth less comes out."""
    rng = np.random.default_rng(0)
    added = []
    for _ in range(2000):
        series = signal.lfilter([1], [1, -correlation], rng.normal(size=100))[-52:]
        centred = series - series.mean()
        added.append(module._correlated(centred) / (centred @ centred))
    assert np.median(added) == pytest.approx(2 * correlation / (1 - correlation), rel=0.06)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    number=st.integers(LEAST_WINDOWS, 90),
    m=st.integers(1, 5),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    by=st.floats(-1e6, 1e6),
    error=st.sampled_from([0.05, 0.001]),
)
def test_it_holds_its_median_moves_with_the_shift_and_excludes_what_lies_outside(seed, number, m, scale, by, error):
    a, b = windows(seed, number, m, scale)
    interval, moved = sequence_interval((a, b), error), sequence_interval((a + by, b), error)
    assert interval.low <= shift([(a, b)]) <= interval.high
    tolerance = 1e-9 * (scale + abs(by))
    assert moved.low == pytest.approx(interval.low + by, abs=tolerance)
    assert moved.high == pytest.approx(interval.high + by, abs=tolerance)
    mirrored = sequence_interval((b, a), error)
    assert (mirrored.low, mirrored.high) == (-interval.high, -interval.low)
    for end, outside in ((interval.low, -1), (interval.high, 1)):
        if math.isfinite(end):
            assert excludes((a, b), end + outside * 1e-9 * max(scale, abs(end)), error)
            assert not excludes((a, b), shift([(a, b)]), error)
