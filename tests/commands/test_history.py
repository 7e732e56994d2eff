"""`perfsuite history`: what it prints, and what it refuses."""

import re
import subprocess
import sys

import pytest
from support.git_project import HERE, TEST, GitProject, count, with_versions

from perfsuite.commands import main
from perfsuite.gate.baseline import Entry
from perfsuite.measure.installed import install


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


def test_a_step_is_printed_with_its_commit_change_and_version(project, capsys):
    before, after = HERE, with_versions(jax="0.11.0", equinox="0.14.0")
    project.save({"compiles": count(2, before), "steady": count(1, before)}, "First")
    project.commit("Work that may be the cause")
    hash = project.save({"compiles": count(3, after), "steady": count(1, after)}, "Save with a newer jax")
    assert main(["history"]) == 0
    output = capsys.readouterr().out
    assert "baselines/cpu.json: 2 versions" in output
    assert "1 of 2 metrics moved" in output
    (row,) = [line for line in output.splitlines() if line.startswith("  compiles")]
    assert re.split(" {2,}", row.strip()) == ["compiles", "2 -> 3 compiles", "+50 %", hash, "▁█", TEST]
    assert f"{hash} (2026-01-01): jax 0.10.2 -> 0.11.0, equinox 0.13.8 -> 0.14.0" in output
    assert f"{hash} 2026-01-01 Ada: 1 worse, within the 2 commits since" in output
    assert "Save with a newer jax" in output
    assert "equinox 0.13.8 -> 0.14.0, with 1 metric that moved" in output


def test_a_pattern_and_kinds_choose_what_is_followed(project, capsys):
    for value in (2, 3):
        project.save(
            {"compiles": count(value), "traces": count(value), "seconds": Entry(value, "s", "info", "compiled")}
        )
    main(["history", "baselines/cpu.json", "trac*"])
    output = capsys.readouterr().out
    assert "1 of 1 metric moved" in output
    assert "  compiles" not in output
    main(["history", "baselines"])
    assert "1 metric of other kinds left out: --kind info" in capsys.readouterr().out
    main(["history", "baselines", "--metrics", "1"])
    assert "and 1 more that moved less: --metrics 2 shows them all" in capsys.readouterr().out
    assert main(["history", "baselines", "no such metric"]) == 2
    assert "no metric ever had this name and kind: no such metric" in capsys.readouterr().err


def test_subjects_do_nothing_to_the_terminal(project, capsys):
    project.save({"compiles": count(2)})
    project.save({"compiles": count(3)}, "\x1b[31mred\x07")
    main(["history"])
    output = capsys.readouterr().out
    assert "[31mred" in output
    assert "\x1b" not in output
    assert "\x07" not in output


def test_a_file_that_no_commit_has_is_refused(project, capsys):
    project.commit("Empty")
    project.write({"compiles": count(2)})
    assert "no commit has this file: `git add` and commit it" in refused(capsys)
    assert "baselines/tpu.json: no such file, neither here nor in any commit" in refused(capsys, "baselines/tpu.json")
    assert "there is no folder" not in refused(capsys, "nowhere/cpu.json")
    assert "nowhere: no such folder" in refused(capsys, "nowhere/cpu.json")


def test_a_repository_without_a_commit_and_no_repository_are_refused(project, capsys, tmp_path, monkeypatch):
    project.write({"compiles": count(2)})
    assert "no commit yet: commit the baselines first" in refused(capsys)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "cpu.json").write_bytes((project.root / "baselines" / "cpu.json").read_bytes())
    monkeypatch.chdir(outside)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert "is not in a git repository" in refused(capsys, "cpu.json")


def test_missing_git_is_reported(project, capsys, monkeypatch):
    project.save({"compiles": count(2)})
    monkeypatch.setenv("PATH", "")
    assert "git is not installed, or not on the PATH" in refused(capsys)


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
    assert "2 versions" in output
    assert "this clone is shallow" in output
    assert "git fetch --unshallow" in output


def test_a_calibration_is_not_followed(project, capsys):
    project.save({"compiles": count(2)}, path="baselines/calibration-cpu.json")
    assert "a calibration, not baselines" in refused(capsys, "baselines/calibration-cpu.json")
    assert "no baseline file in this folder" in refused(capsys)


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5"])
def test_metrics_must_be_a_whole_number_from_1_on(capsys, number):
    with pytest.raises(SystemExit):
        main(["history", "--metrics", number])
    assert "--metrics: needs a whole number from 1 on" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_refused_before_the_history_is_read(project, capsys):
    project.save({"compiles": count(2)})
    assert "is a folder: name a file in it, baselines/history.html" in refused(capsys, "--out", "baselines")
    assert "there is no folder nowhere" in refused(capsys, "--out", "nowhere/page.html")


def test_a_missing_package_of_the_extra_is_named(project):
    project.save({"compiles": count(2)})
    code = "import sys; sys.modules['jinja2'] = None; from perfsuite.commands import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "history", "--out", "page.html"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == f"perfsuite history: jinja2 is not installed: {install('report')}\n"
