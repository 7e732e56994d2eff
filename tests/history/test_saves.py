"""`history.saves`: the saves of a file, and the commits that cannot be read."""

import pytest
from support.git_project import TEST, GitProject, count

from perfsuite.history import HistoryError
from perfsuite.history.saves import NOT_COMMITTED, saves_of


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    return GitProject.here(tmp_path / "project", monkeypatch)


def saved(project, since=None):
    """Each save, newest first: its name, and its number of compiles."""
    saves = saves_of(project.root / "baselines" / "cpu.json", since)
    return [(each.name.partition(" (")[0], each.baselines.metrics[TEST]["compiles"].value) for each in saves.sources]


def test_commits_that_cannot_be_read_are_skipped_and_the_newest_is_named(project):
    first = project.save({"compiles": count(2)})
    project.save(b'{\n "schema": 1\n}\n', "Of an older perfsuite")
    project.save(b"<<<<<<< HEAD\n", "Half merged")
    binary = project.save(b"\xff\xfe\x00", "No text")
    (project.root / "baselines" / "cpu.json").unlink()
    project.commit("Deleted")
    last = project.save({"compiles": count(3)})
    assert saved(project) == [(last, 3), (first, 2)]
    (note,) = saves_of(project.root / "baselines" / "cpu.json").notes
    assert f"{binary} (2026-01-01, No text) and 2 older ones" in note


def test_uncommitted_baselines_come_first(project):
    hash = project.save({"compiles": count(2)})
    assert saved(project) == [(hash, 2)]
    project.write({"compiles": count(5)})
    assert saved(project) == [(NOT_COMMITTED, 5), (hash, 2)]
    project.write(b"damaged")
    with pytest.raises(HistoryError, match=r"cpu\.json:1"):
        saved(project)


def test_since_begins_with_the_state_at_that_revision(project):
    project.save({"compiles": count(2)})
    project.save({"compiles": count(3)})
    project.git("tag", "v1.0")
    third = project.save({"compiles": count(4)})
    fourth = project.save({"compiles": count(5)})
    assert saved(project, "v1.0") == [(fourth, 5), (third, 4), ("v1.0", 3)]
    assert saved(project, "HEAD") == [("HEAD", 5)]
    with pytest.raises(HistoryError, match="--since last week: git knows no such revision"):
        saved(project, "last week")
