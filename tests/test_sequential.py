"""`measure.sequential`: when to look, what a look may spend, and what it sees."""

import math

import numpy as np
import pytest

from perfsuite.measure.measurement import Interval
from perfsuite.measure.rank_sum import shift_interval
from perfsuite.measure.sequential import Sequential, in_windows, window_of


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


@pytest.mark.parametrize(
    ("pairs", "window"), [(0, 1), (3, 1), (19, 1), (20, 2), (35, 3), (50, 5), (1e6, 5), (math.inf, 5)]
)
def test_a_window_is_a_tenth_of_the_time_at_most(pairs, window):
    assert window_of(pairs) == window
