"""`measure.stats.looks`: when a comparison looks at its times, and with which rule."""

import math

import numpy as np
import pytest

from perfsuite.measure.stats.looks import Looks, fewest_pairs, is_bounded
from perfsuite.measure.stats.rank_sum import shift, shift_interval
from perfsuite.measure.stats.sequence import sequence_interval


def times(pairs, seed=0):
    return np.random.default_rng(seed).uniform(100, 200, size=(2, pairs))


@pytest.mark.parametrize(
    ("pairs", "window", "sequential"),
    [(0, 1, False), (9, 1, False), (10, 2, False), (49, 2, False), (50, 5, False), (199, 5, False), (200, 5, True)],
)
def test_the_pairs_for_which_there_is_time_choose_window_and_rule(pairs, window, sequential):
    looks = Looks(pairs)
    assert (looks.window, looks.sequential) == (window, sequential)


def test_a_sequence_looks_after_120_pairs_and_then_after_every_15_percent_more():
    looks, looked_at = Looks(10_000), []
    for pairs in range(5, 500, 5):
        if looks.due(pairs, 0.1):
            looked_at.append(pairs)
            looks.look(*times(pairs))
    assert looked_at == [120, 140, 165, 190, 220, 255, 295, 340, 395, 455]
    assert looks.due(500, 1.01), "and when time is up"


def test_a_rank_sum_looks_after_a_quarter_of_the_time_and_at_the_end():
    looks = Looks(40)
    assert not looks.due(8, 0.2)
    assert looks.due(12, 0.25)
    looks.look(*times(12))
    assert not looks.due(30, 0.9)
    assert looks.due(40, 1.01)


def test_a_look_of_a_sequence_is_that_of_the_logarithms_and_of_the_times():
    candidate, reference = times(200)
    look = Looks(200).look(candidate, reference)
    both = candidate.reshape(-1, 5), reference.reshape(-1, 5)
    logs = np.log(both[0]), np.log(both[1])
    expected = sequence_interval(logs, 0.001)
    assert look.ratio.value == math.exp(shift([logs]))
    assert (look.ratio.interval.low, look.ratio.interval.high) == (math.exp(expected.low), math.exp(expected.high))
    assert (look.overhead.value, look.overhead.interval) == (shift([both]), sequence_interval(both, 0.001))


def test_a_sequence_whose_time_is_up_too_early_is_judged_by_the_rank_sum():
    candidate, reference = times(50)
    look = Looks(200).look(candidate, reference)
    assert look.overhead.interval == shift_interval([(candidate.reshape(-1, 5), reference.reshape(-1, 5))], 0.001)
    assert is_bounded(look.ratio)


@pytest.mark.parametrize("error", [0.05, 0.001, 1e-5])
def test_the_fewest_pairs_for_an_interval_are_known_before(error):
    least = fewest_pairs(error)
    assert is_bounded(Looks(least, error).look(*times(least)).ratio)
    assert not is_bounded(Looks(least, error).look(*times(least - 2)).ratio)
