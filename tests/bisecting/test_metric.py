"""The metric that is asked for, and what the gate says of it at the ends."""

import pytest
from support.bisecting import CALLS, TEST, count, first_run, time

from perfsuite.bisecting import metric
from perfsuite.bisecting.found import BisectFailed
from perfsuite.bisecting.metric import Wanted, reading


@pytest.mark.parametrize(
    ("text", "test", "name"),
    [
        ("tests/test_a.py::test_step::step host calls", "tests/test_a.py::test_step", "step host calls"),
        (
            "test_a.py::TestStep::test_it[a::b]::f flops @ tpu-v5e",
            "test_a.py::TestStep::test_it[a::b]",
            "f flops @ tpu-v5e",
        ),
        ("test_a.py::test_step::tests", "test_a.py::test_step", "tests"),
        ("test_a.py::test_step", "test_a.py::test_step", ""),
        ("test_a.py::TestStep::test_it", "test_a.py::TestStep::test_it", ""),
        ("test_a.py::test_it[a::b]", "test_a.py::test_it[a::b]", ""),
        ("test_a.py::test_it --perf-size=full::f flops", "test_a.py::test_it --perf-size=full", "f flops"),
    ],
)
def test_a_test_and_its_metric(text, test, name):
    assert reading(text) == Wanted(test, name)


def test_the_size_that_a_baseline_file_adds_is_not_part_of_the_test():
    assert reading("test_a.py::test_it --perf-size=full::f flops").node == "test_a.py::test_it"
    run = first_run({CALLS: count(3)}, f"{TEST} --perf-size=full")
    assert list(metric.of_test(run, TEST).entries) == [CALLS]


@pytest.mark.parametrize("text", ["step host calls", "", "::", "test_a.py::", "::step"])
def test_a_text_without_both_is_an_error(text):
    with pytest.raises(BisectFailed, match="names no metric of a test: give"):
        reading(text)


def recorded(**entries):
    return metric.of_test(first_run({name.replace("_", " "): entry for name, entry in entries.items()}), TEST)


def test_a_metric_that_the_test_does_not_make_is_an_error_with_those_that_it_makes():
    with pytest.raises(BisectFailed, match='makes no metric "step flops" at the good end: it makes "step host calls"'):
        metric.chosen(Wanted(TEST, "step flops"), recorded(step_host_calls=count(3)), None)


def test_without_a_metric_it_is_the_one_that_is_worse():
    good = recorded(a=count(3), b=count(4), c=time(1.0))
    bad = recorded(a=count(3), b=count(5), c=time(9.0))
    assert metric.chosen(Wanted(TEST), good, bad)[0] == "b"
    with pytest.raises(BisectFailed, match=r'name the metric.*these are: "a" \(good 3, bad 4 calls\), "b"'):
        metric.chosen(Wanted(TEST), good, recorded(a=count(4), b=count(5)))
    with pytest.raises(BisectFailed, match="none is"):
        metric.chosen(Wanted(TEST), good, good)


def test_ends_that_do_not_differ_or_are_the_wrong_way_round():
    metric.check_ends(TEST, CALLS, count(3), count(4))
    with pytest.raises(BisectFailed, match=r"better at the bad end \(good 4, bad 3 calls; lower is better\): swap"):
        metric.check_ends(TEST, CALLS, count(4), count(3))
    with pytest.raises(BisectFailed, match=r"does not differ .*: good 4, bad 4 calls"):
        metric.check_ends(TEST, CALLS, count(4), count(4))


def test_the_gates_rule_says_which_end_a_step_is_like():
    assert metric.verdict_of(TEST, CALLS, count(5), count(4))[0] == "bad"
    assert metric.verdict_of(TEST, CALLS, count(3), count(4))[0] == "good"
    other_unit = time(3.0)
    verdict, why = metric.verdict_of(TEST, CALLS, other_unit, count(4))
    assert (verdict, why[:11]) == ("skipped", "recorded as")


def test_a_step_that_was_kept_has_the_same_metrics():
    before = recorded(a=count(3, f=1, g=2))
    texts = before.texts()
    assert {name: entry.detail for name, entry in before.entries.items()} == {"a": {"f": 1, "g": 2}}
    step = metric.Step("x", "good", device="cpu", baselines=texts)
    assert metric.of_step(step).entries == before.entries
