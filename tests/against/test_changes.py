"""What `perfsuite against` calls a change: counts and sizes exactly, times only over processes."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.against import ENVIRONMENT, TEST, notes

from perfsuite.against import changes
from perfsuite.against.changes import (
    decided,
    explained,
    metrics_changed,
    outcomes_changed,
    rounds_needed,
    smallest_called,
    smallest_seen,
    stages_changed,
    times_changed,
    to_time,
)
from perfsuite.against.found import ERROR
from perfsuite.against.notes import Notes, Place
from perfsuite.against.runs import FirstRun, Run, Window, looks, sizes
from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.verdict import Part
from perfsuite.measure.metric import Interval


def metrics(entries=None, **noted):
    """The first run of a side: its entries by name."""
    baselines = {"cpu": Baselines("cpu", {TEST: entries})} if entries else {}
    return FirstRun(Run(notes(**noted), 1.0), baselines)


def entry(value, kind="count", unit="calls", **more):
    return Entry(value, unit, kind, "measured", ENVIRONMENT, **more)


def windows_of(times, rounds=10):
    """Windows whose processes have `times(side, place)` by name; the order in which they ran is drawn by lot."""
    order = np.random.default_rng(0)
    made, place = [], 0
    for size in sizes(rounds):
        sides = ([], [])
        for side in order.permutation([0, 1] * size):
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
        assert (made.called, made.where, made.processes) == ("worse", "dispatch", 10)
        assert made.interval.low < 1.3 < made.interval.high
        assert made.ratio == pytest.approx(1.3, rel=0.05)

    def test_a_speed_up_is_better(self):
        (made,) = times_changed(windows_of(noisy(np.random.default_rng(2), slower=1 / 1.3)), {TEST})
        assert made.called == "better"

    def test_a_slowdown_is_seen_through_a_machine_that_drifts(self):
        drifting = noisy(np.random.default_rng(3), slower=1.5, drift=0.02)
        (made,) = times_changed(windows_of(drifting, 20), {TEST})
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
        assert (made.called, made.where) == ("no change seen", "device")

    def test_too_few_processes_leave_it_open_and_it_is_said_how_many_there_must_be(self):
        few = windows_of(noisy(np.random.default_rng(5), slower=10.0, of=9), 4)
        assert {change.called for change in times_changed(few, {TEST})} == {"undecided"}
        enough = windows_of(noisy(np.random.default_rng(5), slower=10.0, of=9), rounds_needed(9))
        assert {change.called for change in times_changed(enough, {TEST})} == {"worse"}
        one_less = windows_of(noisy(np.random.default_rng(5), slower=10.0, of=9), rounds_needed(9) - 1)
        assert {change.called for change in times_changed(one_less, {TEST})} == {"undecided"}

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

    @given(st.integers(2, 60), st.floats(0.2, 5.0), st.integers(0, 2**32 - 1))
    @settings(max_examples=25)
    def test_the_other_way_round_everything_is_mirrored(self, rounds, slower, seed):
        there = windows_of(noisy(np.random.default_rng(seed), slower=slower), rounds)
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

    @pytest.mark.parametrize(("rounds", "metrics"), [(10, 3), (20, 15), (40, 60)])
    def test_the_smallest_change_that_is_called_is_called_half_of_the_time(self, rounds, metrics):
        noise = 0.05
        slower = math.exp(smallest_called(rounds, metrics) * noise)
        rng = np.random.default_rng(9)
        checks = [
            times_changed(windows_of(noisy(rng, noise=noise, slower=slower, of=metrics), rounds), {TEST}, looks(rounds))
            for _ in range(40)
        ]
        called = np.mean([change.called == "worse" for made in checks for change in made])
        assert 0.35 < called < 0.65

    def test_more_rounds_call_smaller_changes_and_more_metrics_only_larger_ones(self):
        assert smallest_called(40, 20) < smallest_called(20, 20) < smallest_called(20, 200)
        enough = next(rounds for rounds in range(2, 99) if rounds >= rounds_needed(20, looks(rounds)))
        assert smallest_called(enough - 1, 20) is None
        assert smallest_called(enough, 20) is not None

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

    def test_compiling_may_scatter_for_ever(self):
        (loose,) = times_changed(windows_of(noisy(np.random.default_rng(8), noise=0.3)), {TEST})
        assert decided([dataclasses.replace(loose, where="compile")])

    def test_looks_share_the_error(self):
        made = windows_of(noisy(np.random.default_rng(8)), 20)
        (once,), (often,) = (times_changed(made, {TEST}, looks) for looks in (1, 5))
        assert often.interval.low < once.interval.low < once.interval.high < often.interval.high

    def test_looking_often_calls_the_same_code_in_few_checks_at_most(self):
        """As above, ended at the first look at which any of 5 metrics is called."""
        rng, checks, called = np.random.default_rng(4), 100, 0
        for _ in range(checks):
            made = windows_of(noisy(rng, of=5), 30)
            stops = (times_changed(made[: 1 + look], {TEST}, looks(30)) for look in range(1, 6))
            called += any(change.called != "no change seen" for seen in stops for change in seen)
        assert called <= checks * ERROR + 3 * math.sqrt(checks * ERROR)


class TestStageSeconds:
    def windows(self, seconds):
        """Windows whose processes have stages `(function, stage, number, seconds)` of `seconds(side)`."""
        made = []
        for size in sizes(10):
            sides = [[Run(notes(stages=seconds(side)), 1.0)] * size for side in (0, 1)]
            made.append(Window(*map(tuple, sides)))
        return made

    def test_a_function_that_takes_long_stands_alone_and_the_others_together(self):
        def seconds(side):
            small = [(f"small{i}", "trace", 1, 0.001) for i in range(5)]
            return [("step", "trace", 1, 0.2 * (1 + side)), *small, ("step", "compile", 1, 1.0)]

        made = times_changed(self.windows(seconds), {TEST})
        assert [(c.where, c.metric, c.called) for c in made] == [
            ("trace", changes.OTHERS, "no change seen"),
            ("trace", "step", "worse"),
            ("compile", "step", "no change seen"),
        ]
        assert made[0].base == pytest.approx(0.005)

    def test_a_function_that_only_one_version_has_is_among_the_others(self):
        def seconds(side):
            return [("old" if side == 0 else "new", "lower", 1, 0.5), ("step", "lower", 1, 0.2)]

        made = times_changed(self.windows(seconds), {TEST})
        assert [change.metric for change in made] == [changes.OTHERS, "step"]


class TestCounts:
    def test_a_compile_more_is_named_with_its_function(self):
        base = metrics(stages=[("step", "compile", 1, 0.1)])
        head = metrics(stages=[("step", "compile", 2, 0.1), ("add", "compile", 1, 0.1)])
        (made,) = stages_changed(base, head)
        assert (made.where, made.metric, made.base, made.head, made.called) == ("compile", "compiles", 1, 3, "worse")
        assert {Part("add", 1), Part("step", 1)} <= set(made.grown)

    def test_the_same_counts_are_no_change_whatever_they_took(self):
        base, head = (metrics(stages=[("step", "trace", 4, seconds)]) for seconds in (0.1, 9.0))
        assert [change.called for change in stages_changed(base, head)] == ["no change seen"]

    def test_fewer_are_better(self):
        base, head = (metrics(stages=[("step", "lower", number, 0.1)]) for number in (3, 2))
        assert [(change.where, change.called) for change in stages_changed(base, head)] == [("lower", "better")]

    @pytest.mark.parametrize(("counted", "called"), [((2, 2), "worse"), ((2, 1), "undecided")])
    def test_more_is_called_only_where_every_process_of_the_new_counted_more(self, counted, called):
        base, head = (metrics(stages=[("step", "trace", number, 0.1)]) for number in (1, 2))
        old = tuple(Run(notes(stages=[("step", "trace", 1, 0.1)]), 1.0) for _ in counted)
        new = tuple(Run(notes(stages=[("step", "trace", number, 0.1)]), 1.0) for number in counted)
        (made,) = stages_changed(base, head, [Window(old, new)])
        assert made.called == called


class TestMetrics:
    @pytest.mark.parametrize(
        ("old", "new", "called"),
        [
            (entry(10), entry(11), "worse"),
            (entry(10), entry(10), "no change seen"),
            (entry(10), entry(9), "better"),
            (entry(1000, "size", "bytes"), entry(1009, "size", "bytes"), "no change seen"),
            (entry(1000, "size", "bytes"), entry(1011, "size", "bytes"), "worse"),
            (entry(10, "size", "bytes", better="higher"), entry(8, "size", "bytes", better="higher"), "worse"),
            (entry(1.0, "ratio", "x"), entry(1.2, "ratio", "x"), "undecided"),
            (entry(10), entry(10, unit="misses"), "not comparable"),
            (None, entry(3), "new"),
            (entry(3), None, "gone"),
        ],
    )
    def test_the_gates_rules_decide(self, old, new, called):
        base, head = (metrics({"f": each} if each else {"g": entry(1)}) for each in (old, new))
        made = {change.metric: change.called for change in metrics_changed(base, head)}
        assert made["f"] == called

    def test_the_part_that_grew_is_named(self):
        base = metrics({"f": entry(10, detail={"a": 10})})
        head = metrics({"f": entry(12, detail={"a": 10, "b": 2})})
        (made,) = metrics_changed(base, head)
        assert made.grown == (Part("b", 2),)

    def test_times_and_information_are_not_held_against_each_other(self):
        base, head = (metrics({"t": entry(v, "time", "us"), "i": entry(v, "info", "s")}) for v in (1.0, 99.0))
        assert metrics_changed(base, head) == []

    def test_a_ratio_of_times_is_of_many_processes_to_judge(self):
        low, high = (entry(v, "ratio", "x", interval=Interval(v, v)) for v in (1.0, 2.0))
        base, head = (metrics({"f to return": each}) for each in (low, high))  # sampled, the notes say
        assert metrics_changed(base, head) == []

    def test_a_change_has_its_line_and_the_places_of_its_parts(self):
        base, head = metrics({"f": entry(1, detail={"a": 1})}), metrics({"f": entry(3, detail={"a": 1, "b": 2})})
        head.run.notes.places[TEST]["f"] = Place("test_a.py:7", {"b": "b at steps.py:2 in f"})
        (made,) = metrics_changed(base, head)
        assert made.line == "test_a.py:7"
        assert made.grown == (Part("b", 2, place="b at steps.py:2 in f"),)

    def test_a_test_that_failed_in_one_has_no_metrics(self):
        failed = metrics({"f": entry(99)}, tests={TEST: ("failed", "boom")})
        assert metrics_changed(metrics({"f": entry(1)}), failed) == []

    def test_metrics_of_the_full_size_belong_to_their_test(self):
        def of(value):
            key = f"{TEST} --perf-size=full"
            return FirstRun(Run(notes(), 1.0), {"cpu": Baselines("cpu", {key: {"f": entry(value)}})})

        assert [change.called for change in metrics_changed(of(1), of(2))] == ["worse"]

    def test_a_targets_metrics_are_named_after_it(self):
        def of(value):
            return FirstRun(Run(notes(), 1.0), {"tpu-v5e": Baselines("tpu-v5e", {TEST: {"f": entry(value)}})})

        assert [change.metric for change in metrics_changed(of(1), of(1))] == ["f @ tpu-v5e"]

    @pytest.mark.parametrize(
        ("name", "unit", "where"),
        [
            ("step to return", "us", "dispatch"),
            ("step to return per unit", "us/unit", "dispatch"),
            ("a/b ratio to return", "x", "dispatch"),
            ("step to ready", "us", "device"),
            ("step waits", "waits", "dispatch"),
            ("step host calls", "calls", "host calls"),
            ("step implicit transfers", "transfers", "host calls"),
            ("step host transfers", "transfers", "program"),
            ("step host transfers @ tpu-v5e", "transfers", "program"),
            ("step compiles to warm", "compiles", "compile"),
            ("block traces", "traces", "trace"),
            ("block lowerings", "lowerings", "lower"),
            ("step dispatches", "programs", "dispatch"),
            ("step eager operations", "operations", "dispatch"),
            ("step transcendentals", "operations", "program"),
            ("step peak bytes", "bytes", "program"),
        ],
    )
    def test_where(self, name, unit, where):
        assert changes._where(name, unit) == where


class TestWhatIsTimed:
    """A test is left out only where it times the same calls, and nothing that is exact changed in it."""

    def runs(self, *prints):
        """The base and the head, of one test with these fingerprints; None for a call without one."""
        made = []
        for each in prints:
            run = metrics({"f": entry(1)})
            run.run.notes.places[TEST] = {
                "f": Place(),
                "f to ready": Place("test_a.py:3", sampled=True, fingerprint=each),
            }
            made.append(run)
        return made

    @pytest.mark.parametrize(
        ("base", "head", "is_timed"),
        [
            ({"programs": "1", "python": "2"}, {"programs": "1", "python": "2"}, False),
            ({"programs": "1", "python": "2"}, {"programs": "1", "python": "3"}, True),
            ({"programs": "1"}, {"programs": "1", "python": "2"}, True),
            (None, None, True),
            ({"programs": "1"}, None, True),
        ],
    )
    def test_by_its_fingerprints(self, base, head, is_timed):
        may, same = to_time(*self.runs(base, head), [])
        assert (TEST in may, TEST in same) == (is_timed, not is_timed)

    def test_by_what_is_exact(self):
        print_ = {"programs": "1"}
        base, head = self.runs(print_, print_)
        head.baselines["cpu"] = Baselines("cpu", {TEST: {"f": entry(2)}})
        assert to_time(base, head, metrics_changed(base, head)) == ({TEST}, set())

    def test_by_other_metrics(self):
        base, head = self.runs({"programs": "1"}, {"programs": "1"})
        head.run.notes.places[TEST]["g to ready"] = Place(sampled=True, fingerprint={"programs": "1"})
        assert to_time(base, head, []) == ({TEST}, set())

    def test_one_without_times_is_neither(self):
        base, head = self.runs(None, None)
        for run in (base, head):
            del run.run.notes.places[TEST]["f to ready"]
        assert to_time(base, head, []) == (set(), set())

    def test_a_time_that_is_worse_says_what_else_changed(self):
        base, head = self.runs({"programs": "1", "python": "2"}, {"programs": "1", "python": "3"})
        head.baselines["cpu"] = Baselines("cpu", {TEST: {"f": entry(2)}})
        slower = times_changed(windows_of(noisy(np.random.default_rng(1), slower=1.3)), {TEST})
        slower = [dataclasses.replace(each, metric="f to ready") for each in slower]
        (made,) = explained(slower, base, head, metrics_changed(base, head))
        assert (made.line, made.changed) == ("test_a.py:3", ("python", "f"))


class TestTests:
    def test_one_that_fails_or_is_gone_is_worse_and_says_why(self):
        base = metrics(tests={"a": ("passed", ""), "b": ("passed", ""), "c": ("passed", ""), "d": ("failed", "x")})
        head = metrics(tests={"a": ("failed", "TypeError: no"), "c": ("passed", ""), "d": ("passed", "")})
        made = {each.test: (each.base, each.head, each.worse) for each in outcomes_changed(base, head)}
        assert made == {
            "a": ("passed", "failed", True),
            "b": ("passed", "not run", True),
            "d": ("failed", "passed", False),
        }
        assert outcomes_changed(base, head)[0].reason == "head: TypeError: no"

    def test_a_file_that_cannot_be_imported_is_listed(self):
        head = metrics(tests={}, uncollected={"test_a.py": "ImportError: no eqx"})
        made = outcomes_changed(metrics(), head)
        assert [(each.test, each.worse) for each in made] == [(TEST, True), ("test_a.py", True)]
        assert made[1].reason == "head: ImportError: no eqx"

    def test_a_process_that_died_loses_every_test(self):
        dead = FirstRun(Run(Notes(), 1.0, "killed"), {})
        assert [each.worse for each in outcomes_changed(metrics(), dead)] == [True]

    def test_one_that_only_the_head_passes_is_new_and_not_worse(self):
        base = metrics(tests={"b": ("failed", "AttributeError")}, uncollected={"test_a.py": "ImportError"})
        head = metrics(tests={"a": ("passed", ""), "b": ("passed", ""), "c": ("failed", "boom")})
        made = {each.test: (each.worse, each.only_at_head) for each in outcomes_changed(base, head)}
        new = (False, True)
        assert made == {"a": new, "b": new, "test_a.py": new, "c": (False, False)}

    def test_those_that_passed_or_were_skipped_in_both_are_not_listed(self):
        both = metrics(tests={"a": ("passed", ""), "b": ("skipped", "no libtpu")})
        assert outcomes_changed(both, both) == []


@given(st.integers(1, 5000))
def test_fewer_rounds_than_needed_could_call_nothing(number):
    def least(rounds):
        return 2 * math.prod(1 / math.comb(2 * size, size) for size in sizes(rounds))

    rounds = rounds_needed(number)
    assert least(rounds) <= ERROR / number
    assert rounds == 2 or least(rounds - 1) > ERROR / number
