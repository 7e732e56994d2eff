"""What git prints may be anything: it is read, or refused in words that name the command, and nothing else.

Each reader gets what git prints in a real repository, with edits, and bytes of no meaning.
`PERFSUITE_FUZZ=10000 pytest tests/properties/test_git_answers.py` tries more of it.
"""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.git_project import GitProject, count

from perfsuite import git as git_module
from perfsuite.against import worktrees
from perfsuite.against.sides import SideFailed
from perfsuite.against.tree import Tree
from perfsuite.bisecting import commits as commits_module
from perfsuite.bisecting.commits import Commits
from perfsuite.bisecting.found import BisectFailed
from perfsuite.bisecting.search import search
from perfsuite.git import Commit, GitError, Repository
from perfsuite.starting.project import PytestSettings, project_of
from properties.edits import EXAMPLES, edited_bytes, outcome

fuzzed = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
PATH = "baselines/cpu.json"


class Answering(Repository):
    """A repository whose git prints `answer` to whatever is asked, once it is there. `printed` is what it did print."""

    answer: bytes | None = None

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.printed: dict[tuple[str, ...], bytes] = {}

    def _bytes(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return super()._bytes(*arguments, stdin=stdin) if self.answer is None else self.answer


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A repository with a merge and a submodule."""
    root = tmp_path_factory.mktemp("git") / "project"
    project = GitProject(root)
    project.save({"step": count(1)}, "With an é")
    project.git("checkout", "--quiet", "-b", "branch")
    project.commit("On a branch\n\nMore of it.")
    project.git("checkout", "--quiet", "main")
    project.save({"step": count(2)})
    project.git("merge", "--quiet", "--no-ff", "--message", "Merge", "branch")
    inside = GitProject(root / "inside")
    inside.commit("Inside")
    project.commit("A submodule")
    return root


@pytest.fixture
def repository(root):
    return Answering(root)


def answers(repository: Answering, *arguments: str) -> st.SearchStrategy[bytes]:
    """What git may print where this is asked."""
    if arguments not in repository.printed:
        repository.answer = None
        repository.printed[arguments] = repository._bytes(*arguments)
    printed = repository.printed[arguments]
    assert printed
    return st.just(printed) | edited_bytes(printed) | edited_bytes(printed) | st.binary(max_size=60)


LOG = ("rev-list", "--first-parent", "--encoding=UTF-8", git_module._FORMAT, "HEAD")


def is_safe(commit: Commit) -> bool:
    """Whether all that a commit prints is of one line."""
    return all(text.isprintable() for text in (commit.id, commit.short, commit.day, commit.subject, commit.title))


@fuzzed
@given(data=st.data())
def test_commits_are_read_or_refused(data, repository):
    repository.answer = data.draw(answers(repository, *LOG))
    found, error = outcome(GitError, repository.commits, PATH)
    assert "git rev-list: its answer cannot be read" in str(error) if error else all(map(is_safe, found))


@fuzzed
@given(data=st.data())
def test_a_commit_is_read_or_refused(data, repository):
    asked = ("show", "--no-patch", "--encoding=UTF-8", git_module._FORMAT, "HEAD", "--")
    repository.answer = data.draw(answers(repository, *asked))
    found, error = outcome(GitError, repository.commit, "HEAD")
    assert "git show: its answer cannot be read" in str(error) if error else is_safe(found)


@fuzzed
@given(data=st.data())
def test_lists_of_files_and_hashes_are_texts(data, repository):
    for ask, arguments in (
        (lambda: repository.files("HEAD", "baselines/"), ("ls-tree", "-z", "--name-only", "--full-tree", "HEAD")),
        (lambda: [repository.commit_id("HEAD")], ("rev-parse", "HEAD")),
    ):
        repository.answer = data.draw(answers(repository, *arguments))
        assert all(isinstance(each, str) for each in ask())


@pytest.fixture
def commits(root):
    return Commits(Answering(root), "HEAD~3", "HEAD")


@fuzzed
@given(data=st.data())
def test_a_graph_of_commits_can_be_searched_or_is_refused(data, commits):
    arguments = ("rev-list", "--topo-order", "--reverse", "--parents", commits.newer, f"^{commits.older}", "--")
    commits._repository.answer = data.draw(answers(commits._repository, *arguments))
    graph, error = outcome(BisectFailed, commits.graph)
    if error:
        assert "git rev-list: its answer cannot be read" in str(error)
    else:
        assert search(graph, commits.newer, lambda id, left: "new")
        assert all(isinstance(each, str) for each in commits.parents(commits.newer))


@fuzzed
@given(data=st.data())
def test_what_is_told_of_a_commit_is_printable_or_refused(data, commits):
    format = f"--format={commits_module._FIELDS}"
    arguments = ("rev-list", "--max-count=1", "--encoding=UTF-8", format, "HEAD", "--")
    commits._repository.answer = data.draw(answers(commits._repository, *arguments))
    about, error = outcome(BisectFailed, commits.about, "HEAD")
    if error:
        assert "git rev-list: its answer cannot be read" in str(error)
    else:
        assert all(line.isprintable() for line in (about.author, about.day, *about.stat, *about.message.split("\n")))
        assert isinstance(commits.name("HEAD"), str)
    assert isinstance(commits._merge_base(), str)


@fuzzed
@given(data=st.data())
def test_only_worktrees_of_ended_processes_are_removed(data, repository, monkeypatch):
    reason = worktrees._REASON.format(process=999999999, host=socket.gethostname())
    listed = f"worktree /a\nHEAD a1\nbranch refs/heads/main\n\nworktree /b\nHEAD b2\ndetached\nlocked {reason}\n\n"
    removed = []
    monkeypatch.setattr(worktrees, "_remove", lambda repository, place: removed.append(place))
    monkeypatch.setattr(worktrees, "_runs", lambda process: process != 999999999)
    repository.answer = data.draw(edited_bytes(listed.encode()) | st.binary(max_size=60))
    worktrees._remove_left(repository)
    assert len(removed) <= repository.answer.count(b"999999999")
    assert all(os.fspath(place).encode("utf-8", "replace") for place in removed)


@fuzzed
@given(data=st.data())
def test_submodules_are_read_or_refused(data, repository):
    repository.answer = data.draw(answers(repository, "ls-tree", "-r", "-z", "--full-tree", "HEAD"))
    found, error = outcome((GitError, SideFailed), lambda: list(worktrees._submodules(repository, "HEAD")))
    assert str(error) if error else all(inside.folder.is_dir() for _, inside, _ in found)


@fuzzed
@given(data=st.data())
def test_files_of_the_working_tree_are_paths(data, root, repository):
    tree = Tree(root, root, (root,), (), root)
    repository.answer = data.draw(answers(repository, "ls-files", "-z", "--cached"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Tree, "repository", repository)
        assert all(isinstance(path, Path) for path in tree._files([Path("tests")]))
        assert all(isinstance(name, str) for name in tree.built())


@fuzzed
@given(answer=st.binary(max_size=60))
def test_the_remotes_of_a_project_are_text(answer, root):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Repository, "_bytes", lambda *arguments, **options: answer)
        project = project_of(PytestSettings(root, None, (), (), (), "baselines"))
        assert project.on_github in (True, False)
        assert project.on_gitlab in (True, False)
