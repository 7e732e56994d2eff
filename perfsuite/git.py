"""What perfsuite asks git: which commits changed a file, what the file held in each, and what else `run` is given.

It runs the git executable, which is there wherever baselines are under version control, reads every kind of repository
(worktrees, partial clones, alternates, SHA-256) and keeps its plumbing formats stable. GitPython runs the same
executable; pygit2 is a second implementation, too much for two questions.
"""

import dataclasses
import os
import subprocess
from pathlib import Path

from perfsuite.measure.words import printable

SHALLOW = (
    "this clone is shallow, so its older commits are missing: "
    "`git fetch --unshallow` fetches them (`fetch-depth: 0` of actions/checkout)"
)

_OF_ANOTHER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
"""Variables that a git hook sets: with them git reads, and writes, another repository or index than the folder's."""

_FORMAT = "--format=%H%x00%h%x00%as%x00%s"


class GitError(Exception):
    """git cannot answer: the message says what perfsuite asked for, what is wrong and what to do."""


@dataclasses.dataclass(frozen=True)
class Commit:
    """A commit: its full hash, the shortened one, the author's day (`2026-11-21`), its subject."""

    id: str
    short: str
    day: str
    subject: str

    @property
    def title(self) -> str:
        """How a message names the commit: `1a2b3c4 (2026-11-21, its subject)`."""
        about = ", ".join(filter(None, (self.day, self.subject)))
        return f"{self.short} ({about})" if about else self.short


class Repository:
    """The git repository around a folder. Raises `GitError` without git, the folder or a repository."""

    def __init__(self, folder: Path):
        self.folder = folder
        if not folder.is_dir():
            raise GitError(f"{folder}: no such folder")
        try:
            prefix = self.run("rev-parse", "--show-prefix")
        except GitError as error:
            if "not a git repository" not in str(error):
                raise
            raise GitError(f"{folder.absolute()} is not in a git repository") from None
        self.prefix = prefix.removesuffix("\n")
        """The folder, relative to the repository's root: empty, or with a slash at its end."""

    @property
    def shallow(self) -> bool:
        """Whether the clone lacks older commits."""
        return self.run("rev-parse", "--is-shallow-repository").strip() == "true"

    def commit_id(self, revision: str) -> str | None:
        """The full hash of the commit that a revision names; None when there is no such revision."""
        try:
            return self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
        except GitError:
            return None

    def dirty(self, besides: str) -> bool:
        """Whether files that git knows differ from the commit, those in the folder `besides` left out."""
        paths = (":/", f":(exclude,top){besides}") if besides else (":/",)
        return bool(self.run("status", "--porcelain", "--untracked-files=no", "--", *paths))

    def files(self, revision: str, folder: str) -> list[str]:
        """The paths of the files directly in a folder of a revision; all paths are relative to the root."""
        return self.run("ls-tree", "-z", "--name-only", "--full-tree", revision, "--", folder or ".").split("\0")[:-1]

    def commits(self, path: str, since: str | None = None) -> list[Commit]:
        """The commits after `since` that changed the file at `path`, relative to the root, newest first.

        They are along first parents: a merge is one commit, and those of the merged branch are none. A file that was
        moved begins anew: `git log --follow` takes a new file for a copy of the most similar one, which in a folder of
        baselines belongs to another device.
        """
        if self.commit_id("HEAD") is None:
            return []
        # Unlike `git log`, it ignores the user's settings (`log.follow`, dates).
        text = self.run(
            "rev-list", "--first-parent", "--encoding=UTF-8", _FORMAT, "HEAD", *([f"^{since}"] if since else []),
            "--", f":(top,literal){path}",
        )  # fmt: skip
        return [_commit("rev-list", line) for line in text.split("\n") if "\0" in line]

    def content(self, name: str) -> bytes | None:
        """The content of a file (`revision:path`); None where there is none."""
        try:
            return self._bytes("cat-file", "blob", name)
        except GitError:
            return None

    def commit(self, id: str) -> Commit:
        """What there is to say of a commit."""
        return _commit("show", self.run("show", "--no-patch", "--encoding=UTF-8", _FORMAT, id, "--").strip("\n"))

    def run(self, *arguments: str) -> str:
        """What git prints. Raises `GitError` with git's own words."""
        return self._bytes(*arguments).decode("utf-8", errors="replace")

    def _bytes(self, *arguments: str) -> bytes:
        # In English, because the constructor looks for "not a git repository"; without locks and without questions.
        outside = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
        environment = {**outside, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
        command = ["git", "--no-pager", "-C", os.fspath(self.folder), *arguments]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment)
        except FileNotFoundError:
            raise GitError("git is not installed, or not on the PATH: install it") from None
        if done.returncode:
            problem = done.stderr.decode("utf-8", errors="replace").strip() or f"exit status {done.returncode}"
            raise GitError(f"git {arguments[0]}: {problem.removeprefix('fatal: ')}")
        return done.stdout


def _commit(asked: str, line: str) -> Commit:
    # Subjects are printed: no character of theirs may control the terminal.
    fields = [printable(field, " ") for field in line.split("\0", 3)]
    if len(fields) != _FORMAT.count("%x00") + 1:
        raise GitError(f"git {asked}: its answer cannot be read ({fields[0]!r:.60} is no line about a commit)")
    return Commit(*fields)
