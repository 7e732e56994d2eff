"""Trying steps: exact metrics in one run, times by windows, and what cannot be tried."""

import dataclasses
import re

import numpy as np
import pytest
from support.against import ENVIRONMENT
from support.bisecting import CALLS, TEST, MadeUp, count, time, trials

from perfsuite.bisecting.found import BisectFailed


def test_a_step_takes_one_run_and_is_judged_by_the_gate(tmp_path):
    made_up = MadeUp(
        {"good": {CALLS: count(5)}, "bad": {CALLS: count(9)}, "a": {CALLS: count(6)}, "b": {CALLS: count(4)}}
    )
    with trials(made_up, tmp_path) as tried:
        assert tried.ends("good", "bad").looks == "exact"
        assert [tried.verdict(each) for each in ("a", "b", "a")] == ["bad", "good", "bad"]
        assert tried.step("a").value == 6
    assert made_up.ran == ["good", "bad", "a", "b"]


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("pip cannot install it", "pip cannot install it"),
        (("failed", "it broke"), "the test failed: it broke"),
        (("skipped", "no device"), "the test is skipped: no device"),
        ({"other": count(1)}, "makes no step host calls there"),
    ],
)
def test_a_step_where_the_test_does_not_run_is_skipped_with_the_reason(tmp_path, at, why):
    made_up = MadeUp({"good": {CALLS: count(5)}, "bad": {CALLS: count(9)}, "a": at})
    with trials(made_up, tmp_path) as tried:
        tried.ends("good", "bad")
        assert tried.verdict("a") == "skipped"
        assert why in tried.step("a").reason


@pytest.mark.parametrize("end", ["good", "bad"])
def test_an_end_where_the_test_does_not_run_is_an_error_and_is_tried_again_next_time(tmp_path, end):
    made_up = MadeUp({"good": {CALLS: count(5)}, "bad": {CALLS: count(9)}, end: ("failed", "it broke")})
    with trials(made_up, tmp_path) as tried, pytest.raises(BisectFailed, match=f"the {end} end, step {end}.* it broke"):
        tried.ends("good", "bad")
    made_up.at[end] = {CALLS: count({"good": 5, "bad": 9}[end])}
    with trials(made_up, tmp_path) as tried:
        tried.ends("good", "bad")


def test_steps_that_were_kept_are_not_tried_again(tmp_path):
    at = {"good": {CALLS: count(5)}, "bad": {CALLS: count(9)}, "a": {CALLS: count(6)}, "b": "no"}
    for made_up in (MadeUp(at), MadeUp(at)):
        with trials(made_up, tmp_path) as tried:
            tried.ends("good", "bad")
            assert (tried.verdict("a"), tried.verdict("b")) == ("bad", "skipped")
            assert tried.step("a").value == 6
    assert made_up.ran == []


TIME = "step to return"


def timed(us, seed=0, spread=0.01):
    """Steps at which a process takes so long, but for a spread from process to process.

    Each step has noise of its own, so that it does not matter in which order chance runs the processes.
    """
    draws = {id: np.random.default_rng((seed, place)) for place, id in enumerate(us)}
    return MadeUp(
        {id: {TIME: time(1.0)} for id in us}, lambda id: us[id] * float(np.exp(spread * draws[id].standard_normal()))
    )


def test_a_time_is_compared_with_half_of_the_way_to_the_bad_end(tmp_path):
    made_up = timed({"good": 100.0, "bad": 120.0, "a": 102.0, "b": 118.0, "c": 90.0})
    with trials(made_up, tmp_path, TIME) as tried:
        goal = tried.ends("good", "bad")
        assert goal.looks == "timed"
        assert goal.moved == pytest.approx(np.log(1.2), abs=0.02)
        assert [tried.verdict(each) for each in "abc"] == ["good", "bad", "good"]
        interval = tried.step("a").interval
        assert interval.low < 1.02 < interval.high
        assert (tried.step("good").value, tried.step("good").unit) == (1.0, "us")
        assert made_up.open == {"good"}  # it runs beside every step
    assert made_up.open == set()


def test_after_each_window_it_is_said_how_far_the_step_is_from_the_good_end(tmp_path):
    said = []
    with trials(timed({"good": 100.0, "bad": 150.0}), tmp_path, TIME) as tried:
        tried.say = said.append
        tried.ends("good", "bad")
    found = [re.fullmatch(r"(\S+) to (\S+) times the good end's after 5 rounds", line) for line in said]
    (told,) = filter(None, found)
    assert float(told[1]) < 1.5 < float(told[2])


def running(us, runs, flags=None):
    """Steps at which a process takes so long; each runs what `runs` has for it, some with `flags` of XLA."""
    made_up = timed(us)
    environments = {id: dataclasses.replace(ENVIRONMENT, xla_flags=(flags or {}).get(id, "")) for id in us}
    made_up.at = {id: {TIME: dataclasses.replace(time(1.0, runs[id]), environment=environments[id])} for id in us}
    return made_up


def test_a_step_that_runs_what_another_one_runs_is_not_timed(tmp_path):
    """The times of the two that are not timed would say the opposite."""
    us = {"good": 100.0, "bad": 120.0, "as good": 120.0, "as bad": 100.0, "other": 118.0, "as other": 100.0}
    runs = {"good": "g", "bad": "b", "as good": "g", "as bad": "b", "other": "o", "as other": "o"}
    made_up = running(us, runs)
    with trials(made_up, tmp_path, TIME) as tried:
        tried.ends("good", "bad")
        verdicts = {id: tried.verdict(id) for id in ("as good", "as bad", "other", "as other")}
        assert verdicts == {"as good": "good", "as bad": "bad", "other": "bad", "as other": "bad"}
        assert [id for id in us if tried.step(id).interval is not None] == ["bad", "other"]
        assert tried.step("as other").reason == "not timed: it runs what step other runs"
        assert [tried.step(id).value for id in ("as good", "as bad", "as other")] == [None] * 3


@pytest.mark.parametrize("runs", [None, "never seen"])
def test_a_step_that_runs_something_else_or_what_is_not_known_is_timed(tmp_path, runs):
    us = {"good": 100.0, "bad": 120.0, "a": 120.0, "b": 100.0}
    made_up = running(us, {"good": runs and "g", "bad": runs and "b", "a": runs, "b": runs and "another"})
    with trials(made_up, tmp_path, TIME) as tried:
        tried.ends("good", "bad")
        assert [tried.verdict(id) for id in "ab"] == ["bad", "good"]
        assert all(tried.step(id).interval is not None for id in "ab")


def test_what_runs_with_other_flags_or_packages_is_timed(tmp_path):
    """A fingerprint has the programs as they are before the compiler."""
    us = {"good": 100.0, "bad": 120.0, "flags": 120.0, "compiler": 120.0, "neither": 120.0}
    runs = {"good": "g", "bad": "b", "flags": "g", "compiler": "g", "neither": "g"}
    made_up = running(us, runs, flags={"flags": "--xla_a=1"})
    made_up.packages = {"compiler": {"libtpu": "2"}}
    with trials(made_up, tmp_path, TIME) as tried:
        tried.ends("good", "bad")
        verdicts = {id: tried.verdict(id) for id in ("flags", "compiler", "neither")}
        assert verdicts == {"flags": "bad", "compiler": "bad", "neither": "good"}
        assert tried.step("neither").interval is None


def test_ends_of_two_compilers_are_timed(tmp_path):
    made_up = running({"good": 100.0, "bad": 120.0}, {"good": "g", "bad": "g"})
    made_up.packages = {"good": {"libtpu": "1"}, "bad": {"libtpu": "2"}}
    with trials(made_up, tmp_path, TIME) as tried:
        assert tried.ends("good", "bad").looks == "timed"


def test_a_call_with_another_fingerprint_in_each_process_is_timed(tmp_path):
    us = {"good": 100.0, "bad": 120.0, "a": 120.0}
    made_up = running(us, {"good": "g", "bad": "b", "a": "g1"})
    at, seen = made_up.at, []

    class Varying(dict):
        def __getitem__(self, id):
            seen.append(id)
            return {TIME: time(1.0, f"g{seen.count(id)}")} if id == "good" else super().__getitem__(id)

    made_up.at = Varying(at)
    with trials(made_up, tmp_path, TIME) as tried:
        tried.ends("good", "bad")
        assert tried.verdict("a") == "bad"
        assert tried.step("a").interval is not None


@pytest.mark.parametrize("id", ["a", "bad"])
def test_a_step_that_makes_no_such_time_is_not_timed(tmp_path, id):
    made_up = running({"good": 100.0, "bad": 120.0, "a": 120.0}, {"good": "g", "bad": "b", "a": "a"})
    made_up.at[id] = {"other": time(1.0)}
    with trials(made_up, tmp_path, TIME) as tried:
        if id == "bad":
            with pytest.raises(
                BisectFailed, match="the bad end, step bad, says nothing: the test makes no step to ret"
            ):
                tried.ends("good", "bad")
        else:
            tried.ends("good", "bad")
            assert tried.verdict(id) == "skipped"
            assert tried.step(id).reason == "the test makes no step to return there"


def test_the_tail_of_a_time_is_refused(tmp_path):
    made_up = MadeUp({id: {"step p99": time(1.0)} for id in ("good", "bad")})
    with trials(made_up, tmp_path, "step p99") as tried, pytest.raises(BisectFailed, match="to ready or to return"):
        tried.ends("good", "bad")


def test_a_step_that_runs_what_an_undecided_one_runs_is_timed_itself(tmp_path):
    us = {"good": 100.0, "bad": 121.0, "half": 110.0, "again": 120.0}
    made_up = running(us, {"good": "g", "bad": "b", "half": "h", "again": "h"})
    with trials(made_up, tmp_path, TIME) as tried:
        tried.ends("good", "bad")
        assert [tried.verdict(id) for id in ("half", "again")] == ["skipped", "bad"]


def test_without_a_known_time_steps_are_told_apart_by_what_they_run(tmp_path):
    """Only the ends are timed. What runs with other packages cannot be told."""
    us = dict.fromkeys(("good", "bad", "as good", "as bad", "other", "unknown", "elsewhere"), 100.0)
    runs = {"good": "g", "bad": "b", "as good": "g", "as bad": "b", "other": "o", "unknown": None, "elsewhere": "g"}
    verdicts = {"as good": "good", "as bad": "bad", "other": "bad", "unknown": "skipped", "elsewhere": "skipped"}
    made_up = running(us, runs)
    made_up.packages = {"elsewhere": {"lib": "2"}}
    for made in (set(us), set()):  # the second search finds all that was kept
        with trials(made_up, tmp_path, TIME) as tried:
            assert tried.ends("good", "bad").looks == "runs"
            assert {id: tried.verdict(id) for id in verdicts} == verdicts
            assert tried.step("bad").verdict == "bad"
            assert tried.step("bad").interval.low < 1 < tried.step("bad").interval.high
            assert "is not known to be worse at the bad end" in tried.notes[0]
            assert tried.kept.made == made


def test_without_a_known_time_other_packages_tell_nothing(tmp_path):
    made_up = running({"good": 100.0, "bad": 100.0}, {"good": "g", "bad": "b"})
    made_up.packages = {"bad": {"jax": "2"}}
    with trials(made_up, tmp_path, TIME) as tried, pytest.raises(BisectFailed, match="take more --rounds"):
        tried.ends("good", "bad")


def test_ends_that_run_the_same_are_not_timed(tmp_path):
    made_up = running({"good": 100.0, "bad": 120.0}, {"good": "g", "bad": "g"})
    with (
        trials(made_up, tmp_path, TIME) as tried,
        pytest.raises(BisectFailed, match="the same programs, and the same Python"),
    ):
        tried.ends("good", "bad")


def test_an_undecided_time_is_skipped_after_all_rounds(tmp_path):
    made_up = timed({"good": 100.0, "bad": 121.0, "half": 110.0})
    with trials(made_up, tmp_path, TIME) as tried:
        tried.ends("good", "bad")
        assert tried.verdict("half") == "skipped"
        assert "undecided" in tried.step("half").reason
        assert tried.step("half").interval.low < 1.1 < tried.step("half").interval.high


@pytest.mark.parametrize(("bad", "why"), [(80.0, "better at the bad end .*swap"), (100.0, "not known to be worse")])
def test_times_that_are_the_wrong_way_round_or_the_same(tmp_path, bad, why):
    made_up = timed({"good": 100.0, "bad": bad})
    with trials(made_up, tmp_path, TIME) as tried, pytest.raises(BisectFailed, match=why):
        tried.ends("good", "bad")


def test_wrong_verdicts_of_times_are_as_rare_as_is_said(tmp_path):
    """Steps just above and below half of the way, with noise of the size of the difference: nearly all are skipped."""
    wrong = 0
    us = (
        {"good": 100.0, "bad": 121.0}
        | {f"u{place}": 109.5 for place in range(30)}
        | {f"o{place}": 110.5 for place in range(30)}
    )
    made_up = timed(us, seed=3, spread=0.02)
    with trials(made_up, tmp_path, TIME) as tried:
        tried.ends("good", "bad")
        for id in list(us)[2:]:
            wrong += tried.verdict(id) == ("bad" if id[0] == "u" else "good")
    assert wrong <= 2


def test_a_process_that_dies_in_every_window_says_so(tmp_path):
    made_up = timed({"good": 100.0, "bad": 120.0, "a": 120.0})
    with trials(made_up, tmp_path, TIME) as tried:
        tried.ends("good", "bad")
        of = made_up.times_at
        made_up.times_at = lambda id: 0.0 if id == "a" else of(id)
        assert tried.verdict("a") == "skipped"
        assert "too few processes" in tried.step("a").reason


def test_a_test_that_is_not_there(tmp_path):
    made_up = MadeUp({"good": {CALLS: count(5)}, "bad": {CALLS: count(9)}})
    tried = trials(made_up, tmp_path)
    tried.wanted = type(tried.wanted)("test_b.py::test_none", CALLS)
    with tried, pytest.raises(BisectFailed, match="finds no perf test"):
        tried.ends("good", "bad")
    assert TEST not in tried.wanted.test
