"""Trying steps: exact metrics in one run, times by windows, and what cannot be tried."""

import re

import numpy as np
import pytest
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


@pytest.mark.parametrize("id", ["a", "bad"])
def test_a_step_that_makes_no_such_time_is_not_timed(tmp_path, id):
    made_up = timed({"good": 100.0, "bad": 120.0, "a": 120.0})
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
