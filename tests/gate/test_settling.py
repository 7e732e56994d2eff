"""`gate.limits.what_settles`: what would settle a comparison that is still open."""

import math

import numpy as np
from support.fakes import FakeBlocks, takes

from perfsuite.gate.limits import what_settles
from perfsuite.measure.call import call
from perfsuite.measure.metric import Estimate, Interval
from perfsuite.measure.timing import comparison
from perfsuite.measure.timing.comparison import Comparison, compare_calls


def compared_at(value, half_width, *, seconds=5.0, pairs=1000, us=1000.0):
    ratio = Estimate(value, Interval(value * math.exp(-half_width), value * math.exp(half_width)))
    overhead = Estimate((value - 1) * us, Interval((value - 1 - half_width) * us, (value - 1 + half_width) * us))
    times = np.full((pairs, 2), us)
    return Comparison("a", "b", "ready", ratio, overhead, times * value, times, seconds=seconds)


def test_what_would_settle_it_is_the_time_in_which_the_interval_gets_narrow_enough():
    # Half as wide as far from the limit: 1.35 * 2 times narrower takes 7.3 times as many pairs.
    text = what_settles(compared_at(1.04, 0.02), 1.04 * math.exp(0.01), "ratio")
    assert text == "about 32 more seconds of sampling (--perf-seconds=37)"
    assert what_settles(compared_at(1.04, 0.02), 1.04 * math.exp(-0.01), "ratio") == text, "to either side"


def test_what_would_settle_the_overhead_is_counted_in_microseconds():
    # 20 us wide to each side, 10 us from the limit.
    assert (
        what_settles(compared_at(1.04, 0.02), 50, "overhead_us")
        == "about 32 more seconds of sampling (--perf-seconds=37)"
    )


def test_a_limit_as_near_as_two_sides_of_the_same_code_may_lie_is_hopeless():
    assert "within 0.1% of the limit, where no amount of sampling" in what_settles(
        compared_at(1.05, 0.002), 1.0505, "ratio"
    )


def test_what_would_take_too_long_is_not_recommended():
    assert what_settles(compared_at(1.0, 0.3), 1.005, "ratio").startswith(
        "more than 10 minutes of sampling: move the limit"
    )


def test_pairs_too_few_for_an_interval_ask_for_the_time_of_enough(monkeypatch):
    FakeBlocks().install(monkeypatch, comparison)
    sides = call(takes(2e6, name="candidate")), call(takes(1e6, name="reference"))
    compared = compare_calls(*sides, seconds=0)
    assert what_settles(compared, 1.5, "ratio").startswith(
        "3 pairs are too few for an interval: allow more time (--perf-seconds="
    )
