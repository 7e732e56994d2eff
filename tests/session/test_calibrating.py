"""`session.calibrating`: how a calibration shares its time out among the workloads."""

import contextlib
from types import SimpleNamespace

import pytest

from perfsuite.gate.limits import Limits
from perfsuite.measure.metric import Interval
from perfsuite.measure.timing.calibrating import LADDER, Builds, Trial
from perfsuite.processes.rerun import ProcessFailed
from perfsuite.session import calibrating
from perfsuite.session.calibrating import Calibrating
from perfsuite.session.mode import Pair


def test_every_slowdown_of_the_ladder_is_planted():
    assert sorted(calibrating._ORDER) == sorted(LADDER)


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Calibrations on a clock of their own, whose gates take as long as they may, and a fresh process 3 seconds more.

    Where `fails` says so, the second fresh process of the first test fails.
    """
    clock = SimpleNamespace(now=0.0, neighbours=0)
    monkeypatch.setattr(calibrating.time, "monotonic", lambda: clock.now)

    class Workload:
        def __init__(self, call, until):
            self.given_back = 0

        def trial(self, planted=0.0, *, seconds):
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
        def compare(self, *, seconds=None):
            clock.now += self.seconds if seconds is None else 0  # a glance
            return SimpleNamespace(ratio=SimpleNamespace(value=1.0))

    def again(self, pair):
        assert not clock.neighbours, "builds are compared on the quiet machine"
        clock.now += pair.seconds + 3
        if planned.fails and pair.item.nodeid == "test_0" and len(self.ratios["test_0", "a/b to ready"]) == 2:
            raise ProcessFailed("it crashed")
        return 1.01

    monkeypatch.setattr(Calibrating, "_in_a_fresh_process", again)
    session = SimpleNamespace(options=options, device="cpu", environment=None, test_key=lambda test: test)

    def planned(*workloads, minutes=10.0, seconds=5.0, fails=False, make=None):
        planned.fails = fails
        plan = Calibrating(session, minutes)
        plan.tests = len(workloads)
        for place, count in enumerate(workloads):
            plan.begin_test()
            for number in range(count):
                name = f"a/b #{number + 1}" if number else "a/b"
                pair = Compared(SimpleNamespace(nodeid=f"test_{place}"), name, None, None, "ready", seconds, make)
                plan.compare(pair, Limits())
        return plan, clock.now

    return planned


def gates(planned, busy):
    return {key: len(trials) for key, trials in planned.trials[busy].items()}


def test_every_workload_gets_the_same_share_half_of_it_beside_busy_processes(planned):
    plan, seconds = planned(1, 1, 1, 1)
    assert seconds == pytest.approx(600, abs=20)
    for busy in (False, True):
        assert set(gates(plan, busy).values()) <= {9, 10, 11}
        trials = [trial.planted for of_one in plan.trials[busy].values() for trial in of_one]
        assert trials.count(0.0) == pytest.approx(len(trials) / 2, abs=1)
        assert {trials.count(size) for size in LADDER} <= {2, 3, 4}


def test_a_third_of_the_time_is_for_fresh_processes_whose_ratios_scatter(planned):
    plan, seconds = planned(1, 1, 1, 1)
    assert seconds == pytest.approx(600, abs=20)
    for ratios in plan.ratios.values():
        assert ratios == [1.0, *[1.01] * (len(ratios) - 1)]
        assert 5 <= len(ratios) <= 8, "this process and as many as 50 seconds have room for"
    results = plan.results()
    assert [bool(each.builds) for each in results] == [True, False] * 4, "a workload has them once, not once a machine"
    assert results[0].builds == Builds.of(plan.ratios["test_0", "a/b to ready"])


def test_a_workload_that_fresh_processes_cannot_make_keeps_what_it_has(planned):
    plan, _ = planned(1, 1, fails=True)
    assert plan.not_again == {("test_0", "a/b to ready"): "it crashed"}
    assert plan.results()[0].builds.count == 2
    assert len(plan.ratios["test_1", "a/b to ready"]) > 2


def test_functions_that_make_the_calls_are_no_single_builds(planned):
    plan, _ = planned(1, make=(None, None))
    assert plan.ratios == {}
    assert gates(plan, busy=False)


def test_a_short_calibration_starts_no_process(planned):
    plan, _ = planned(1, minutes=0.1, seconds=0.5)
    assert plan.ratios == {}
    assert {each.builds for each in plan.results()} == {None}


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
