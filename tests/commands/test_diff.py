"""`perfsuite diff`: what differs between two baseline files, by the gate's own rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.git_project import HERE, ISOLATED, TEST, GitProject, count, ratio, with_versions

from perfsuite.commands import main
from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_format import encode
from perfsuite.gate.verdict import Part
from perfsuite.history.comparing import OUTCOMES, compare
from perfsuite.measure.measurement import Interval

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


# The rules.


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
        (ratio(1.0), ratio(1.04), "tolerated"),
        (ratio(1.0), ratio(1.06), "worse"),
        (ratio(1.0), ratio(1.0501), "unclear"),
        (ratio(1.0, 0.1), ratio(1.2, 0.14), "unclear"),
        (ratio(1.0, better="higher"), ratio(0.9, better="higher"), "worse"),
        (ratio(1.2), ratio(1.0), "better"),
        (ratio(1.0), ratio(1.2, environment=with_versions(python="3.13.1", jax="0.11.0")), "worse"),
        (ratio(1.0), ratio(1.2, environment=TPU), "not comparable"),
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


# The command.


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with `baselines/cpu.json` tagged v1.0, which is the current folder."""
    for name, value in ISOLATED.items():
        monkeypatch.setenv(name, value)
    project = GitProject(tmp_path / "project")
    monkeypatch.chdir(project.root)
    project.save({"compiles": count(2), "ratio": ratio(1.0), "gone": count(1)})
    project.git("tag", "v1.0")
    return project


def diff(capsys, *arguments, status=0):
    """What the command prints."""
    assert main(["diff", *arguments]) == status
    return capsys.readouterr().out.splitlines()


def refused(capsys, *arguments):
    """What the command says, having refused."""
    assert main(["diff", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["v1.0:baselines/cpu.json", "baselines/cpu.json"],
        ["v1.0", "baselines/cpu.json"],
        ["v1.0"],
        ["v1.0", "baselines"],
        ["v1.0:baselines/cpu.json", "HEAD:baselines/cpu.json"],
        ["old/cpu.json", "baselines/cpu.json"],
        ["old", "baselines"],
    ],
    ids=" ".join,
)
def test_two_files_or_revisions_are_held_against_each_other(project, capsys, arguments):
    project.write({"compiles": count(2), "ratio": ratio(1.0), "gone": count(1)}, "old/cpu.json")
    newer = with_versions(jax="0.11.0")
    project.save({"compiles": count(3, newer), "ratio": ratio(0.9, environment=newer), "new": count(1, newer)})
    lines = diff(capsys, *arguments)
    assert lines[0].endswith("cpu.json")
    assert lines[1:] == [
        "versions: jax 0.10.2 -> 0.11.0 (of 2 metrics)",
        "",
        "1 worse",
        f"  +50 %  2 -> 3 compiles  compiles  {TEST}",
        "",
        "1 better",
        f"  -10 %  1 [0.998, 1.002] -> 0.9 [0.898, 0.902] x  ratio  {TEST}",
        "",
        "1 added",
        f"  1 metric  {TEST}",
        "",
        "1 removed",
        f"  1 metric  {TEST}",
        "",
        "1 worse, 1 better, 1 added, 1 removed",
    ]


def test_only_with_fail_on_worse_is_the_status_1(project, capsys):
    assert diff(capsys, "v1.0", "--fail-on-worse")[-1] == "3 the same"
    project.write({"compiles": count(3), "ratio": ratio(1.0), "gone": count(1)})
    assert diff(capsys, "v1.0")[-1] == "1 worse, 2 the same"
    diff(capsys, "v1.0", "--fail-on-worse", status=1)
    diff(capsys, "v1.0", "baselines", "ratio", "--fail-on-worse")
    project.write({"compiles": count(1), "ratio": ratio(1.0), "gone": count(1)})
    diff(capsys, "v1.0", "--fail-on-worse")


def test_what_cannot_be_compared_is_listed_with_the_reason(project, capsys):
    project.write({"compiles": size(2), "ratio": ratio(2.0, environment=TPU), "gone": count(1)})
    lines = diff(capsys, "v1.0", "baselines/cpu.json")
    assert lines[lines.index("2 not comparable") + 2] == "      was count in compiles, is size in bytes"
    assert lines[lines.index("2 not comparable") + 4] == "      device kind differs (cpu, now TPU v4)"


def test_two_devices_are_compared_where_that_says_something(project, capsys):
    project.write({"compiles": count(3, TPU), "ratio": ratio(1.0, environment=TPU)}, "baselines/tpu-v4.json")
    lines = diff(capsys, "baselines/cpu.json", "baselines/tpu-v4.json")
    assert lines[1].startswith("different devices, cpu and tpu-v4: counts and sizes of programs are compared")
    assert lines[-1] == "1 worse, 1 not comparable, 1 removed"


def test_a_file_that_came_or_went_is_said(project, capsys):
    project.write({"compiles": count(3, TPU)}, "baselines/tpu-v4.json")
    lines = diff(capsys, "v1.0")
    assert "v1.0 (no tpu-v4.json) -> baselines/tpu-v4.json" in lines
    (project.root / "baselines" / "cpu.json").unlink()
    assert "v1.0:baselines/cpu.json -> baselines (no cpu.json)" in diff(capsys, "v1.0")


def test_all_lists_what_is_the_same_too(project, capsys):
    lines = diff(capsys, "v1.0", "--all")
    assert "3 the same" in lines
    assert sum(line.endswith(TEST) for line in lines) == 3


def test_what_is_neither_a_file_nor_a_revision_is_refused(project, capsys, tmp_path, monkeypatch):
    assert "nope: neither a file nor a revision that git knows" in refused(capsys, "nope")
    assert "nope: neither a file nor a revision that git knows" in refused(capsys, "nope", "baselines/cpu.json")
    assert "git knows no revision 'nope'" in refused(capsys, "nope:baselines/cpu.json", "baselines/cpu.json")
    assert "there was no such file in 'v1.0'" in refused(capsys, "v1.0:cpu.json", "baselines/cpu.json")
    assert "nope.json: no such file" in refused(capsys, "v1.0", "nope.json")
    assert "baselines is a folder, and baselines/cpu.json a file" in refused(capsys, "baselines/cpu.json")
    project.save({"false alarms": count(2)}, path="baselines/calibration-cpu.json")
    assert "a calibration, and no baselines" in refused(
        capsys, "v1.0:baselines/cpu.json", "baselines/calibration-cpu.json"
    )
    assert "calibration" not in "".join(diff(capsys, "v1.0"))
    project.save(b"<<<<<<< HEAD\n")
    assert "baselines/cpu.json:1: unresolved merge conflict" in refused(capsys, "v1.0")
    damaged = refused(capsys, "v1.0:baselines/cpu.json", "HEAD:baselines/cpu.json")
    assert "HEAD:baselines/cpu.json: line 1: unresolved merge conflict" in damaged
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "cpu.json").write_bytes(encode(Baselines("cpu")))
    monkeypatch.chdir(outside)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert "v1.0: no such file, and as a revision:" in refused(capsys, "v1.0", "cpu.json")
