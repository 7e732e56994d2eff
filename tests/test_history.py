"""`perfsuite.history`: what became of each metric of two files, by the gate's rules, and the saves of a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.git_project import HERE, TEST, GitProject, count, ratio, with_versions

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.verdict import Part, Verdict
from perfsuite.history import NOT_COMMITTED, HistoryError, compare, saves_of
from perfsuite.measure.metric import Interval

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
        (reported(1.0), ratio(2.0), Verdict.NOT_COMPARABLE),
        (Entry(1.0, "s", "info", "compiled"), Entry(9.0, "s", "info", "compiled"), Verdict.INFO),
    ],
)  # fmt: skip
def test_the_gates_rules_decide(old, new, expected):
    assert verdict(old, new) == expected
    mirrored = {Verdict.FAIL: Verdict.IMPROVED, Verdict.IMPROVED: Verdict.FAIL}
    assert verdict(new, old) == mirrored.get(expected, expected)


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
def test_the_other_way_round_is_the_mirror(old, new):
    mirrored = {
        Verdict.FAIL: Verdict.IMPROVED,
        Verdict.IMPROVED: Verdict.FAIL,
        Verdict.NEW: Verdict.MISSING,
        Verdict.MISSING: Verdict.NEW,
    }
    there = {(each.test, each.metric.name): each.verdict for each in compare(old, new)}
    back = {(each.test, each.metric.name): each.verdict for each in compare(new, old)}
    assert back == {key: mirrored.get(verdict, verdict) for key, verdict in there.items()}
    assert len(there) == len(
        {(test, name) for file in (old, new) for test in file.metrics for name in file.metrics[test]}
    )


@given(files, files)
def test_the_gravest_come_first(old, new):
    verdicts = [each.verdict for each in compare(old, new)]
    assert verdicts == sorted(verdicts, reverse=True)


def test_a_halving_is_as_much_as_a_doubling():
    old = Baselines("cpu", {TEST: {name: count(12) for name in "abc"}})
    new = Baselines("cpu", {TEST: {"a": count(13), "b": count(40), "c": count(20)}})
    assert [each.metric.name for each in compare(old, new)] == ["b", "c", "a"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    return GitProject.here(tmp_path / "project", monkeypatch)


def saved(project, since=None):
    """Each save, newest first: its name, and its number of compiles."""
    saves = saves_of(project.root / "baselines" / "cpu.json", since)
    return [(each.name.partition(" (")[0], each.baselines.metrics[TEST]["compiles"].value) for each in saves.sources]


def test_commits_that_cannot_be_read_are_skipped_and_the_newest_is_named(project):
    first = project.save({"compiles": count(2)})
    project.save(b'{\n "schema": 1\n}\n', "Of an older perfsuite")
    project.save(b"<<<<<<< HEAD\n", "Half merged")
    binary = project.save(b"\xff\xfe\x00", "No text")
    (project.root / "baselines" / "cpu.json").unlink()
    project.commit("Deleted")
    last = project.save({"compiles": count(3)})
    assert saved(project) == [(last, 3), (first, 2)]
    (note,) = saves_of(project.root / "baselines" / "cpu.json").notes
    assert f"{binary} (2026-01-01, No text) and 2 older ones" in note


def test_uncommitted_baselines_come_first(project):
    hash = project.save({"compiles": count(2)})
    assert saved(project) == [(hash, 2)]
    project.write({"compiles": count(5)})
    assert saved(project) == [(NOT_COMMITTED, 5), (hash, 2)]
    project.write(b"damaged")
    with pytest.raises(HistoryError, match=r"cpu\.json:1"):
        saved(project)


def test_since_begins_with_the_state_at_that_revision(project):
    project.save({"compiles": count(2)})
    project.save({"compiles": count(3)})
    project.git("tag", "v1.0")
    third = project.save({"compiles": count(4)})
    fourth = project.save({"compiles": count(5)})
    assert saved(project, "v1.0") == [(fourth, 5), (third, 4), ("v1.0", 3)]
    assert saved(project, "HEAD") == [("HEAD", 5)]
    with pytest.raises(HistoryError, match="--since last week: git knows no such revision"):
        saved(project, "last week")


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
