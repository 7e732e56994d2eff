"""`session.calibrating`: how a calibration shares its time out among the workloads."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest

from perfsuite.gate.limits import Limits
from perfsuite.measure.measurement import Interval
from perfsuite.measure.timing.calibrating import LADDER, Trial
from perfsuite.session import calibrating
from perfsuite.session.calibrating import Calibrating
from perfsuite.session.mode import Pair


def test_every_slowdown_of_the_ladder_is_planted():
    assert sorted(calibrating._ORDER) == sorted(LADDER)


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Calibrations on a clock of their own, whose gates take as long as they may."""
    clock = SimpleNamespace(now=0.0, neighbours=0)
    monkeypatch.setattr(calibrating.time, "monotonic", lambda: clock.now)

    made, given = itertools.count(), []

    class Workload:
        def __init__(self, call, until):
            self.given_back = 0
            self.number = next(made)

        def trial(self, planted=0.0, *, seconds, error):
            given.append((self.number, error))
            clock.now += seconds
            return Trial(planted, Interval(0.99, 1.01), (0.01, 0.01), 100, seconds)

        def give_back(self):
            self.given_back += 1

    @contextlib.contextmanager
    def busy(count):
        clock.neighbours += 1
        yield
        clock.neighbours -= 1

    monkeypatch.setattr(calibrating, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(calibrating, "Workload", Workload)
    monkeypatch.setattr(calibrating, "busy_neighbours", busy)
    options = SimpleNamespace(baselines=tmp_path)

    class Compared(Pair):
        def compare(self, **arguments):
            return None

    shares = itertools.chain([0.0005], itertools.repeat(0.00025))
    session = SimpleNamespace(options=options, device="cpu", environment=None, test_key=lambda test: test)
    session.error_of_next_gate = lambda item: next(shares)

    def run(*workloads, minutes=10.0, seconds=5.0):
        planned = Calibrating(session, minutes)
        planned.tests = len(workloads)
        for place, count in enumerate(workloads):
            planned.begin_test(None)
            for number in range(count):
                name = f"a/b #{number + 1}" if number else "a/b"
                pair = Compared(SimpleNamespace(nodeid=f"test_{place}"), name, None, None, "ready", seconds)
                planned.compare(pair, Limits())
        planned.given = given
        return planned, clock.now

    return run


def gates(planned, busy):
    return {key: len(trials) for key, trials in planned.trials[busy].items()}


def test_every_workload_gets_the_same_share_half_of_it_beside_busy_processes(planned):
    plan, seconds = planned(1, 1, 1, 1)
    assert seconds == pytest.approx(600, abs=20)
    for busy in (False, True):
        assert set(gates(plan, busy).values()) <= {14, 15, 16}
        trials = [trial.planted for of_one in plan.trials[busy].values() for trial in of_one]
        assert trials.count(0.0) == pytest.approx(len(trials) / 2, abs=1)
        assert {trials.count(size) for size in LADDER} <= {4, 5, 6}


def test_tests_without_a_workload_leave_their_share_to_the_others(planned):
    plan, seconds = planned(0, 0, 1, 0)
    # It was not known that the last would have none.
    assert seconds == pytest.approx(300, abs=10)
    plan, seconds = planned(0, 0, 0, 1)
    assert len(plan.trials[False]) == 1


def test_several_workloads_of_a_test_have_names_and_shares_of_their_own(planned):
    plan, _ = planned(2, 2, 2)
    assert [key[1] for key in plan.trials[False]][:2] == ["a/b to ready", "a/b #2 to ready"]
    assert len(plan.trials[False]) == 6


def test_every_gate_errs_as_seldom_as_the_one_that_it_stands_for(planned):
    """A session shares its error out over its gates, so one of many has wider intervals than one that is alone."""
    plan, _ = planned(2, 1)
    assert plan.promised == 0.0005
    assert plan.least_promised == 0.00025
    assert {error for _, error in plan.given} == {0.0005, 0.00025}
    assert [each.errs_once_in for each in plan.results() if not each.busy] == [2000, 4000, 4000]
    assert {key for key, error in plan.given if error == 0.0005} == {0}


def test_more_workloads_than_there_is_time_for_get_a_gate_each_and_then_none(planned):
    plan, seconds = planned(*[1] * 100, minutes=5)
    assert seconds <= 1.25 * 300 + 10
    measured = {*plan.trials[False], *plan.trials[True]}
    assert len(measured) + plan.unreached == 100
    assert plan.unreached > 0
    totals = [sum(gates(plan, busy).values()) for busy in (False, True)]
    assert abs(totals[0] - totals[1]) <= 1, "both conditions get as many gates, over all workloads"
    planted = [trial.planted for of_all in plan.trials.values() for of_one in of_all.values() for trial in of_one]
    assert planted.count(0.0) == pytest.approx(len(planted) / 2, abs=2)
