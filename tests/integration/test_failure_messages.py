"""What a failed test prints: what and where, then the one thing to do first, and no frames of libraries."""

import dataclasses

import pytest

from perfsuite.gate.baseline import Entry
from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import Evidence, Gate, Part, judge_baseline
from perfsuite.measure.measurement import Metric
from perfsuite.report import text
from perfsuite.report.text import failure

HERE = Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.2")
OLDER = dataclasses.replace(HERE, jax="0.10.1")


def gate(name, value=8, *, baseline=7.0, source="baseline", place="", **fields):
    """A gate that failed, of a metric with one part that grew at `place`."""
    metric = Metric(name, value, "fusions", "count")
    grown = (Part("dot", 1, place=place),) if place else ()
    return Gate("t", metric, "fail", source, 7, baseline=baseline, grown=grown, **fields)


def first(detail=None, places=None, then=None, environment=HERE, unit="fusions"):
    made = Metric("step fusions", 3, unit, "count", detail=detail, places=places)
    entry = Entry(1, unit, "count", "measured", environment, detail=then)
    return text.first(judge_baseline("t", made, entry, now=HERE))


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


def test_first_is_to_record_it_where_nothing_else_is_known():
    assert first() == "if you intend this change, record it: pytest --perf-save"


def test_nothing_is_added_where_the_reason_has_advice():
    place = "jax._src.tree:map at test_a.py:27 in train"
    assert first({"f:g": 3}, {"f:g": place}, {"f:g": 1}, unit="calls") == ""


@pytest.mark.parametrize("value", [1, 0])
def test_what_did_not_fail_has_nothing_to_do_first(value):
    entry = Entry(1, "calls", "count", "measured", HERE)
    assert text.first(judge_baseline("t", Metric("calls", value, "calls", "count"), entry, now=HERE)) == ""


def test_a_likely_cause_is_what_to_look_at_first():
    entry = Entry(1, "calls", "count", "measured", HERE)
    judged = judge_baseline("t", Metric("calls", 3, "calls", "count"), entry, now=HERE, evidence=Evidence("a sleep"))
    assert failure([judged]).endswith("\nlikely cause: a sleep")


# The message of a test.


def test_one_metric_is_its_reason_and_what_to_do_first():
    said = "a is 8 fusions, +1 over the baseline 7 fusions"
    assert failure([gate("a", place="x.py:3")]) == f"{said}; grew: dot (+1) at x.py:3\nfirst: look at x.py:3"
    assert failure([gate("a", cause="b")]) == f"{said}\nlikely cause: b"


def test_what_differs_in_a_program_is_left_to_the_closing_section():
    made = gate("flops", place="x.py:3", program=("flops: 7 -> 8", "+ 1 x dot"))
    assert failure([made]).splitlines() == [
        "flops is 8 fusions, +1 over the baseline 7 fusions; grew: dot (+1) at x.py:3",
        "first: look at x.py:3",
        "full message: in the section perfsuite at the end",
    ]
    assert text.in_full(made).splitlines()[1:] == [
        "differences from the baseline's program:",
        "  flops: 7 -> 8",
        "  + 1 x dot",
    ]


def test_other_metrics_are_named_in_one_line():
    said = failure([gate("a"), gate("b", 9), gate("c", baseline=None, source="budget")])
    assert said.splitlines() == [
        "a is 8 fusions, +1 over the baseline 7 fusions",
        "first: if you intend this change, record it: pytest --perf-save",
        "also worse: b 7 -> 9 fusions; c 8 fusions",
    ]


def test_many_metrics_do_not_make_a_long_message():
    said = failure([gate(f"metric {number}", place="x.py:3") for number in range(30)])
    assert len(said.splitlines()) == 4
    assert said.splitlines()[2].endswith("; metric 4 7 -> 8 fusions and 25 more")


def test_metrics_without_a_baseline_are_counted():
    new = [gate(name, source=None, strict="new") for name in "abcdef"]
    assert failure(new[:1]) == "a has no baseline (--perf-strict): pytest --perf-save records it"
    assert failure(new).splitlines()[1] == "also without a baseline: b, c, d, e and 1 more"
    assert failure([*new[:2], gate("z", cause="a sleep")]).splitlines() == [
        "z is 8 fusions, +1 over the baseline 7 fusions",
        "likely cause: a sleep",
        "2 metrics have no baseline (--perf-strict): pytest --perf-save records them",
    ]


def test_undecided_metrics_are_named_after_those_that_got_worse():
    undecided = [gate(name, strict="inconclusive", to_settle="more time") for name in "abc"]
    assert failure(undecided[:1]).splitlines() == [
        "a is 8 fusions, +1 over the baseline 7 fusions; fails because it is undecided (--perf-strict=inconclusive)",
        "to settle it: more time",
    ]
    new = gate("n", source=None, strict="new")
    assert failure([new, *undecided]).splitlines()[2:] == [
        "also undecided: b, c",
        "1 metric has no baseline (--perf-strict): pytest --perf-save records it",
    ]
    assert failure([*undecided, gate("z", cause="a sleep")]).splitlines() == [
        "z is 8 fusions, +1 over the baseline 7 fusions",
        "likely cause: a sleep",
        "also undecided: a, b, c",
    ]


def test_the_closing_section_has_what_the_message_left_out(project, perf_test):
    records = [f"perf.record('metric {number}', {{}}, unit='x', kind='count')" for number in range(7)]
    perf_test(*[line.format(7) for line in records])
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    perf_test(*[line.format(8) for line in records])
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    message, _, closing = result.stdout.str().partition("= FAILURES =")[2].partition("= perfsuite =")
    assert "metric 6" not in message
    assert "metric 6 is 8 x, +1 over the baseline 7 x" in closing


# Tracebacks.

RECOMPILES = """
from steps import *

def helper(size):
    step(state(), batch(size))

def test_step(compile_counter):
    step(state(), batch(8))
    batch(9)
    with compile_counter.forbid():
        helper(9)
"""


def test_a_recompilation_is_shown_at_the_users_line_without_the_frames_of_jax(project):
    project.makepyfile(test_step=RECOMPILES)
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">*helper(9)", ">*step(state(), batch(size))", "test_step.py:4: RecompilationError"])
    assert "monitoring.py" not in result.stdout.str()
    assert "record_scalar" not in result.stdout.str()


def test_full_trace_has_them(project):
    project.makepyfile(test_step=RECOMPILES)
    result = project.runpytest_inprocess("--full-trace")
    result.assert_outcomes(failed=1)
    assert "monitoring.py" in result.stdout.str()


def test_a_transfer_is_shown_at_the_users_line(project, perf_test):
    perf_test("loss = jnp.ones(())", "with perf.no_transfers():", "    float(loss)")
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">           float(loss)", "test_step.py:6: TransferError"])
    assert "array.py" not in result.stdout.str()


def test_of_other_errors_every_frame_is_shown(project, perf_test):
    perf_test("import equinox", "equinox.filter_jit(None)(1)")
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    assert "site-packages/equinox" in result.stdout.str()
