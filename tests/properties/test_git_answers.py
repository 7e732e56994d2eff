"""What git prints may be anything: it is read, or refused in words that name the command, and nothing else.

Each reader gets what git prints in a real repository, with edits, and bytes of no meaning.
`PERFSUITE_FUZZ=10000 pytest tests/properties/test_git_answers.py` tries more of it.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.git_project import GitProject, count

from perfsuite import git as git_module
from perfsuite.git import Commit, GitError, Repository
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

    def _bytes(self, *arguments: str) -> bytes:
        return super()._bytes(*arguments) if self.answer is None else self.answer


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
