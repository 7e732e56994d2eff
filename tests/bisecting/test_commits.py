"""The commits between two ends, either of which may be the older one."""

import pytest
from support.git_project import GitProject

from perfsuite.bisecting.commits import Commits
from perfsuite.bisecting.found import BisectFailed
from perfsuite.git import Repository


@pytest.fixture
def project(tmp_path):
    made = GitProject(tmp_path)
    for name in ("one", "two", "three"):
        (tmp_path / "code.py").write_text(f"name = {name!r}\n")
        made.commit(f"Make it {name}")
        made.git("tag", name)
    return made


def commits(project, good, bad):
    return Commits(Repository(project.root), good, bad)


def test_the_bad_end_may_be_the_newer_or_the_older_one(project):
    forth, back = commits(project, "one", "three"), commits(project, "three", "one")
    assert (forth.bad_is_newer, back.bad_is_newer) == (True, False)
    assert list(forth.graph().parents) == list(back.graph().parents)
    assert [forth.name(each).partition(" ")[2] for each in forth.graph().parents] == ["Make it two", "Make it three"]


def test_what_git_knows_of_a_commit(project):
    known = commits(project, "one", "three")
    about = known.about(known.bad)
    assert (about.author, about.day, about.message) == ("Ada", "2026-01-01", "Make it three")
    assert about.stat[0].startswith(" code.py | 2 +-")


def test_a_message_cannot_control_the_terminal(project):
    project.git("commit", "--quiet", "--allow-empty", "--message", "Red \x1b[31m it\n\nis")
    known = commits(project, "one", "HEAD")
    assert known.about(known.bad).message == "Red [31m it\n\nis"


@pytest.mark.parametrize(
    ("good", "bad", "why"),
    [
        ("nowhere", "three", "--good nowhere: git knows no such commit"),
        ("one", "nowhere", "--bad nowhere: git knows no such commit"),
        ("three", "HEAD", "are the same commit"),
    ],
)
def test_ends_that_are_none(project, good, bad, why):
    with pytest.raises(BisectFailed, match=why):
        commits(project, good, bad)


def test_ends_on_two_branches_are_told_where_they_part(project):
    base = project.git("rev-parse", "--short=12", "two").strip()
    project.git("checkout", "-q", "-b", "side", "two")
    project.commit("on the side")
    with pytest.raises(BisectFailed, match=f"--good three and --bad side comes after the other.*--good {base}"):
        commits(project, "three", "side")


def test_ends_without_a_commit_in_common(project):
    project.git("checkout", "-q", "--orphan", "other")
    project.commit("another start")
    with pytest.raises(BisectFailed, match="no commit in common"):
        commits(project, "three", "other")


def test_branches_that_began_before_the_older_end_can_be_left_out(project):
    project.git("checkout", "-q", "-b", "side", "one")
    (project.root / "other").write_text("")
    side = project.commit("on the side")
    project.git("checkout", "-q", "main")
    project.git("merge", "-q", "--no-ff", "--no-edit", "side")
    known = commits(project, "two", "HEAD")
    assert any(each.startswith(side) for each in known.graph().parents)
    assert not any(each.startswith(side) for each in known.graph(descendants=True).parents)
