"""`measure.timing.builds`: two functions that make calls, compared over several builds."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from support.fakes import FakeBlocks, takes

from perfsuite.measure.call import call
from perfsuite.measure.timing import comparison
from perfsuite.measure.timing.builds import LEAST_BUILDS, MOST_BUILDS, builds_in, compare_builds, over_builds


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    return FakeBlocks().install(monkeypatch, comparison)


def makes(*times_us, made=None, name="step"):
    """A function that makes calls, each of which takes the next of these times; `made` collects the names."""
    coming = iter(times_us * MOST_BUILDS)

    def make():
        if made is not None:
            made.append(name)
        return call(takes(next(coming), name=name))

    return make


def test_the_interval_is_students_over_the_logs_of_the_builds():
    times = [100, 103, 99, 101, 105, 98]
    compared = compare_builds(makes(*times), makes(100), seconds=1, error=0.01)
    logs = np.log(np.array(times) / 100)
    low, high = np.exp(stats.t.interval(0.99, 5, logs.mean(), stats.sem(logs)))
    assert compared.ratio.value == pytest.approx(math.exp(logs.mean()))
    assert (compared.ratio.interval.low, compared.ratio.interval.high) == pytest.approx((low, high))
    assert compared.overhead_us.value == pytest.approx(1)
    assert compared.overhead_us.interval.half_width == pytest.approx(
        stats.t.ppf(0.995, 5) * stats.sem(np.array(times) - 100)
    )
    assert compared.builds == 6


def test_what_builds_differ_by_widens_it_and_more_samples_of_a_build_do_not_hide_it():
    steady = compare_builds(makes(105), makes(100), seconds=3)
    moving = compare_builds(makes(103, 107), makes(100), seconds=3)
    assert steady.ratio.interval.half_width < 1e-6
    assert moving.ratio.interval.low < 1.03
    assert moving.ratio.interval.high > 1.07


def test_the_interval_misses_the_truth_as_seldom_as_it_says():
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(4000):
        interval = over_builds(rng.normal(0, 0.01, size=6), 0.05).interval
        missed += not interval.low <= 0 <= interval.high
    assert 0.035 < missed / 4000 < 0.065


@pytest.mark.parametrize(("loaded", "slowed"), [(0, 1), (1, 1), (2, 3), (6, 3)])
def test_a_load_counts_where_it_was_there_for_a_quarter_of_the_builds(monkeypatch, loaded, slowed):
    factors = iter([3.0] * loaded + [1.0] * (6 - loaded))
    load = lambda: SimpleNamespace(look=lambda: None, slowed=lambda part: next(factors))
    monkeypatch.setattr(comparison, "Load", load)
    assert compare_builds(makes(100), makes(100), seconds=1).slowed == slowed


def test_each_side_is_made_first_in_half_of_the_builds():
    made = []
    sides = makes(100, made=made, name="candidate"), makes(100, made=made, name="reference")
    compare_builds(*sides, seconds=8 * 0.6, seed=3)
    firsts = made[::2]
    assert (firsts.count("candidate"), firsts.count("reference")) == (4, 4)
    assert firsts != sorted(firsts), "in random order"


def test_a_build_that_there_is_already_is_not_made_again():
    made = []
    first = call(takes(100, name="candidate")), call(takes(100, name="reference"))
    sides = makes(100, made=made, name="candidate"), makes(100, made=made, name="reference")
    compare_builds(*sides, first=first, seconds=1, seed=3)
    assert len(made) == 2 * 5
    assert (made[::2].count("candidate"), made[::2].count("reference")) == (2, 3)


def test_samples_and_seconds_are_those_of_all_builds(blocks):
    compared = compare_builds(makes(100, 300), makes(200), seconds=1)
    assert compared.pairs == len(compared.reference_us) >= 6 * 3
    assert {*compared.candidate_us[:, 1]} == {100, 300}
    assert compared.seconds <= blocks.seconds
    assert (compared.candidate, compared.reference) == ("step", "step")


def test_more_seconds_are_more_builds():
    assert [builds_in(seconds) for seconds in (0, 0.3, 5, 6, 60)] == [LEAST_BUILDS, 6, 8, 10, MOST_BUILDS]


def test_a_function_that_makes_no_call_is_named():
    def make_step():
        return 3

    with pytest.raises(TypeError, match=r"perf\.compare: make_step\(\) must return call\(fn, \*args\), not int"):
        compare_builds(make_step, makes(100))
