"""`measure.stats.sequential`: when to look, what a look may spend, and what it sees."""

import math

import numpy as np
import pytest

from perfsuite.measure.measurement import Interval
from perfsuite.measure.stats.rank_sum import least_windows, shift_interval
from perfsuite.measure.stats.sequential import Sequential, fewest_pairs, in_windows, window_of


def two_sides(pairs, seed=0):
    return np.random.default_rng(seed).uniform(100, 200, size=(2, pairs))


def ratio_at(error, candidate, reference, window):
    windows = in_windows(np.log(candidate), np.log(reference), window)
    interval = shift_interval([windows], error)
    return pytest.approx((math.exp(interval.low), math.exp(interval.high)))


def ends(interval):
    return interval.low, interval.high


def test_it_looks_at_twenty_pairs_and_two_fifths_more_each_time_and_at_the_end():
    rule = Sequential()
    looked_at = []
    for pairs in range(5, 205, 5):
        time_passed = pairs / 200 + 1e-9
        if rule.due(pairs, time_passed):
            looked_at.append(pairs)
            rule.look(*two_sides(pairs), 5, time_passed)
    assert looked_at == [20, 30, 45, 65, 95, 135, 200]
    assert rule.looks == 7


def test_a_look_spends_the_share_of_the_error_that_the_time_since_the_last_has_of_all():
    rule = Sequential(0.02)
    sides = two_sides(100)
    for before, time_passed in ((0, 0.25), (0.25, 0.4), (0.4, 1.7)):
        seen = rule.look(*sides, 5, time_passed)
        share = 0.02 * (min(time_passed, 1) - before)
        assert ends(seen.ratio.interval) == ratio_at(share, *sides, 5)
        assert seen.overhead.interval == shift_interval([in_windows(*sides, 5)], share)


def test_a_look_that_could_see_nothing_spends_nothing():
    rule = Sequential(0.001)
    assert rule.look(*two_sides(5), 1, 0.5) is None
    sides = two_sides(60)
    assert ends(rule.look(*sides, 1, 1.0).ratio.interval) == ratio_at(0.001, *sides, 1)


@pytest.mark.parametrize("fault", [0.0, -1.0, math.nan])
def test_times_that_are_not_positive_are_left_to_the_sampler(fault):
    candidate, reference = two_sides(50)
    reference[3] = fault
    assert Sequential().look(candidate, reference, 5, 1.0) is None
    assert Sequential().look(reference, candidate, 5, 1.0) is None


def test_a_ratio_of_constant_times_is_known_exactly():
    seen = Sequential().look(np.full(50, 300.0), np.full(50, 200.0), 5, 1.0)
    assert seen.ratio.value == pytest.approx(1.5)
    assert ends(seen.ratio.interval) == pytest.approx((1.5, 1.5))
    assert (seen.overhead.value, seen.overhead.interval) == (100, Interval(100, 100))


@pytest.mark.parametrize("error", [0.001, 1e-6])
@pytest.mark.parametrize(("pairs", "window"), [(20, 2), (29, 2), (35, 3), (49, 4), (50, 5), (1e6, 5), (math.inf, 5)])
def test_a_window_is_a_tenth_of_the_time_at_most(pairs, window, error):
    assert window_of(pairs, error) == window


@pytest.mark.parametrize(
    ("pairs", "error", "window"),
    [
        (19.9, 0.001, 2),
        (11, 0.001, 2),
        (10.9, 0.001, 5),
        (8, 0.001, 5),
        (7.9, 0.001, 1),
        (19.9, 8e-5, 2),
        (13, 8e-5, 2),
        (12.9, 8e-5, 5),
        (7.9, 8e-5, 1),
        (0, 8e-5, 1),
    ],
)
def test_a_window_of_few_pairs_is_as_large_as_an_interval_needs(pairs, error, window):
    assert window_of(pairs, error) == window


@pytest.mark.parametrize("error", [0.05, 0.001, 8e-5, 2e-5])
@pytest.mark.parametrize("slower", [1.0, 1.15])
def test_there_is_an_interval_wherever_a_window_was_chosen_for_one(error, slower):
    """Also where all pairs but the first take somewhat longer than it did. With single pairs there often was none."""
    smallest = min(fewest_pairs(error), 5 * (least_windows(5, error) - 1) + 3)
    alone = 0
    for time in np.arange(smallest, 20, 0.5):  # in pairs as long as the first
        window = window_of(time, error)
        taken = window * math.ceil((time - 1) / (slower * window) + 1e-9)
        sides = two_sides(taken)
        assert Sequential(error).look(*sides, window, 1.01) is not None, (time, window, taken)
        alone += Sequential(error).look(*sides, 1, 1.01) is None
    assert alone > 0 or error == 0.05
