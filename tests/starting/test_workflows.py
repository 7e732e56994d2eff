"""The workflow that is written: what it installs, and with which Python."""

import sys

import pytest
import yaml

from perfsuite.measure import installed
from perfsuite.starting.project import Project, PytestSettings
from perfsuite.starting.workflows import what_is_missing, workflow

OF_INDEX: dict = {}
OF_REPOSITORY = {"url": "https://example.org/p.git", "vcs_info": {"vcs": "git", "commit_id": "1a2b"}}
OF_FOLDER = {"url": "file:///home/p", "dir_info": {}}


@pytest.fixture
def project(tmp_path):
    """A project that pip can install."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'lib'\nversion = '1'\n")
    return Project(PytestSettings(tmp_path, None, (), (), (), "baselines"), tmp_path, "")


def steps(project):
    return yaml.safe_load(workflow(project, "perf.yml"))["jobs"]["gate"]["steps"]


def script(project):
    return yaml.safe_load(workflow(project, "perf.gitlab-ci.yml"))["perf"]["script"]


@pytest.mark.parametrize(
    ("origin", "required", "asked"),
    [
        (OF_INDEX, "perfsuite[report]", False),
        (OF_REPOSITORY, "perfsuite[report] @ git+https://example.org/p.git@1a2b", False),
        (OF_FOLDER, "perfsuite[report] @ $PERFSUITE", True),
    ],
    ids=["of an index", "of a repository", "of a folder"],
)
def test_it_installs_perfsuite_from_where_it_came(project, monkeypatch, origin, required, asked):
    monkeypatch.setattr(installed, "_origin", lambda: origin)
    line = f'pip install -e . "{required}"'
    (step,) = (each for each in steps(project) if each.get("run", "").startswith("pip"))
    assert step["run"] == script(project)[0] == line
    assert step.get("env") == ({"PERFSUITE": "${{ vars.PERFSUITE }}"} if asked else None)
    assert any("set the variable PERFSUITE" in each for each in what_is_missing(project)) == asked


def test_it_runs_the_python_that_saves_the_baselines(project):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (step,) = (each for each in steps(project) if "setup-python" in each.get("uses", ""))
    assert step["with"]["python-version"] == version
    assert f"image: python:{version} " in workflow(project, "perf.gitlab-ci.yml")


def test_a_project_that_pip_cannot_install_is_not_installed(project, monkeypatch):
    monkeypatch.setattr(installed, "_origin", lambda: OF_INDEX)
    (project.root / "pyproject.toml").unlink()
    assert script(project)[0] == 'pip install "perfsuite[report]"'
    assert what_is_missing(project) == [
        "add to the workflow's `pip install` what your project needs: no file of it says that"
    ]
    (step,) = (each for each in steps(project) if "setup-python" in each.get("uses", ""))
    assert set(step["with"]) == {"python-version"}
    (project.root / "requirements.txt").write_text("jax\n")
    assert script(project)[0] == 'pip install -r requirements.txt "perfsuite[report]"'
    assert what_is_missing(project) == []
