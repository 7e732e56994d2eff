"""`perfsuite.git`: which commits changed a file, with merges, copies and a user's own settings."""

import pytest
from support.git_project import GitProject, count

from perfsuite.git import Repository

FILE = "baselines/cpu.json"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    return GitProject.here(tmp_path / "project", monkeypatch)


def commits(project, path=FILE, since=None):
    return [commit.short for commit in Repository(project.root).commits(path, since)]


def test_a_merge_is_one_commit_and_those_of_the_branch_are_none(project):
    first = project.save({"compiles": count(2)})
    project.git("checkout", "--quiet", "-b", "side")
    project.save({"compiles": count(9)}, "On the branch")
    project.save({"compiles": count(4)}, "On the branch too")
    project.git("checkout", "--quiet", "main")
    project.commit("Meanwhile")
    project.minutes += 1
    project.git("merge", "--quiet", "--no-ff", "--message", "Merge side", "side")
    merge = project.git("rev-parse", "--short", "HEAD").strip()
    assert commits(project) == [merge, first]
    assert commits(project, since=first) == [merge]


def test_a_file_made_as_the_copy_of_another_devices_does_not_inherit_its_commits(project):
    """`git log --follow` would take it for one: most of such a file is the same."""
    metrics = {f"metric {number}": count(number) for number in range(50)}
    project.save(metrics, path="baselines/tpu-v4.json")
    made = project.save(metrics)
    assert commits(project) == [made]


def test_the_users_own_settings_of_git_change_nothing(project, monkeypatch, tmp_path):
    project.save({"compiles": count(2)})
    project.save({"compiles": count(3)})
    expected = Repository(project.root).commits(FILE)
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[log]\n follow = true\n date = relative\n decorate = full\n showSignature = true\n"
        "[core]\n quotePath = true\n pager = false\n[color]\n ui = always\n[diff]\n renames = copies\n"
        "[i18n]\n logOutputEncoding = latin1\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    assert Repository(project.root).commits(FILE) == expected


def test_a_commit_is_named_with_its_day_and_subject(project):
    hash = project.save({"compiles": count(2)}, "Subject")
    (commit,) = Repository(project.root).commits(FILE)
    assert commit.title == f"{hash} (2026-01-01, Subject)"


def test_a_file_is_found_from_inside_the_repository_and_by_any_name(project):
    hash = project.save({"compiles": count(2)}, path="sub folder/[x] ü/cpu.json")
    repository = Repository(project.root / "sub folder" / "[x] ü")
    assert repository.prefix == "sub folder/[x] ü/"
    assert [commit.short for commit in repository.commits(f"{repository.prefix}cpu.json")] == [hash]
