"""`perfsuite diff`: what it prints of two baseline files, and what it refuses."""

import pytest
from support.git_project import TEST, GitProject, count, ratio, with_versions

from perfsuite.commands import main
from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_file import encode
from perfsuite.report.baselines import difference_lines
from perfsuite.sources import Source, compare

TPU = with_versions(device_kind="TPU v4", processor="", python="")


def size(value):
    return Entry(value, "bytes", "size", "compiled")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with `baselines/cpu.json` tagged v1.0, which is the current folder."""
    project = GitProject.here(tmp_path / "project", monkeypatch)
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
def test_two_files_or_revisions_are_compared(project, capsys, arguments):
    project.write({"compiles": count(2), "ratio": ratio(1.0), "gone": count(1)}, "old/cpu.json")
    newer = with_versions(jax="0.11.0")
    project.save({"compiles": count(3, newer), "ratio": ratio(0.4, environment=newer), "new": count(1, newer)})
    lines = diff(capsys, *arguments)
    assert lines[0].endswith("cpu.json")
    assert lines[1:] == [
        "versions: jax 0.10.2 -> 0.11.0 (of 2 metrics)",
        "",
        "1 fail",
        "metric      value       against  change  verdict",
        TEST,
        "  compiles  3 compiles  2        +50 %   fail",
        "",
        "1 missing",
        f"  1 metric  {TEST}",
        "",
        "1 new",
        f"  1 metric  {TEST}",
        "",
        "1 improved",
        "metric   value                 against  change  verdict",
        TEST,
        "  ratio  0.4 [0.398, 0.402] x  1        -60 %   improved",
        "",
        "1 fail, 1 missing, 1 new, 1 improved",
    ]


def test_only_with_fail_on_worse_is_the_status_1(project, capsys):
    assert diff(capsys, "v1.0", "--fail-on-worse")[-1] == "3 pass"
    project.write({"compiles": count(3), "ratio": ratio(1.0), "gone": count(1)})
    assert diff(capsys, "v1.0")[-1] == "1 fail, 2 pass"
    diff(capsys, "v1.0", "--fail-on-worse", status=1)
    diff(capsys, "v1.0", "baselines", "ratio", "--fail-on-worse")
    project.write({"compiles": count(1), "ratio": ratio(1.0), "gone": count(1)})
    diff(capsys, "v1.0", "--fail-on-worse")


def test_incomparable_metrics_are_listed_with_the_reason(project, capsys):
    project.write({"compiles": size(2), "ratio": ratio(2.0, environment=TPU), "gone": count(1)})
    lines = diff(capsys, "v1.0", "baselines/cpu.json")
    assert [line.strip() for line in lines if line.startswith("      ")] == [
        "device kind differs (cpu, now TPU v4)",
        "recorded as count in compiles (lower is better), now size in bytes (lower is better): "
        "pytest --perf-save replaces it",
    ]


def test_an_added_or_removed_file_is_named(project, capsys):
    project.write({"compiles": count(3, TPU)}, "baselines/tpu-v4.json")
    lines = diff(capsys, "v1.0")
    assert "v1.0 (no tpu-v4.json) -> baselines/tpu-v4.json" in lines
    (project.root / "baselines" / "cpu.json").unlink()
    assert "v1.0:baselines/cpu.json -> baselines (no cpu.json)" in diff(capsys, "v1.0")


def test_what_is_neither_a_file_nor_a_revision_is_refused(project, capsys, tmp_path, monkeypatch):
    assert "nope: neither a file nor a revision that git knows" in refused(capsys, "nope")
    assert "nope: neither a file nor a revision that git knows" in refused(capsys, "nope", "baselines/cpu.json")
    assert "git knows no revision 'nope'" in refused(capsys, "nope:baselines/cpu.json", "baselines/cpu.json")
    assert "there was no such file in 'v1.0'" in refused(capsys, "v1.0:cpu.json", "baselines/cpu.json")
    assert "nope.json: no such file" in refused(capsys, "v1.0", "nope.json")
    assert "baselines is a folder, and baselines/cpu.json a file" in refused(capsys, "baselines/cpu.json")
    project.save(b"<<<<<<< HEAD\n")
    assert "baselines/cpu.json:1: unresolved merge conflict" in refused(capsys, "v1.0")
    damaged = refused(capsys, "v1.0:baselines/cpu.json", "HEAD:baselines/cpu.json")
    assert "HEAD:baselines/cpu.json: line 1: unresolved merge conflict" in damaged
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "cpu.json").write_bytes(encode(Baselines("cpu")))
    monkeypatch.chdir(outside)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert "v1.0: no such file, and no revision:" in refused(capsys, "v1.0", "cpu.json")


def test_the_test_that_changed_most_comes_first_with_all_its_metrics():
    old = Baselines("cpu", {"test_a": {"f": count(10)}, "test_b": {"f": count(10), "g": count(10)}})
    new = Baselines("cpu", {"test_a": {"f": count(12)}, "test_b": {"f": count(40), "g": count(11)}})
    lines = difference_lines(Source("old", old), Source("new", new), compare(old, new))
    assert [line.split()[0] for line in lines if line.startswith(("test_", "  "))] == [
        "test_b",
        "f",
        "g",
        "test_a",
        "f",
    ]


def test_no_repository_and_no_git_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main(["diff", "HEAD:cpu.json", "HEAD:cpu.json"]) == 2
    assert "is not in a git repository" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert main(["diff", "HEAD:cpu.json", "HEAD:cpu.json"]) == 2
    assert "git is not installed, or not on the PATH" in capsys.readouterr().err
