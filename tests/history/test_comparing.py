"""`history.comparing`: the gate's rules decide what became of each metric of two files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.git_project import HERE, TEST, count, ratio, with_versions

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.verdict import Part
from perfsuite.history.comparing import OUTCOMES, compare
from perfsuite.measure.metric import Interval

TPU = with_versions(device_kind="TPU v4", processor="", python="")


def outcome(old, new):
    """What is said of one metric."""
    (difference,) = compare(Baselines("cpu", {TEST: {"metric": old}}), Baselines("cpu", {TEST: {"metric": new}}))
    return difference.outcome


def size(value):
    return Entry(value, "bytes", "size", "compiled")


def time(value, half_width=1.0, environment=HERE):
    return Entry(value, "us", "time", "measured", environment, Interval(value - half_width, value + half_width))


def reported(value, source="A paper"):
    return Entry(value, "x", "ratio", "reported", source=source)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (count(3), count(3), "same"),
        (count(3), count(4), "worse"),
        (count(0), count(1), "worse"),
        (count(3, better="higher"), count(4, better="higher"), "better"),
        (count(3), count(3, with_versions(jax="0.11.0")), "same"),
        (size(1000), size(1009), "tolerated"),
        (size(1000), size(1011), "worse"),
        (ratio(1.0), ratio(1.9), "tolerated"),
        (ratio(1.0), ratio(2.1), "worse"),
        (ratio(1.0, 0.1), ratio(2.1, 0.2), "unclear"),
        (ratio(1.0, better="higher"), ratio(0.4, better="higher"), "worse"),
        (ratio(2.2), ratio(1.0), "better"),
        (ratio(1.0), ratio(2.2, environment=with_versions(python="3.13.1", jax="0.11.0")), "worse"),
        (ratio(1.0), ratio(2.2, environment=TPU), "not comparable"),
        (time(100.0), time(190.0), "tolerated"),
        (time(100.0), time(210.0), "worse"),
        (time(210.0), time(100.0), "better"),
        (time(100.0), time(300.0, environment=with_versions(processor="EPYC")), "not comparable"),
        (Entry(5, "calls", "count", "measured", HERE), Entry(9, "calls", "count", "measured", with_versions(python="3.12.0")),
         "not comparable"),
        (count(3), size(3), "not comparable"),
        (count(3), count(3, better="higher"), "not comparable"),
        (reported(1.0), reported(2.0, "Another"), "info"),
        (reported(1.0), ratio(2.0), "not comparable"),
        (Entry(1.0, "s", "info", "compiled"), Entry(9.0, "s", "info", "compiled"), "info"),
    ],
)  # fmt: skip
def test_the_gates_rules_decide(old, new, expected):
    assert outcome(old, new) == expected
    mirrored = {"worse": "better", "better": "worse"}
    assert outcome(new, old) == mirrored.get(expected, expected)


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
    assert {each.outcome for each in compare(file, file)} <= {"same"}


@given(files, files)
def test_the_other_way_round_is_the_mirror(old, new):
    mirrored = {"worse": "better", "better": "worse", "added": "removed", "removed": "added"}
    there = {(each.test, each.name): each.outcome for each in compare(old, new)}
    back = {(each.test, each.name): each.outcome for each in compare(new, old)}
    assert back == {key: mirrored.get(outcome, outcome) for key, outcome in there.items()}
    assert len(there) == len(
        {(test, name) for file in (old, new) for test in file.metrics for name in file.metrics[test]}
    )


@given(files, files)
def test_they_are_sorted_by_outcome_and_then_by_how_much(old, new):
    found = compare(old, new)
    places = [OUTCOMES.index(each.outcome) for each in found]
    assert places == sorted(places)


def test_a_halving_is_as_much_as_a_doubling():
    old = Baselines("cpu", {TEST: {name: count(12) for name in "abc"}})
    new = Baselines("cpu", {TEST: {"a": count(13), "b": count(40), "c": count(20)}})
    assert [each.name for each in compare(old, new)] == ["b", "c", "a"]
