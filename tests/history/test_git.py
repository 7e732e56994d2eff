"""`perfsuite.git`: which commits changed a file, with merges, moves, copies and a user's own settings."""

import pytest
from support.git_project import GitProject, count, followed, moved_steps

from perfsuite.history.reading import read_history


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    return GitProject.here(tmp_path / "project", monkeypatch)


def test_a_merge_is_one_step_and_the_states_of_the_branch_are_none(project):
    first = project.save({"compiles": count(2)})
    project.git("checkout", "--quiet", "-b", "side")
    project.save({"compiles": count(9)}, "On the branch")
    project.save({"compiles": count(4)}, "On the branch too")
    project.git("checkout", "--quiet", "main")
    project.commit("Meanwhile")
    project.minutes += 1
    project.git("merge", "--quiet", "--no-ff", "--message", "Merge side", "side")
    merge = project.git("rev-parse", "--short", "HEAD").strip()
    following = followed(project)
    assert [version.commit.short for version in following.history.versions] == [first, merge]
    assert moved_steps(following) == [("compiles", merge, 2, 4)]


def test_a_move_to_another_folder_is_followed(project):
    project.save({"compiles": count(2)}, path="old place/cpu.json")
    (project.root / "baselines").mkdir()
    project.git("mv", "old place/cpu.json", "baselines/cpu.json")
    project.commit("Moved")
    last = project.save({"compiles": count(3)})
    following = followed(project)
    assert len(following.history.versions) == 3
    assert moved_steps(following) == [("compiles", last, 2, 3)]


def test_a_file_made_as_the_copy_of_another_devices_does_not_inherit_its_history(project):
    """`git log --follow` would take it for one: most of such a file is the same."""
    metrics = {f"metric {number}": count(number) for number in range(50)}
    project.save(metrics, path="baselines/tpu-v4.json")
    made = project.save(metrics)
    assert [version.commit.short for version in followed(project).history.versions] == [made]
    (project.root / "baselines" / "tpu-v4.json").unlink()
    moved = project.save(metrics, "Git takes this for a move", path="baselines/tpu-v5p.json")
    versions = read_history(project.root / "baselines" / "tpu-v5p.json").versions
    assert [version.commit.short for version in versions] == [moved]


def test_the_users_own_settings_of_git_change_nothing(project, monkeypatch, tmp_path):
    project.save({"compiles": count(2)})
    project.save({"compiles": count(3)})
    expected = moved_steps(followed(project))
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[log]\n follow = true\n date = relative\n decorate = full\n showSignature = true\n"
        "[core]\n quotePath = true\n pager = false\n[color]\n ui = always\n[diff]\n renames = copies\n"
        "[i18n]\n logOutputEncoding = latin1\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    assert moved_steps(followed(project)) == expected


def test_a_commit_is_named_with_what_there_is_of_it(project):
    hash = project.save({"compiles": count(2)}, "Subject")
    (version,) = followed(project).history.versions
    assert version.commit.title == f"{hash} (2026-01-01, Subject)"
