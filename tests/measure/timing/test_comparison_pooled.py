"""`measure.timing.comparison.pooled`: comparisons that were made in several processes, as one."""

import dataclasses
import math

import numpy as np
import pytest

from perfsuite.measure.estimate import Estimate
from perfsuite.measure.measurement import Interval
from perfsuite.measure.stats.error_rates import DECIDING_ERROR, error_of_look
from perfsuite.measure.stats.rank_sum import shift_interval
from perfsuite.measure.timing.comparison import Comparison, pooled

UNKNOWN = Estimate(1.0, Interval(0.0, math.inf))


def part(ratio, *, pairs=200, noise=0.02, seed=0, window=5, **changes):
    """A comparison in one process, whose own ratio is `ratio`."""
    rng = np.random.default_rng(seed)
    to_ready = 1000 * np.exp(noise * rng.normal(size=(2, pairs))) * [[ratio], [1]]
    columns = [np.column_stack([side / 7, side]) for side in to_ready]
    made = Comparison("a", "b", "ready", UNKNOWN, UNKNOWN, *columns, looks=3, seconds=2.0, window=window)
    return dataclasses.replace(made, **changes)


def logs(made):
    return tuple(np.log(side[:, 1]).reshape(-1, made.window) for side in (made.candidate_us, made.reference_us))


def test_the_interval_is_over_all_pairs_each_in_its_own_window_and_process():
    parts = [part(1.02, seed=seed) for seed in range(3)]
    made = pooled(parts, 0.01)
    expected = shift_interval([logs(each) for each in parts], error_of_look(2, 0.01))
    assert made.ratio.interval.low == pytest.approx(math.exp(expected.low))
    assert made.ratio.interval.high == pytest.approx(math.exp(expected.high))
    assert (made.pairs, made.processes, made.looks, made.seconds, made.error) == (600, 3, 9, 6.0, 0.01)
    np.testing.assert_array_equal(made.candidate_us[200:400], parts[1].candidate_us)
    assert made.unsettled is None


def test_more_processes_know_more():
    widths = [pooled([part(1.02, seed=seed) for seed in range(n)]).ratio.interval.half_width for n in (2, 4, 8)]
    assert widths == sorted(widths, reverse=True)
    assert widths[2] < 0.7 * widths[0]


def test_the_pace_of_a_process_does_not_count():
    slow = part(1.02, seed=1)
    slow = dataclasses.replace(slow, candidate_us=3 * slow.candidate_us, reference_us=3 * slow.reference_us)
    both = pooled([part(1.02), slow]).ratio, pooled([part(1.02), part(1.02, seed=1)]).ratio
    assert both[0].value == pytest.approx(both[1].value)
    assert both[0].interval.high == pytest.approx(both[1].interval.high)


@pytest.mark.parametrize("limit", [1.01, 1.03, 1.045])
def test_processes_that_contradict_each_other_decide_neither_for_nor_against_a_limit_between_them(limit):
    made = pooled([part(1.0), part(1.002, seed=1), part(1.05, seed=2)])
    assert made.ratio.interval.low < limit < made.ratio.interval.high
    assert made.overhead_us.interval.low < 1000 * (limit - 1) < made.overhead_us.interval.high
    assert "the processes contradict each other: the ratios of each are " in made.unsettled


def test_processes_that_agree_decide():
    made = pooled([part(1.03, seed=seed) for seed in range(3)])
    assert 1.02 < made.ratio.interval.low < 1.03 < made.ratio.interval.high < 1.04


def test_a_limit_that_differs_between_processes_by_chance_of_layout_raises_few_alarms():
    """Each process has a ratio of its own, 0.3 % around 1, and the limit is 1.005."""
    rng = np.random.default_rng(3)
    alarms = sum(
        pooled(
            [part(math.exp(0.003 * rng.normal()), seed=3 * gate + n, noise=0.005) for n in range(3)]
        ).ratio.interval.low
        > 1.005
        for gate in range(100)
    )
    assert alarms == 0


def test_one_part_is_what_it_was():
    only = part(1.0)
    assert pooled([only]) is only


def test_the_error_is_by_default_that_of_the_first_part():
    parts = [part(1.0, error=0.0002), part(1.0, seed=1)]
    assert pooled(parts).error == 0.0002
    assert pooled(parts).ratio == pooled(parts, 0.0002).ratio != pooled(parts, DECIDING_ERROR).ratio


def test_parts_of_other_windows_are_pooled():
    made = pooled([part(1.02, pairs=20, window=1), part(1.02, pairs=200, seed=1)])
    assert made.pairs == 220
    assert made.window == 1
    assert 1 < made.ratio.interval.low < 1.02 < made.ratio.interval.high < 1.04


def test_parts_too_short_for_an_interval_may_have_one_together():
    few = [part(1.02, pairs=5, window=1, seed=seed) for seed in range(8)]
    assert not pooled(few[:2]).bounded
    assert pooled(few).bounded


def test_a_part_whose_ratio_moved_says_so():
    moving = part(1.0, pairs=400)
    slower = np.linspace(1, 1.1, 400)[:, None]
    made = pooled([part(1.05, seed=1), dataclasses.replace(moving, candidate_us=moving.candidate_us * slower)])
    assert "the ratio drifted from" in made.unsettled


def test_comparisons_of_other_calls_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        pooled([])
    for changes in ({"candidate": "c"}, {"reference": "c"}, {"until": "return"}):
        with pytest.raises(ValueError, match=r"of the same two calls, got a/b to ready, |to return"):
            pooled([part(1.0), part(1.0, **changes)])
