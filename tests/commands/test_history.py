"""`perfsuite history`: what it prints, and what it refuses."""

import re
import subprocess

import pytest
from support.git_project import HERE, GitProject, count, ratio, with_versions

from perfsuite.commands import main


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    return GitProject.here(tmp_path / "project", monkeypatch)


def refused(capsys, *arguments):
    """What the command says, having refused."""
    assert main(["history", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def cells(text):
    """The rows of the tables, each as its cells."""
    return [
        re.split(" {2,}", line.strip()) for line in text.splitlines() if line.startswith("  ") and line.endswith("fail")
    ]


def test_each_save_is_compared_with_the_one_before_it(project, capsys):
    newer = with_versions(jax="0.11.0")
    first = project.save({"compiles": count(2), "step": ratio(1.0), "steady": count(1)}, "First")
    second = project.save({"compiles": count(3, newer), "step": ratio(1.01), "steady": count(1, newer)}, "Newer jax")
    third = project.save({"compiles": count(3, newer), "step": ratio(0.5), "new": count(1)}, "Half the time")
    project.write({"compiles": count(4, newer), "step": ratio(0.5), "new": count(1)})
    assert main(["history"]) == 0
    head, now, half, jax = re.split(r"\n\n(?=\S.* -> )", capsys.readouterr().out)
    assert head == "baselines/cpu.json: 4 saves"
    assert now.startswith(f"{third} (2026-01-01, Half the time) -> not committed\n")
    assert cells(now) == [["compiles", "4 compiles", "3", "+33.3 %", "fail"]]
    assert half.startswith(f"{second} (2026-01-01, Newer jax) -> {third} (2026-01-01, Half the time)\n")
    assert "1 improved" in half
    assert "1 new" in half
    assert "1 missing" in half
    assert jax.startswith(f"{first} (2026-01-01, First) -> {second} (2026-01-01, Newer jax)\n")
    assert "jax 0.10.2 -> 0.11.0 (of 2 metrics)" in jax
    assert cells(jax) == [["compiles", "3 compiles", "2", "+50 %", "fail"]]
    assert jax.endswith("1 fail, 2 pass\n")


def test_subjects_do_nothing_to_the_terminal(project, capsys):
    project.save({"compiles": count(2, HERE)})
    project.save({"compiles": count(3, HERE)}, "\x1b[31mred\x07")
    main(["history"])
    output = capsys.readouterr().out
    assert "[31mred" in output
    assert "\x1b" not in output
    assert "\x07" not in output


def test_a_file_that_no_commit_has_is_refused(project, capsys):
    project.write({"compiles": count(2)})
    assert "no commit has this file: `git add` and commit it" in refused(capsys)
    project.commit()
    assert "baselines/tpu.json: no such file, here or in git" in refused(capsys, "baselines/tpu.json")
    assert "nowhere: no such folder" in refused(capsys, "nowhere/cpu.json")
    assert "baselines is a folder" in refused(capsys, "baselines")


def test_no_repository_and_no_git_are_refused(project, capsys, tmp_path, monkeypatch):
    project.save({"compiles": count(2)})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "cpu.json").write_bytes((project.root / "baselines" / "cpu.json").read_bytes())
    monkeypatch.chdir(outside)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert "is not in a git repository" in refused(capsys, "cpu.json")
    monkeypatch.setenv("PATH", "")
    assert "git is not installed, or not on the PATH" in refused(capsys, "cpu.json")


def test_a_shallow_clone_says_how_to_fetch_the_rest(project, capsys, tmp_path, monkeypatch):
    for value in (2, 3, 4):
        project.save({"compiles": count(value)})
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=2", f"file://{project.root}", str(clone)], check=True, capture_output=True
    )
    monkeypatch.chdir(clone)
    assert main(["history"]) == 0
    output = capsys.readouterr().out
    assert "2 saves" in output
    assert "git fetch --unshallow" in output
