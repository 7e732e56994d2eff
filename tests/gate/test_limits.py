"""When samples have decided a limit, and when a broken one counts, under the load of other processes and without."""

import dataclasses

import numpy as np
import pytest

from perfsuite.gate import limits as module
from perfsuite.gate.limits import Compared, Limits
from perfsuite.gate.verdict import Gate
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.timing.comparison import Comparison
from perfsuite.measure.timing.load import Usage

SINCE = Usage(1.0, 2.0, 3.0, 4.0)


def estimate(value, half=0.01):
    return Estimate(value, Interval(value - half, value + half))


def comparison(ratio, **fields):
    times = np.full((20, 2), 100.0)
    return Comparison("new", "old", "ready", ratio, estimate(0.0), times * ratio.value, times, 1.0, **fields)


@pytest.fixture
def load(monkeypatch):
    """Sets the factor by which other processes slow a candidate that takes all of the time, from `SINCE` on."""

    def set_(factor):
        monkeypatch.setattr(module, "slowed", lambda since, part: 1 + (factor - 1) * part if since is SINCE else 1.0)
        monkeypatch.setattr(module, "usage", lambda: SINCE)

    set_(1.0)
    return set_


@pytest.mark.parametrize(
    ("ratio", "settled"),
    [(1.08, True), (1.095, False), (1.115, True), (1.105, False)],
    ids=["kept", "open at its upper end", "broken", "open at its lower end"],
)
@pytest.mark.parametrize("limits", [Limits({"ratio": 1.1}), Limits(baseline=1.1)], ids=["budget", "baseline"])
def test_a_limit_is_settled_when_the_whole_interval_is_on_one_side(load, limits, ratio, settled):
    assert limits.settled(estimate(ratio), estimate(0.0), SINCE) == settled
    assert limits.settled_from_now()(estimate(ratio), estimate(0.0)) == settled


def test_without_limits_nothing_says_when_to_stop():
    assert Limits().settled_from_now() is None


def test_a_baseline_is_broken_only_by_more_than_the_load_since_then_explains(load):
    limits, ratio = Limits(baseline=1.1), estimate(1.5)
    load(2.0)  # the candidate takes 60 % of the time, so the load explains a factor of 1.6: up to 1.76
    assert not limits.settled(ratio, estimate(0.0), SINCE)
    assert limits.settled(ratio, estimate(0.0))  # of another time nothing is known
    assert not limits.settled_from_now()(ratio, estimate(0.0))
    load(1.5)  # 1.3: up to 1.43
    assert limits.settled(ratio, estimate(0.0), SINCE)
    assert limits.settled_from_now()(ratio, estimate(0.0))


def test_a_load_explains_no_broken_budget_and_opens_no_kept_baseline(load):
    load(10.0)
    assert Limits({"ratio": 1.1}).settled(estimate(1.5), estimate(0.0), SINCE)
    assert Limits({"ratio": 1.2}, baseline=1.1).settled(estimate(1.5), estimate(0.0), SINCE)
    assert Limits(baseline=1.1).settled(estimate(1.0), estimate(0.0), SINCE)


@pytest.mark.parametrize(("slowed", "broken"), [(1.0, True), (1.3, True), (1.4, False)])
def test_a_baseline_counts_as_broken_where_the_load_does_not_explain_it(slowed, broken):
    compared = Compared(comparison(estimate(1.5), slowed=slowed))
    limits = Limits({"ratio": 1.1}, baseline=1.1)
    assert compared.broken(limits) == Limits({"ratio": 1.1}, 1.1 if broken else None)


def test_a_baseline_of_another_processor_is_broken_only_by_more_than_processors_differ():
    limits = Limits({"ratio": 1.1}, baseline=1.1, slack=2.0)
    assert Compared(comparison(estimate(2.1))).broken(limits) == Limits({"ratio": 1.1})
    assert Compared(comparison(estimate(2.3))).broken(limits) == Limits({"ratio": 1.1}, 1.1)
    assert limits.settled(estimate(2.1), estimate(0.0))  # more samples would not decide it


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
