"""`gate.messages`: the message of a failed test, and why a gate is no plain pass."""

import dataclasses
import math

import pytest

from perfsuite.gate import messages
from perfsuite.gate.baseline import Entry
from perfsuite.gate.environment import Environment
from perfsuite.gate.messages import failure
from perfsuite.gate.verdict import Evidence, Part, Rerun, Result, Verdict, judge_baseline
from perfsuite.measure.metric import Estimate, Interval, Metric

HERE = Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.2")
OLDER = dataclasses.replace(HERE, jax="0.10.1")


def result(name, value=8, *, baseline=7.0, source="baseline", place="", **fields):
    """A gate that failed, of a metric with one part that grew at `place`."""
    metric = Metric(name, value, "fusions", "count")
    grown = (Part("dot", 1, place=place),) if place else ()
    return Result("t", metric, Verdict.FAIL, source, 7, baseline=baseline, grown=grown, **fields)


def first(detail=None, places=None, then=None, environment=HERE, unit="fusions"):
    made = Metric("step fusions", 3, unit, "count", detail=detail, places=places)
    entry = Entry(1, unit, "count", "measured", environment, detail=then)
    return messages.first(judge_baseline("t", made, entry, now=HERE))


# The one thing to do first.


def test_first_is_the_place_of_the_part_that_grew_most():
    detail, places = {"dot in f": 2, "copy": 1}, {"dot in f": "model.py:4 in f", "copy": "model.py:9 in g"}
    assert first(detail, places, {"dot in f": 0, "copy": 1}) == "look at model.py:4 in f"


def test_first_is_the_upgrade_where_there_was_one():
    detail, places = {"dot in f": 3}, {"dot in f": "model.py:4 in f"}
    said = first(detail, places, {"dot in f": 1}, OLDER)
    assert (
        said
        == "run it with the baseline's versions too (jax 0.10.1 -> 0.10.2), to see whether the upgrade or the code causes it"
    )


def test_advice_is_of_what_makes_many_of_the_calls_and_not_of_a_few_beside_a_library():
    detail = {"unheard_of:each in f (a.py)": 30, "dict:values in f (a.py)": 1}
    places = {part: f"{part.partition(' ')[0]} at a.py:4 in f" for part in detail}
    assert first(detail, places, dict.fromkeys(detail, 0), unit="calls") == "look at unheard_of:each at a.py:4 in f"
    assert first({**detail, "dict:values in f (a.py)": 30}, places, dict.fromkeys(detail, 0), unit="calls") == ""


def test_advice_is_of_all_calls_that_are_made_in_one_place():
    tree, other = "jax.tree:leaves at a.py:4 in f", "unheard_of:each at a.py:5 in f"
    places = {"unheard_of:each": other, "tree:flatten": tree, "tree:leaves": tree}
    detail = {"unheard_of:each": 50, "tree:flatten": 4, "tree:leaves": 4}
    assert first(detail, places, dict.fromkeys(detail, 0), unit="calls") == ""
    few = {**detail, "tree:flatten": 1}
    assert first(few, places, dict.fromkeys(detail, 0), unit="calls") == f"look at {other}"


def test_first_is_to_record_it_where_nothing_else_is_known():
    assert first() == "if you intend this change, record it: pytest --perf-save"


def test_a_cause_that_was_looked_for_and_not_found_is_said_to_be_unknown():
    entry = Entry(1, "calls", "count", "measured", HERE)
    looked = Evidence(unexplained="the host's calls did not change")
    judged = judge_baseline("t", Metric("calls", 3, "calls", "count"), entry, now=HERE, evidence=looked)
    assert "\ncause unknown: the host's calls did not change" in failure([judged])
    passing = judge_baseline("t", Metric("calls", 1, "calls", "count"), entry, now=HERE, evidence=looked)
    assert messages.cause(passing) == ""


# The message of a test.


def test_one_metric_is_its_reason_and_what_to_do_first():
    said = "a is 8 fusions, +1 (+14.3 %) over the baseline 7 fusions"
    assert failure([result("a", place="x.py:3")]) == f"{said}; grew: dot (+1) at x.py:3\nfirst: look at x.py:3"
    assert failure([result("a", cause="b")]) == f"{said}\nlikely cause: b"


def test_other_metrics_are_named_in_one_line():
    said = failure([result("b", 9), result("a", 14), result("c", 1, baseline=None, source="budget")])
    assert said.splitlines() == [
        "a is 14 fusions, +7 (+100 %) over the baseline 7 fusions",
        "first: if you intend this change, record it: pytest --perf-save",
        "also worse: b 7 -> 9 fusions (+28.6 %); c 1 fusion",
    ]


def test_what_was_not_there_before_comes_first_and_then_what_grew_most():
    flops = Result("t", Metric("flops", 130, "FLOP", "size"), Verdict.FAIL, "baseline", 101, baseline=100)
    fusions = Result("t", Metric("fusions", 30, "f", "size", symptom=True), Verdict.FAIL, "baseline", 1, baseline=1)
    reused = Result("t", Metric("reused", 3, "buffers", "count", "higher"), Verdict.FAIL, "baseline", 4, baseline=4)
    added = result("callback", 1, baseline=0)
    gone = dataclasses.replace(flops, metric=Metric("gone", 1, "x", "size"), verdict=Verdict.MISSING)
    order = [each.metric.name for each in messages.by_weight([gone, fusions, flops, result("b", 9), added, reused])]
    assert order == ["callback", "reused", "flops", "b", "fusions", "gone"]
    message = failure([gone, fusions, flops, reused])
    assert message.startswith("reused is 3 buffers, 1 (-25 %) under the baseline 4 buffers")
    assert message.index("also worse: flops") < message.index("fusions") < message.index("also missing: gone")


def test_metrics_without_a_baseline_are_named_after_those_that_got_worse():
    new = [result(name, source=None, strict=Verdict.NEW) for name in "abcdef"]
    assert failure(new[:1]) == "a has no baseline (--perf-strict): pytest --perf-save records it"
    assert failure(new).splitlines()[1:] == [
        "also without a baseline: b, c, d, e and 1 more",
        "all of them: pytest --perf -v",
    ]
    undecided = [result(name, strict=Verdict.INCONCLUSIVE, to_settle="more time") for name in "xyz"]
    assert failure([*new[:2], *undecided]).splitlines() == [
        "x is 8 fusions, +1 (+14.3 %) over the baseline 7 fusions; fails because it is undecided (--perf-strict=inconclusive)",
        "to settle it: more time",
        "also undecided: y, z",
        "also without a baseline: a, b",
    ]
    assert failure([*new[:1], *undecided[:1], result("z", cause="a sleep")]).splitlines() == [
        "z is 8 fusions, +1 (+14.3 %) over the baseline 7 fusions",
        "likely cause: a sleep",
        "also undecided: x",
        "also without a baseline: a",
    ]


# By how much.


@pytest.mark.parametrize(
    ("value", "baseline", "kind", "said"),
    [
        (30, 7, "count", "+23 (+329 %) over the baseline 7 calls"),
        (1, 0, "count", "+1 over the baseline 0 calls"),
        (5000, 4096, "size", "+22.1 % over the baseline 4,096 calls (limit +1 %)"),
    ],
)
def test_a_baseline_is_exceeded_by_so_many_per_cent(value, baseline, kind, said):
    entry = Entry(baseline, "calls", kind, "measured", HERE)
    judged = judge_baseline("t", Metric("step", value, "calls", kind), entry, now=HERE)
    assert messages.reason(judged).endswith(said)


# Why a gate is open.


@pytest.mark.parametrize(
    ("interval", "samples", "rerun", "said"),
    [
        (Interval(0.9, 1.1), 30, None, "with the limit inside the interval"),
        (Interval(0.9, math.inf), 3, None, "of too few samples for an interval"),
        (None, 3, None, "of too few samples for an interval"),
        (None, None, None, "without an interval"),
        (Interval(1.1, 1.2), 30, Rerun(), "not confirmed in a fresh process"),
    ],
)
def test_why_a_gate_is_open_is_said_in_a_few_words(interval, samples, rerun, said):
    metric = Metric("step", 1.0, "x", "ratio", interval=interval, samples=samples)
    assert messages.why_open(Result("t", metric, Verdict.INCONCLUSIVE, "budget", 1.0, rerun=rerun)) == said


def test_what_explains_a_result_of_two_sides_is_a_line_a_fact():
    metric = Metric("step host calls", 7, "calls", "count")
    explained = dataclasses.replace(
        Result("t", metric, Verdict.FAIL), grown=(Part("a:b", 2),), cause="a sleep", where="test_step.py:3"
    )
    assert messages.evidence_lines(explained) == [
        "more calls of a:b (+2)",
        "likely cause: a sleep",
        "measured at test_step.py:3",
    ]
    assert messages.evidence_lines(Result("t", metric, Verdict.PASS)) == []


def test_a_time_of_too_few_processes_has_no_interval():
    ratio = Estimate(1.1, Interval(0.0, math.inf))
    open_one = Result("t", Metric("step", 11.0, "us", "time"), Verdict.INCONCLUSIVE, ratio=ratio)
    assert messages.change_in_words(open_one) == "no interval"
