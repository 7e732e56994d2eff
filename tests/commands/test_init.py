"""`perfsuite init`: what it writes, what it leaves alone, and what it refuses."""

import subprocess
from pathlib import Path

import pytest
from support.git_project import ISOLATED

from perfsuite.commands import main

STEP = """
def step(x: float):
    return x

class Model:
    pass

SIZE = 3
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with the module `lib.train`, which imports nothing."""
    for name, value in ISOLATED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src/lib").mkdir(parents=True)
    (tmp_path / "src/lib/train.py").write_text(STEP)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'lib'\nversion = '1'\n")
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git/" not in path.as_posix()
    }


def refused(capsys, name: str) -> str:
    assert main(["init", name]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.removeprefix("perfsuite init: ").strip()


def git(*arguments):
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def test_it_writes_the_test_the_settings_the_ignored_files_and_the_workflow(project, capsys):
    git("init", "--quiet")
    git("remote", "add", "origin", "git@github.com:somebody/lib.git")
    assert main(["init", "lib.train:step"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        "wrote tests/test_perf_step.py",
        "added pyproject.toml: perf_baselines, pythonpath",
        "added .gitignore: .pytest_cache/, perf-report/, baselines/.*.tmp",
        "wrote .github/workflows/perf.yml",
    ]
    assert any("step is not jitted" in line for line in said)
    assert said[-2].endswith("pytest --perf-save tests/test_perf_step.py")
    written = files(project)
    assert b'pythonpath = ["src"]' in written["pyproject.toml"]

    assert main(["init", "lib.train:step"]) == 0
    again = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in again[:4]] == ["left"] * 4
    assert files(project) == written


def test_it_takes_the_places_that_the_project_has(project, capsys):
    (project / "pytest.ini").write_text("[pytest]\ntestpaths = checks\npython_files = check_*.py\npythonpath = src\n")
    (project / "checks").mkdir()
    (project / ".gitignore").write_text("/baselines\n")
    (project / ".gitlab-ci.yml").write_text("mine: {script: [make]}\n")
    git("init", "--quiet")
    assert main(["init", "lib.train:step"]) == 0
    said = capsys.readouterr().out
    assert "wrote checks/check_perf_step.py" in said
    assert "added pytest.ini: perf_baselines\n" in said
    assert "wrote .gitlab/perf.gitlab-ci.yml" in said
    assert "add to .gitlab-ci.yml: include: [{local: .gitlab/perf.gitlab-ci.yml}]" in said
    assert "take baselines/ out of what git ignores" in said
    assert (project / ".gitlab-ci.yml").read_text() == "mine: {script: [make]}\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lib.train.step", "'lib.train.step' is not the name of a function: * perhaps lib.train:step"),
        ("src/lib/train.py:step", "*: perhaps lib.train:step"),
        ("lib.train:", "'lib.train:' is not the name of a function: *"),
        ("lib.trian:step", "lib.trian:step: there is no module lib.trian"),
        ("nowhere:step", "nowhere:step: there is no module nowhere"),
        ("lib.train:stop", "lib.train:stop: the module has no stop: it has step"),
        ("lib.train:Model", "lib.train:Model: Model is a class: name a function"),
        ("lib.train:SIZE", "lib.train:SIZE: SIZE is of type int: name a function"),
        ("lib.broken:step", "lib.broken:step: its import fails: ZeroDivisionError: division by zero at *broken.py:1"),
        ("lib.needy:step", "*its import fails: ModuleNotFoundError: No module named 'not_installed' at *needy.py:1"),
        ("lib.ending:step", "*the process that imports it ended with status 3: *bye*"),
    ],
)
def test_a_function_that_cannot_be_used_is_named_and_nothing_is_written(project, capsys, name, message):
    (project / "src/lib/broken.py").write_text("1 / 0\n")
    (project / "src/lib/needy.py").write_text("import not_installed\n")
    (project / "src/lib/ending.py").write_text("import os\nos.write(1, b'bye')\nos._exit(3)\n")
    before = files(project)
    said = refused(capsys, name)
    pytest.LineMatcher([said]).fnmatch_lines([message.replace("[", "[[]")])
    assert {each for each in files(project) if not each.endswith(".pyc")} == before.keys()


def test_a_folder_that_is_no_project_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "is no project, and json is not in it" in refused(capsys, "json:dumps")
    assert not files(tmp_path)


def test_what_was_written_before_a_failure_is_taken_back(project, capsys):
    (project / ".github").mkdir()
    (project / ".github/workflows").write_text("a file in the place of the folder")
    git("init", "--quiet")
    before = files(project)
    assert ".github/workflows" in refused(capsys, "lib.train:step")
    assert {each for each in files(project) if not each.endswith(".pyc")} == before.keys()
    assert files(project)["pyproject.toml"] == before["pyproject.toml"]
    assert not (project / "tests").exists()


def test_a_configuration_that_pytest_refuses_is_an_error_with_its_words(project, capsys):
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such-option'\n")
    assert "--no-such-option" in refused(capsys, "lib.train:step")
