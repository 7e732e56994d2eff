"""What perfsuite asks git: what a file held in a commit, and what else `run` is given.

It runs the git executable, which is there wherever baselines are under version control, reads every kind of repository
(worktrees, partial clones, alternates, SHA-256) and keeps its plumbing formats stable. GitPython runs the same
executable; pygit2 is a second implementation, too much for two questions.
"""

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


class GitError(Exception):
    """git cannot answer: the message says what perfsuite asked for, what is wrong and what to do."""


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

    def content(self, name: str) -> bytes | None:
        """The content of a file (`revision:path`); None where there is none."""
        try:
            return self._bytes("cat-file", "blob", name)
        except GitError:
            return None

    def title(self, commit: str) -> str:
        """How a message names a commit: `1a2b3c4 (2026-11-21, its subject)`."""
        # Unlike `git show`, it ignores the user's settings (dates, signatures). The full hash stands above.
        text = self.run("rev-list", "--max-count=1", "--encoding=UTF-8", "--format=%h (%as, %s)", commit, "--")
        line = text.strip().rpartition("\n")[2]
        return printable(line, " ")  # no character of a subject may control the terminal

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
