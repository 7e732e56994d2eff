"""`perfsuite.git`: how a commit is named, whatever its subject and the user's own settings."""

import pytest
from support.git_project import GitProject, count

from perfsuite.git import Repository


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    return GitProject.here(tmp_path / "project", monkeypatch)


def test_a_commit_is_named_with_its_day_and_subject(project, monkeypatch, tmp_path):
    hash = project.save({"compiles": count(2)}, "Sübject\x1b[31m\x07")
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[log]\n date = relative\n decorate = full\n showSignature = true\n[core]\n pager = false\n"
        "[color]\n ui = always\n[i18n]\n logOutputEncoding = latin1\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    assert Repository(project.root).title("HEAD") == f"{hash} (2026-01-01, Sübject [31m )"


def test_a_file_is_read_from_inside_the_repository_and_by_any_name(project):
    project.save({"compiles": count(2)}, path="sub folder/[x] ü/cpu.json")
    repository = Repository(project.root / "sub folder" / "[x] ü")
    assert repository.prefix == "sub folder/[x] ü/"
    assert repository.files("HEAD", repository.prefix) == ["sub folder/[x] ü/cpu.json"]
    assert b"compiles" in repository.content("HEAD:sub folder/[x] ü/cpu.json")
