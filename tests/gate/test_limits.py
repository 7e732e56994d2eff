"""When samples have decided a limit, and when a broken one counts."""

import numpy as np
import pytest

from perfsuite.gate.limits import Compared, Limits
from perfsuite.gate.verdict import Rerun, Verdict
from perfsuite.measure.metric import Estimate, Interval
from perfsuite.measure.timing.comparison import Comparison


def estimate(value, half=0.01):
    return Estimate(value, Interval(value - half, value + half))


def compared(ratio, overhead=0.0, **fields):
    times = np.full((20, 2), 100.0)
    sides = Comparison("new", "old", "ready", estimate(ratio), estimate(overhead), times * ratio, times, 1.0)
    return Compared(sides, **fields)


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


@pytest.mark.parametrize(
    ("budget", "broken"),
    [({"ratio": 1.1}, True), ({"ratio": 1.495}, False), ({"ratio": 2.0, "overhead_us": 4.0}, True), ({}, False)],
)
def test_a_budget_is_broken_where_the_whole_interval_is_above_one_of_its_limits(budget, broken):
    assert compared(1.5, 5.0).broken(Limits(budget, baseline=1.0)) == broken


@pytest.mark.parametrize(
    ("fields", "verdict", "rerun"),
    [
        ({}, Verdict.FAIL, None),
        ({"again": (estimate(1.4), estimate(0.0))}, Verdict.FAIL, Rerun(estimate(1.4))),
        ({"again": (estimate(1.1), estimate(0.0))}, Verdict.INCONCLUSIVE, Rerun(estimate(1.1))),
        ({"failure": "SIGABRT"}, Verdict.FAIL, Rerun(failure="SIGABRT")),
    ],
    ids=["no process", "confirmed", "not confirmed", "a process that gave nothing"],
)
def test_a_broken_budget_counts_unless_a_fresh_process_keeps_it(fields, verdict, rerun):
    made = compared(1.5, **fields)
    (gate,) = Limits({"ratio": 1.1}).judge("test", made.comparison.metrics("new/old"), made)
    assert (gate.verdict, gate.rerun) == (verdict, rerun)


@pytest.mark.parametrize(("high", "more"), [(1.2, True), (1.09, False)])
def test_more_seconds_settle_what_a_fresh_process_left_open(high, more):
    seen = Estimate(1.05, Interval(1.0, high))
    made = compared(1.5, again=(seen, estimate(0.0)))
    (gate,) = Limits({"ratio": 1.1}).judge("test", made.comparison.metrics("new/old"), made)
    assert ("--perf-seconds" in gate.to_settle) == more
