"""When samples have decided a limit, and when a broken one counts, under the load of other processes and without."""

import dataclasses

import numpy as np
import pytest

from perfsuite.gate.limits import Compared, Limits
from perfsuite.gate.verdict import Gate
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.timing.comparison import Comparison


def estimate(value, half=0.01):
    return Estimate(value, Interval(value - half, value + half))


def comparison(ratio, **fields):
    times = np.full((20, 2), 100.0)
    return Comparison("new", "old", "ready", ratio, estimate(0.0), times * ratio.value, times, 1.0, **fields)


@pytest.mark.parametrize(
    ("ratio", "of_budget", "of_baseline"),
    [(1.08, True, True), (1.095, False, False), (1.115, True, False), (1.105, False, False)],
    ids=["kept", "open at its upper end", "broken", "open at its lower end"],
)
def test_a_kept_limit_ends_a_comparison_and_a_broken_budget_and_no_broken_baseline(ratio, of_budget, of_baseline):
    """A state of the machine that lasts a second must not fail the code of another day."""
    sampled = estimate(ratio), estimate(0.0)
    assert Limits({"ratio": 1.1}).end(*sampled) == of_budget
    assert Limits(baseline=1.1).end(*sampled) == of_baseline
    assert Limits({"ratio": 1.1}, baseline=5.0).end(*sampled) == of_budget
    assert Limits({"ratio": 5.0}, baseline=1.1).end(*sampled) == of_baseline


def test_without_limits_nothing_says_when_to_stop():
    assert Limits().end is None


@pytest.mark.parametrize(("slowed", "broken"), [(1.0, True), (1.3, True), (1.4, False)])
def test_a_baseline_counts_as_broken_where_the_load_does_not_explain_it(slowed, broken):
    compared = Compared(comparison(estimate(1.5), slowed=slowed))
    limits = Limits({"ratio": 1.1}, baseline=1.1)
    assert compared.broken(limits) == Limits({"ratio": 1.1}, 1.1 if broken else None)


def test_a_baseline_of_another_processor_is_broken_only_by_more_than_processors_differ():
    limits = Limits({"ratio": 1.1}, baseline=1.1, slack=2.0)
    assert Compared(comparison(estimate(2.1))).broken(limits) == Limits({"ratio": 1.1})
    assert Compared(comparison(estimate(2.3))).broken(limits) == Limits({"ratio": 1.1}, 1.1)
    of_baseline = Limits(baseline=1.1, slack=2.0)
    assert [of_baseline.settled(estimate(ratio), estimate(0.0)) for ratio in (2.1, 2.3)] == [True, False]


GATE = Gate("test_step", Metric("new/old ratio to ready", 1.5, "x", "ratio"), "fail", "baseline", limit=1.1)


def test_the_load_of_a_fresh_process_counts_as_that_of_the_first():
    quiet = Compared(comparison(estimate(1.5)))
    confirmed = quiet.with_again(estimate(1.5), estimate(0.0), slowed=1.0)
    assert confirmed.broken(Limits(baseline=1.1)) == Limits(baseline=1.1)
    assert confirmed.evidence("ratio").confirmed(GATE).verdict == "fail"

    beside_a_load = quiet.with_again(estimate(1.5), estimate(0.0), slowed=1.4)
    assert not beside_a_load.broken(Limits(baseline=1.1))
    gate = beside_a_load.evidence("ratio").confirmed(GATE)
    assert gate.verdict == "inconclusive"
    assert "slowed it by a factor of 1.4" in gate.to_settle
    budget = dataclasses.replace(GATE, source="budget")
    assert beside_a_load.evidence("ratio").confirmed(budget).verdict == "fail"
    # A later process that is quiet does not make up for it.
    later = beside_a_load.with_again(estimate(1.5), estimate(0.0), slowed=1.0)
    assert not later.broken(Limits(baseline=1.1))


def test_a_limit_that_one_process_keeps_is_not_broken():
    compared = Compared(comparison(estimate(1.5))).with_again(estimate(1.0), estimate(0.0), slowed=1.0)
    assert not compared.broken(Limits({"ratio": 1.1}, baseline=1.1))
    gate = compared.evidence("ratio").confirmed(GATE)
    assert gate.verdict == "inconclusive"
    assert "a quieter machine" not in gate.to_settle
