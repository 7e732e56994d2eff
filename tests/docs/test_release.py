"""The release: its notes, its version, and what its workflow does in which order."""

import importlib.metadata
import importlib.util

import pytest
from packaging.requirements import Requirement
from support.markdown_blocks import ROOT

from docs.test_workflows import PROJECT, commands, jobs, uses

RELEASE = ROOT / ".github/workflows/release.yml"
CHANGES = (
    "# Changelog\n\n## Unreleased\n\nlater\n\n## 1.2.3 - 2026-01-01\n\n### Added\n\n- this\n\n## 1.2.2\n\n- that\n"
)

OWN_METADATA = 58_500
"""Bytes: an upper bound of what the wheel brings beside the package: the README, the list of files, the licence. pip
wrote 57,970 for 336 modules."""

_spec = importlib.util.spec_from_file_location("release_notes", ROOT / ".ci/release_notes.py")
release_notes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(release_notes)


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    return tmp_path


def test_the_notes_are_the_section_of_the_version(repository):
    assert release_notes.notes("v1.2.3", repository) == "### Added\n\n- this"


def test_a_tag_of_another_version_is_refused(repository):
    with pytest.raises(SystemExit, match=r"the tag is v1\.2\.4, and pyproject\.toml has the version 1\.2\.3"):
        release_notes.notes("v1.2.4", repository)


def test_a_version_without_a_section_is_refused(repository):
    (repository / "CHANGELOG.md").write_text(CHANGES.replace("1.2.3", "1.2.30"))
    with pytest.raises(SystemExit, match=r"no section 1\.2\.3: name its section Unreleased"):
        release_notes.notes("v1.2.3", repository)


def test_the_version_is_in_one_place():
    assert PROJECT["version"] == importlib.metadata.version("perfsuite")
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "perfsuite").rglob("*.py"))
    assert "__version__ =" not in sources


def test_nothing_is_published_that_was_not_built_checked_and_tested():
    each = jobs(RELEASE)
    assert list(each) == ["build", "test", "publish", "notes"]
    assert [job.get("needs") for job in each.values()] == [None, "build", "test", "publish"]
    assert ["check", "--strict", "dist/*"] in commands(RELEASE, "twine")
    assert commands(RELEASE, "check-wheel-contents") == [["dist/*.whl"]]
    assert "rm -r perfsuite" in [step.get("run") for step in each["test"]["steps"]]


def test_only_the_job_that_publishes_can_ask_pypi_and_it_runs_no_code_of_ours():
    each = jobs(RELEASE)
    (publish,) = uses(RELEASE, "pypa/gh-action-pypi-publish")
    assert "password" not in publish.get("with", {})
    assert {name: job.get("permissions") for name, job in each.items()} == {
        "build": None,
        "test": None,
        "publish": {"id-token": "write"},
        "notes": {"contents": "write"},
    }
    assert not [step for step in each["publish"]["steps"] if "run" in step]


def test_perfsuite_needs_no_package_beside_what_jax_and_pytest_bring():
    needed = [Requirement(each) for each in PROJECT["dependencies"]]
    here = {each.name for each in needed if each.marker is None or each.marker.evaluate({"sys_platform": "linux"})}
    assert here == {"jax", "pytest", "packaging"}, "pytest brings packaging"
    assert {each.name for each in needed} - here == {"filelock"}, "Windows has no flock"


def test_perfsuite_takes_under_2_mib_beside_what_jax_and_pytest_bring():
    """What pip unpacks on Linux and macOS, without the bytecode that it makes."""
    own = [path for path in (ROOT / "perfsuite").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in own) < 2 * 2**20 - OWN_METADATA
