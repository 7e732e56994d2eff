"""`measure.stats.rank_sum`: the shift between two sides of windows in random order, with an interval that holds."""

import itertools
import math

import numpy as np
import pytest
from promise.simulation import OF_BOTH, sides

from perfsuite.measure.metric import Interval
from perfsuite.measure.stats import rank_sum
from perfsuite.measure.stats.intervals import median_interval
from perfsuite.measure.stats.rank_sum import (
    least_windows,
    pair_differences,
    shift,
    shift_interval,
)

INFINITE = Interval(-math.inf, math.inf)


def windows(rng, number, m, noise=np.random.Generator.normal):
    return noise(rng, size=(number, m)), noise(rng, size=(number, m))


def test_the_shift_is_the_median_of_the_differences_inside_windows_alone():
    # Between the windows lies a jump of 100 that both sides have in common.
    a, b = np.array([[1.0, 2], [103, 107]]), np.array([[0.0, 0], [100, 101]])
    np.testing.assert_allclose(pair_differences([(a, b)]), [1, 1, 2, 2, 2, 3, 6, 7])
    assert shift([(a, b)]) == 2


@pytest.mark.parametrize("number", [11, 12, 20, 41, 63, 200])
def test_windows_of_one_pair_give_the_interval_of_the_sign_test(number):
    a, b = windows(np.random.default_rng(number), number, 1)
    assert shift_interval([(a, b)], 0.001) == median_interval((a - b).ravel(), 0.001)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_distribution_is_that_of_every_order_being_as_likely(m):
    def above(turns):
        return sum(turns[i] > turns[j] for i in range(2 * m) for j in range(i + 1, 2 * m))

    orders = set(itertools.permutations([0] * m + [1] * m))
    counts = np.bincount([above(order) for order in orders], minlength=m * m + 1)
    once = counts / len(orders)
    np.testing.assert_allclose(rank_sum._sum_of_statistics(m, 1), once)
    np.testing.assert_allclose(rank_sum._sum_of_statistics(m, 3), np.convolve(once, np.convolve(once, once)))


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("tail", [0.005, 5e-4, 5e-6, 5e-8])
def test_the_normal_rank_is_no_higher_than_the_exact_one_and_hardly_lower(monkeypatch, m, tail):
    sizes = [(m, rank_sum.EXACT + 1)]
    normal = rank_sum._rank(sizes, tail)
    monkeypatch.setattr(rank_sum, "EXACT", 1000)
    assert 0 <= rank_sum._rank(sizes, tail) - normal <= 1


@pytest.mark.parametrize("error", [0.05, 0.001, 8e-5, 1e-6])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
def test_the_least_windows_for_an_interval_are_known_before(m, error):
    least = least_windows(m, error)
    rng = np.random.default_rng(0)
    assert shift_interval([windows(rng, least, m)], error) != INFINITE
    assert least == 1 or shift_interval([windows(rng, least - 1, m)], error) == INFINITE


def test_windows_of_several_sizes_are_weighed_together():
    rng = np.random.default_rng(2)
    missed = 0
    for _ in range(1500):
        small, large = windows(rng, 15, 1), windows(rng, 6, 5)
        interval = shift_interval([small, large], 0.05)
        missed += not interval.low <= 0 <= interval.high
    assert 0.02 * 1500 <= missed <= 0.05 * 1500 + 3 * math.sqrt(0.05 * 1500)


@pytest.mark.parametrize("model", OF_BOTH, ids=lambda model: model.__name__)
def test_the_interval_misses_the_shift_as_seldom_as_it_says_whatever_the_noise(model):
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(600):
        a, b = (np.log(side).reshape(-1, 5) for side in sides(rng, model, 100, 5, math.exp(0.1)))
        interval = shift_interval([(a, b)], 0.05)
        missed += not interval.low <= 0.1 <= interval.high
    assert 0.01 * 600 <= missed <= 0.05 * 600 + 3 * math.sqrt(0.05 * 600), "never missing would be far too wide"


def test_it_is_narrower_than_the_interval_of_the_sign_test():
    rng = np.random.default_rng(5)
    narrower = []
    for _ in range(40):
        a, b = windows(rng, 100, 5)
        pairs = median_interval((a - b).ravel(), 0.001)
        narrower.append(shift_interval([(a, b)], 0.001).half_width / pairs.half_width)
    assert 0.8 < np.mean(narrower) < 0.92  # sqrt(11 / 15) = 0.856
