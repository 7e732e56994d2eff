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
    ("ratio", "settled"),
    [(1.08, True), (1.095, False), (1.115, True), (1.105, False)],
    ids=["kept", "open at its upper end", "broken", "open at its lower end"],
)
@pytest.mark.parametrize("limits", [Limits({"ratio": 1.1}), Limits(baseline=1.1)], ids=["budget", "baseline"])
def test_a_limit_is_settled_when_the_whole_interval_is_on_one_side(limits, ratio, settled):
    assert limits.end(estimate(ratio), estimate(0.0), 1.0) == settled


def test_without_limits_nothing_says_when_to_stop():
    assert Limits().end is None


@pytest.mark.parametrize(("slowed", "settled"), [(1.0, True), (1.3, True), (1.36, False), (2.0, False)])
def test_a_baseline_is_broken_only_by_more_than_the_load_explains(slowed, settled):
    assert Limits(baseline=1.1).settled(estimate(1.5), estimate(0.0), slowed) == settled


def test_a_load_explains_no_broken_budget_and_opens_no_kept_baseline():
    assert Limits({"ratio": 1.1}).settled(estimate(1.5), estimate(0.0), 10.0)
    assert Limits({"ratio": 1.2}, baseline=1.1).settled(estimate(1.5), estimate(0.0), 10.0)
    assert Limits(baseline=1.1).settled(estimate(1.0), estimate(0.0), 10.0)


@pytest.mark.parametrize(("slowed", "broken"), [(1.0, True), (1.3, True), (1.4, False)])
def test_a_baseline_counts_as_broken_where_the_load_does_not_explain_it(slowed, broken):
    compared = Compared(comparison(estimate(1.5), slowed=slowed))
    limits = Limits({"ratio": 1.1}, baseline=1.1)
    assert compared.broken(limits) == Limits({"ratio": 1.1}, 1.1 if broken else None)


def test_a_baseline_of_another_processor_is_broken_only_by_more_than_processors_differ():
    limits = Limits({"ratio": 1.1}, baseline=1.1, slack=2.0)
    assert Compared(comparison(estimate(2.1))).broken(limits) == Limits({"ratio": 1.1})
    assert Compared(comparison(estimate(2.3))).broken(limits) == Limits({"ratio": 1.1}, 1.1)
    assert limits.settled(estimate(2.1), estimate(0.0), 1.0)  # more samples would not decide it


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
