"""What `perfsuite against` calls a change of a time: over processes of both sides."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.against import TEST, notes

from perfsuite.against.changes import ERROR
from perfsuite.against.notes import Notes
from perfsuite.against.runs import WINDOW, Run, Window
from perfsuite.against.times import decided, smallest_seen, times_changed


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
        assert (made.called, made.processes) == ("worse", 10)
        assert made.interval.low < 1.3 < made.interval.high
        assert made.ratio == pytest.approx(1.3, rel=0.05)

    def test_a_slowdown_is_seen_through_a_machine_that_drifts(self):
        drifting = noisy(np.random.default_rng(3), slower=1.5, drift=0.02)
        (made,) = times_changed(windows_of(drifting, 4), {TEST})
        assert made.called == "worse"

    @pytest.mark.parametrize("drift", [0.0, 0.1])
    def test_the_same_code_is_called_in_few_checks_at_most(self, drift):
        """Of 100 checks with 20 metrics each, as many call any as the error says, and not many more."""
        rng = np.random.default_rng(4)
        called = 0
        for _ in range(100):
            made = times_changed(windows_of(noisy(rng, of=20, drift=drift)), {TEST})
            called += any(change.called != "no change seen" for change in made)
        assert called <= 100 * ERROR + 3 * math.sqrt(100 * ERROR)

    def test_what_only_the_machine_did_between_the_windows_is_no_change(self):
        def times(side, place):
            return {"f to ready": 100.0 if place < 10 else 300.0 + place}

        (made,) = times_changed(windows_of(times), {TEST})
        assert made.called == "no change seen"

    def test_too_few_processes_leave_it_open(self):
        slow = noisy(np.random.default_rng(5), slower=10.0, of=9)
        assert {change.called for change in times_changed(windows_of(slow, 1), {TEST})} == {"undecided"}
        assert {change.called for change in times_changed(windows_of(slow, 2), {TEST})} == {"worse"}

    def test_a_window_with_a_process_that_failed_does_not_count(self):
        whole = windows_of(noisy(np.random.default_rng(6), slower=1.3))
        broken = Window((Run(Notes(), 1.0, "killed"), *whole[0].base[1:]), whole[0].head)
        assert times_changed([broken, *whole[1:]], {TEST})[0].processes == 5
        assert times_changed([broken], {TEST}) == []

    def test_a_time_that_one_process_lacks_is_left_out(self):
        def times(side, place):
            return {"f to return": 1.0, **({"g to return": 1.0} if place != 3 else {})}

        assert [change.metric for change in times_changed(windows_of(times), {TEST})] == ["f to return"]

    def test_tests_that_did_not_pass_in_both_have_no_times(self):
        assert times_changed(windows_of(noisy(np.random.default_rng(7))), set()) == []

    @given(st.integers(1, 12), st.floats(0.2, 5.0), st.integers(0, 2**32 - 1))
    @settings(max_examples=25)
    def test_the_other_way_round_everything_is_mirrored(self, number, slower, seed):
        there = windows_of(noisy(np.random.default_rng(seed), slower=slower), number)
        back = [Window(window.head, window.base) for window in there]
        (a,), (b,) = (times_changed(each, {TEST}) for each in (there, back))
        assert a.ratio == pytest.approx(1 / b.ratio)
        assert {a.called, b.called} in ({"worse", "better"}, {"no change seen"}, {"undecided"})
        if a.interval:
            assert a.interval.low == pytest.approx(1 / b.interval.high)

    def test_the_smallest_change_that_is_seen_follows_from_the_intervals(self):
        quiet, loud = (
            times_changed(windows_of(noisy(np.random.default_rng(8), noise=noise, of=5)), {TEST})
            for noise in (0.01, 0.3)
        )
        assert 0 < smallest_seen(quiet) < 0.05 < smallest_seen(loud)
        assert smallest_seen([]) is None

    def test_times_are_decided_where_they_are_called_or_known_well(self):
        called, close, loose = (
            times_changed(windows_of(noisy(np.random.default_rng(8), slower=slower, noise=noise)), {TEST})
            for slower, noise in ((1.5, 0.05), (1.0, 0.005), (1.0, 0.3))
        )
        assert [change.called for change in (*called, *close, *loose)] == ["worse", *["no change seen"] * 2]
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
            called += any(change.called != "no change seen" for seen in stops for change in seen)
        assert called <= checks * ERROR + 3 * math.sqrt(checks * ERROR)

    def test_seconds_of_compiling_are_those_of_all_functions_where_they_are_not_few(self):
        def run(side):
            many = [(f"f{place}", "trace", 1, 0.04 * (1 + side)) for place in range(5)]
            return Run(notes(stages=[*many, ("g", "lower", 1, 0.001)]), 1.0)

        made = times_changed([Window((run(0),) * WINDOW, (run(1),) * WINDOW)] * 2, {TEST})
        assert [(change.metric, change.called) for change in made] == [("seconds to trace", "worse")]
        assert made[0].base == pytest.approx(0.2)
