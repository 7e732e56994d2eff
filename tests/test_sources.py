"""`perfsuite.sources`: what became of each metric of two files, by the gate's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.git_project import HERE, TEST, count, ratio, with_versions

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.verdict import Part, Verdict
from perfsuite.measure.metric import Interval
from perfsuite.sources import compare

TPU = with_versions(device_kind="TPU v4", processor="", python="")


def verdict(old, new):
    """What is said of one metric."""
    (difference,) = compare(Baselines("cpu", {TEST: {"metric": old}}), Baselines("cpu", {TEST: {"metric": new}}))
    return difference.verdict


def size(value):
    return Entry(value, "bytes", "size", "compiled")


def time(value, half_width=1.0, environment=HERE):
    return Entry(value, "us", "time", "measured", environment, Interval(value - half_width, value + half_width))


def reported(value, source="A paper"):
    return Entry(value, "x", "ratio", "reported", source=source)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (count(3), count(3), Verdict.PASS),
        (count(3), count(4), Verdict.FAIL),
        (count(0), count(1), Verdict.FAIL),
        (count(3), count(3, with_versions(jax="0.11.0")), Verdict.PASS),
        (ratio(1.0), ratio(2.1), Verdict.FAIL),
        (ratio(1.0, 0), ratio(2.1, 0), Verdict.FAIL),
        (ratio(1.0, 0.1), ratio(2.1, 0.2), Verdict.INCONCLUSIVE),
        (ratio(1.0, better="higher"), ratio(0.4, better="higher"), Verdict.FAIL),
        (ratio(2.2), ratio(1.0), Verdict.IMPROVED),
        (ratio(1.0), ratio(2.2, environment=with_versions(python="3.13.1", jax="0.11.0")), Verdict.FAIL),
        (time(210.0), time(100.0), Verdict.IMPROVED),
        (time(100.0), time(300.0, environment=with_versions(processor="EPYC")), Verdict.NOT_COMPARABLE),
        (Entry(5, "calls", "count", "measured", HERE), Entry(9, "calls", "count", "measured", with_versions(python="3.12.0")),
         Verdict.NOT_COMPARABLE),
        (count(3), size(3), Verdict.NOT_COMPARABLE),
        (count(3), count(3, better="higher"), Verdict.NOT_COMPARABLE),
        (reported(1.0), reported(2.0, "Another"), Verdict.INFO),
        (reported(1.0), ratio(2.0), Verdict.INFO),
        (ratio(2.0), reported(1.0), Verdict.INFO),
        (Entry(1.0, "s", "info", "compiled"), Entry(9.0, "s", "info", "compiled"), Verdict.INFO),
    ],
)  # fmt: skip
def test_the_gates_rules_decide(old, new, expected):
    assert verdict(old, new) == expected


def test_fewer_lost_donations_are_no_improvement():
    before, after = (Baselines("cpu", {TEST: {"program lost donations": count(lost)}}) for lost in (1, 0))
    assert [each.verdict for each in compare(before, after)] == [Verdict.PASS]
    assert [each.verdict for each in compare(after, before)] == [Verdict.FAIL]


def test_parts_that_grew_are_named():
    old = Baselines("cpu", {TEST: {"fusions": Entry(5, "fusions", "count", "compiled", detail={"loop": 2, "kind": 3})}})
    new = Baselines("cpu", {TEST: {"fusions": Entry(7, "fusions", "count", "compiled", detail={"loop": 4, "kind": 3})}})
    (difference,) = compare(old, new)
    assert difference.grown == (Part("loop", 2),)
    assert compare(new, old)[0].grown == ()


entries = st.one_of(
    st.builds(count, st.integers(0, 5)),
    st.builds(size, st.integers(0, 10**6)),
    st.builds(
        ratio,
        st.floats(0.1, 10),
        st.sampled_from([0, 0.01, 0.5]),
        st.sampled_from([HERE, TPU]),
        better=st.sampled_from(["lower", "higher"]),
    ),
    st.builds(time, st.floats(1, 1e6), st.sampled_from([0.5, 100.0]), st.sampled_from([HERE, with_versions(x64=True)])),
    st.builds(reported, st.floats(0.1, 10)),
    st.builds(lambda value: Entry(value, "s", "info", "compiled"), st.floats(-1e6, 1e6)),
)
files = st.builds(
    Baselines,
    st.just("cpu"),
    st.dictionaries(
        st.sampled_from(["test_a", "test_b"]),
        st.dictionaries(st.sampled_from(["x", "y", "z"]), entries, min_size=1),
    ),
)


@given(files)
def test_a_file_does_not_differ_from_itself(file):
    assert {each.verdict for each in compare(file, file)} <= {Verdict.PASS, Verdict.INFO}


@given(files, files)
def test_every_metric_of_either_file_has_one_verdict(old, new):
    verdicts = {(each.test, each.metric.name): each.verdict for each in compare(old, new)}
    both = {(test, name) for file in (old, new) for test in file.metrics for name in file.metrics[test]}
    assert verdicts.keys() == both
    gone = {key for key, verdict in verdicts.items() if verdict == Verdict.MISSING}
    back = {(each.test, each.metric.name): each.verdict for each in compare(new, old)}
    assert gone == {key for key, verdict in back.items() if verdict == Verdict.NEW}


@given(files, files)
def test_the_gravest_come_first(old, new):
    verdicts = [each.verdict for each in compare(old, new)]
    assert verdicts == sorted(verdicts, reverse=True)


def test_what_changed_most_comes_first():
    old = Baselines("cpu", {TEST: {name: count(12) for name in "abc"}})
    new = Baselines("cpu", {TEST: {"a": count(13), "b": count(40), "c": count(20)}})
    assert [each.metric.name for each in compare(old, new)] == ["b", "c", "a"]


def test_a_test_of_two_targets_is_compared_by_its_other_parameters():
    def file(device, tests):
        return Baselines(device, {f"t.py::{test}": {"flops": Entry(3, "FLOP", "size", "compiled")} for test in tests})

    old = file(
        "tpu-v5e", ["test[tpu-v5e]", "test[8-tpu-v5e-bf16]", "test[tpu-v5em]", "test_gone[tpu-v5e]", "test_plain"]
    )
    new = file("gpu-h100", ["test[gpu-h100]", "test[8-gpu-h100-bf16]", "test[gpu-h100m]", "test_plain"])
    verdicts = {each.test.removeprefix("t.py::"): each.verdict for each in compare(old, new)}
    assert [test for test, verdict in verdicts.items() if verdict == Verdict.PASS] == [
        "test[8-gpu-h100-bf16]",
        "test[gpu-h100]",
        "test_plain",
    ]
    missing = [test for test, verdict in verdicts.items() if verdict == Verdict.MISSING]
    assert missing == ["test[tpu-v5em]", "test_gone[tpu-v5e]"]
