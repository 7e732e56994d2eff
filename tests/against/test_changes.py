"""What `perfsuite against` calls a change: counts and sizes exactly, times over processes of both sides."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.against import ENVIRONMENT, TEST, change, first_run, notes

from perfsuite.against.changes import (
    ERROR,
    decided,
    metrics_changed,
    outcomes_changed,
    smallest_change,
    stages_changed,
    times_changed,
    to_time,
    with_causes,
)
from perfsuite.against.notes import Fingerprint, Notes, Place
from perfsuite.against.runs import WINDOW, Run, Window
from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.verdict import Part, Verdict
from perfsuite.measure.metric import Interval


def entry(value, kind="count", unit="calls", **more):
    return Entry(value, unit, kind, "measured", ENVIRONMENT, **more)


def test_an_exact_ratio_that_a_test_recorded_is_known_as_well_as_its_interval_says():
    """As `perf.record(..., kind="ratio", interval=(0.96, 0.96))`: on the head it has its interval too."""
    was = entry(0.96, "ratio", "of all", better="higher", interval=Interval(0.96, 0.96))
    for value, verdict in ((0.96, Verdict.PASS), (0.5, Verdict.FAIL)):
        now = dataclasses.replace(was, value=value, interval=Interval(value, value))
        (change,) = metrics_changed(first_run({"tokens equal": was}), first_run({"tokens equal": now}))
        assert change.verdict == verdict


class TestStages:
    def test_a_compile_more_is_named_with_its_function(self):
        base = first_run(stages=[("step", "compile", 1, 0.1)])
        head = first_run(stages=[("step", "compile", 2, 0.1, "a.py:3"), ("add", "compile", 1, 0.1)])
        (made,) = stages_changed(base, head)
        assert (made.metric.name, made.baseline, made.metric.value, made.verdict) == ("compiles", 1, 3, Verdict.FAIL)
        assert {Part("add", 1), Part("step", 1, place="a.py:3")} <= set(made.grown)

    def test_the_same_counts_are_no_change_whatever_they_took(self):
        base, head = (first_run(stages=[("step", "lower", 4, seconds)]) for seconds in (0.1, 9.0))
        assert [change.verdict for change in stages_changed(base, head)] == [Verdict.PASS]


class TestMetrics:
    @pytest.mark.parametrize(
        ("old", "new", "verdict"),
        [
            (entry(10), entry(11), Verdict.FAIL),
            (entry(10), entry(10), Verdict.PASS),
            (entry(10), entry(9), Verdict.IMPROVED),
            (entry(1.0, "ratio", "x"), entry(1.2, "ratio", "x"), Verdict.INCONCLUSIVE),
            (entry(10), entry(10, unit="misses"), Verdict.NOT_COMPARABLE),
            (None, entry(3), Verdict.NEW),
            (entry(3), None, Verdict.MISSING),
        ],
    )
    def test_the_gates_rules_decide(self, old, new, verdict):
        base, head = (first_run({"f": each} if each else {"g": entry(1)}) for each in (old, new))
        made = {change.metric.name: change.verdict for change in metrics_changed(base, head)}
        assert made["f"] == verdict

    def test_times_and_information_are_not_held_against_each_other(self):
        base, head = (first_run({"t": entry(v, "time", "us"), "i": entry(v, "info", "s")}) for v in (1.0, 99.0))
        assert metrics_changed(base, head) == []

    def test_a_ratio_of_times_is_of_many_processes_to_judge(self):
        low, high = (entry(v, "ratio", "x", interval=Interval(v, v)) for v in (1.0, 2.0))
        base, head = (first_run({"f to return": each}) for each in (low, high))  # sampled, the notes say
        assert metrics_changed(base, head) == []

    def test_a_change_has_its_line_and_the_places_of_its_parts(self):
        base, head = first_run({"f": entry(1, detail={"a": 1})}), first_run({"f": entry(3, detail={"a": 1, "b": 2})})
        head.notes.places[TEST]["f"] = Place("test_a.py:7", {"b": "b at steps.py:2 in f"})
        (made,) = metrics_changed(base, head)
        assert made.where == "test_a.py:7"
        assert made.grown == (Part("b", 2, place="b at steps.py:2 in f"),)

    def test_metrics_of_the_full_size_belong_to_their_test(self):
        def of(value):
            key = f"{TEST} --perf-size=full"
            return dataclasses.replace(first_run(), baselines={"cpu": Baselines("cpu", {key: {"f": entry(value)}})})

        assert [change.verdict for change in metrics_changed(of(1), of(2))] == [Verdict.FAIL]

    def test_a_targets_metrics_are_named_after_it(self):
        def of(value):
            return dataclasses.replace(
                first_run(), baselines={"tpu-v5e": Baselines("tpu-v5e", {TEST: {"f": entry(value)}})}
            )

        assert [change.metric.title for change in metrics_changed(of(1), of(1))] == ["f @ tpu-v5e"]


class TestWhatIsTimed:
    """A test is left out only where it times the same calls, and nothing that is exact changed in it."""

    def runs(self, *ran):
        """The base and the head, of one test that times what runs these programs and host calls."""
        made = []
        for each in ran:
            run = first_run({"f": entry(1)})
            run.notes.places[TEST] = {
                "f": Place(),
                "f to ready": Place("test_a.py:3", sampled=True, runs=Fingerprint(*each)),
            }
            made.append(run)
        return made

    @pytest.mark.parametrize(
        ("base", "head", "is_timed"),
        [
            (("p", "h"), ("p", "h"), False),
            (("p", "h"), ("q", "h"), True),
            (("p", "h"), ("p", "i"), True),
            ((None, "h"), (None, "h"), True),
            (("p", None), ("p", None), True),
            (("p", "h"), ("p", None), True),
        ],
    )
    def test_by_its_programs_and_host_calls(self, base, head, is_timed):
        may, same = to_time([], *self.runs(base, head))
        assert (TEST in may, TEST in same) == (is_timed, not is_timed)

    def test_by_what_is_exact(self):
        base, head = self.runs(("p", "h"), ("p", "h"))
        head.baselines["cpu"] = Baselines("cpu", {TEST: {"f": entry(2)}})
        assert to_time(metrics_changed(base, head), base, head) == ({TEST}, set())

    def test_one_without_times_is_neither(self):
        base, head = self.runs((), ())
        for run in (base, head):
            del run.notes.places[TEST]["f to ready"]
        assert to_time([], base, head) == (set(), set())

    def test_a_time_that_is_worse_says_what_else_changed(self):
        base, head = self.runs(("p", "h"), ("p", "i"))
        head.baselines["cpu"] = Baselines("cpu", {TEST: {"f": entry(2)}})
        slower = [change(Verdict.FAIL, "f to ready")]
        (made,) = with_causes(slower, metrics_changed(base, head), base, head)
        assert (made.where, made.cause) == ("test_a.py:3", "the host calls, f changed in this test")
        (alone,) = with_causes(slower, [], *self.runs(("p", "h"), ("p", "h")))
        assert (alone.cause, bool(alone.unexplained)) == ("", True)


class TestTests:
    def test_one_that_fails_or_is_gone_is_worse_and_says_why(self):
        base = first_run(tests={"a": ("passed", ""), "b": ("passed", ""), "c": ("passed", ""), "d": ("failed", "x")})
        head = first_run(tests={"a": ("failed", "TypeError: no"), "c": ("passed", ""), "d": ("passed", "")})
        made = {each.test: (each.base, each.head, each.worse) for each in outcomes_changed(base, head)}
        assert made == {
            "a": ("passed", "failed", True),
            "b": ("passed", "not run", True),
            "d": ("failed", "passed", False),
        }
        assert outcomes_changed(base, head)[0].reason == "head: TypeError: no"

    def test_a_file_that_cannot_be_imported_is_listed(self):
        head = first_run(tests={"test_a.py": ("not collected", "ImportError: no eqx")})
        made = outcomes_changed(first_run(), head)
        assert [(each.test, each.worse) for each in made] == [(TEST, True), ("test_a.py", False)]
        assert made[1].reason == "head: ImportError: no eqx"

    def test_a_process_that_died_loses_every_test(self):
        dead = Run(Notes(), 1.0, "killed")
        assert [each.worse for each in outcomes_changed(first_run(), dead)] == [True]

    def test_one_that_only_the_head_passes_is_new_and_not_worse(self):
        base = first_run(tests={"b": ("failed", "AttributeError")})
        head = first_run(tests={"a": ("passed", ""), "b": ("passed", ""), "c": ("failed", "boom")})
        made = {each.test: (each.worse, each.only_at_head) for each in outcomes_changed(base, head)}
        new = (False, True)
        assert made == {"a": new, "b": new, "c": (False, False)}


def windows_of(times, number=2):
    """Windows whose processes have `times(side, place)` by name; the order in which they ran is drawn by lot."""
    order = np.random.default_rng(0)
    made, place = [], 0
    for _ in range(number):
        sides = ([], [])
        for side in order.permutation([0, 1] * WINDOW):
            sides[side].append(Run(notes(times(int(side), place)), 1.0))
            place += 1
        made.append(Window(tuple(sides[0]), tuple(sides[1])))
    return made


def noisy(rng, *, slower=1.0, of=1, noise=0.05, drift=0.0):
    """Times of `of` metrics with noise that is theirs, on a machine that gets slower by `drift` a process."""

    def times(side, place):
        pace = (1 + drift * place) * 100 * (slower if side else 1.0)
        return {f"f{i} to return": pace * math.exp(noise * rng.standard_normal()) for i in range(of)}

    return times


class TestTimes:
    def test_a_planted_slowdown_is_called_and_its_size_is_in_the_interval(self):
        (made,) = times_changed(windows_of(noisy(np.random.default_rng(1), slower=1.3)), {TEST})
        assert made.verdict == Verdict.FAIL
        assert made.ratio.interval.low < 1.3 < made.ratio.interval.high
        assert made.ratio.value == pytest.approx(1.3, rel=0.05)

    def test_a_slowdown_is_seen_through_a_machine_that_drifts(self):
        drifting = noisy(np.random.default_rng(3), slower=1.5, drift=0.02)
        (made,) = times_changed(windows_of(drifting, 4), {TEST})
        assert made.verdict == Verdict.FAIL

    @pytest.mark.parametrize("drift", [0.0, 0.1])
    def test_the_same_code_is_called_in_few_checks_at_most(self, drift):
        """Of 100 checks with 20 metrics each, as many call any as the error says, and not many more."""
        rng = np.random.default_rng(4)
        called = 0
        for _ in range(100):
            made = times_changed(windows_of(noisy(rng, of=20, drift=drift)), {TEST})
            called += any(change.verdict != Verdict.PASS for change in made)
        assert called <= 100 * ERROR + 3 * math.sqrt(100 * ERROR)

    def test_too_few_processes_leave_it_open(self):
        slow = noisy(np.random.default_rng(5), slower=10.0, of=9)
        assert {change.verdict for change in times_changed(windows_of(slow, 1), {TEST})} == {Verdict.INCONCLUSIVE}
        assert {change.verdict for change in times_changed(windows_of(slow, 2), {TEST})} == {Verdict.FAIL}

    def test_a_window_with_a_process_that_failed_does_not_count(self):
        whole = windows_of(noisy(np.random.default_rng(6), slower=1.3))
        broken = Window((Run(Notes(), 1.0, "killed"), *whole[0].base[1:]), whole[0].head)
        assert times_changed([broken, *whole[1:]], {TEST}) == times_changed(whole[1:], {TEST})
        assert times_changed([broken], {TEST}) == []

    def test_a_time_that_one_process_lacks_is_left_out(self):
        def times(side, place):
            return {"f to return": 1.0, **({"g to return": 1.0} if place != 3 else {})}

        assert [change.metric.name for change in times_changed(windows_of(times), {TEST})] == ["f to return"]

    @given(st.integers(1, 12), st.floats(0.2, 5.0), st.integers(0, 2**32 - 1))
    @settings(max_examples=25)
    def test_the_other_way_round_everything_is_mirrored(self, number, slower, seed):
        there = windows_of(noisy(np.random.default_rng(seed), slower=slower), number)
        back = [Window(window.head, window.base) for window in there]
        (a,), (b,) = (times_changed(each, {TEST}) for each in (there, back))
        assert a.ratio.value == pytest.approx(1 / b.ratio.value)
        assert {a.verdict, b.verdict} in ({Verdict.FAIL, Verdict.IMPROVED}, {Verdict.PASS}, {Verdict.INCONCLUSIVE})
        if a.verdict != Verdict.INCONCLUSIVE:
            assert a.ratio.interval.low == pytest.approx(1 / b.ratio.interval.high)

    def test_the_smallest_change_that_is_seen_follows_from_the_intervals(self):
        quiet, loud = (
            times_changed(windows_of(noisy(np.random.default_rng(8), noise=noise, of=5)), {TEST})
            for noise in (0.01, 0.3)
        )
        assert 0 < smallest_change(quiet) < 0.05 < smallest_change(loud)
        assert smallest_change([]) is None

    def test_times_are_decided_where_they_are_called_or_known_well(self):
        called, close, loose = (
            times_changed(windows_of(noisy(np.random.default_rng(8), slower=slower, noise=noise)), {TEST})
            for slower, noise in ((1.5, 0.05), (1.0, 0.005), (1.0, 0.3))
        )
        assert [change.verdict for change in (*called, *close, *loose)] == [Verdict.FAIL, *[Verdict.PASS] * 2]
        assert (decided(called), decided(close), decided(loose), decided([*called, *loose])) == (
            True,
            True,
            False,
            False,
        )

    def test_looking_often_calls_the_same_code_in_few_checks_at_most(self):
        """As above, ended at the first look at which any of 5 metrics is called."""
        rng, checks, called = np.random.default_rng(4), 100, 0
        for _ in range(checks):
            made = windows_of(noisy(rng, of=5), 6)
            stops = (times_changed(made[: 1 + look], {TEST}) for look in range(1, 6))
            called += any(change.verdict != Verdict.PASS for seen in stops for change in seen)
        assert called <= checks * ERROR + 3 * math.sqrt(checks * ERROR)

    def test_seconds_of_compiling_are_those_of_all_functions_where_they_are_not_few(self):
        def run(side):
            many = [(f"f{place}", "trace", 1, 0.04 * (1 + side)) for place in range(5)]
            return Run(notes(stages=[*many, ("g", "lower", 1, 0.001)]), 1.0)

        made = times_changed([Window((run(0),) * WINDOW, (run(1),) * WINDOW)] * 2, {TEST})
        assert [(change.metric.name, change.verdict) for change in made] == [("seconds to trace", Verdict.FAIL)]
        assert made[0].baseline == pytest.approx(0.2)
