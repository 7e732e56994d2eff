"""What perfsuite asks git: which commits changed a file, what the file held in each, and what else `run` is given.

It runs the git executable, which is there wherever baselines are under version control, reads every kind of repository
(worktrees, partial clones, alternates, SHA-256) and keeps its plumbing formats stable. GitPython runs the same
executable; pygit2 is a second implementation, too much for two questions.
"""

import dataclasses
import datetime
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from perfsuite.measure.words import printable

NOT_COMMITTED = "not committed"
"""Stands for the hash of the file in the working tree."""

SHALLOW = (
    "this clone is shallow, so its older commits are missing: "
    "`git fetch --unshallow` fetches them (`fetch-depth: 0` of actions/checkout)"
)

_OF_ANOTHER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
"""Variables that a git hook sets: with them git reads, and writes, another repository or index than the folder's."""

_FORMAT = "--format=%H%x00%h%x00%an%x00%aI%x00%s"


class GitError(Exception):
    """git cannot answer: the message says what perfsuite asked for, what is wrong and what to do."""


@dataclasses.dataclass(frozen=True)
class Commit:
    """A commit, and the path of the file in it. `id` is the full hash, `short` the shortened one.

    The working tree has an empty `id`, and no author, date or subject.
    """

    id: str
    short: str
    author: str
    date: datetime.datetime | None
    subject: str
    path: str

    @property
    def day(self) -> str:
        """The author's date in the author's time zone, `2026-11-21`; empty without a date."""
        return self.date.date().isoformat() if self.date else ""

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

    def commits(self, path: str) -> list[Commit]:
        """The commits that changed the file at `path` (relative to the root), oldest first, along first parents.

        So a merge is one step, and the commits of the merged branch are none. A move to another folder is followed.
        `git log --follow` would also take a new file for a copy of the most similar one, which in a folder of baselines
        belongs to another device.
        """
        if self.commit_id("HEAD") is None:
            raise GitError("this repository has no commit yet: commit the baselines first")
        found: list[Commit] = []
        start: str | None = "HEAD"
        while start is not None:
            newest_first = self._commits(start, path)
            found += newest_first
            start, path = self._moved(newest_first[-1].id, path) if newest_first else (None, path)
        return found[::-1]

    def contents(self, objects: Sequence[str]) -> list[tuple[str, bytes] | None]:
        """The id and the content of each object (`revision:path`); None for one that does not exist."""
        if broken := [name for name in objects if "\n" in name]:
            raise GitError(f"{broken[0]!r}: git cannot be asked for a path with a line break in it")
        answer = self._bytes("cat-file", "--batch", stdin="".join(f"{name}\n" for name in objects).encode())
        try:
            return _objects(answer, len(objects))
        except ValueError as error:
            raise GitError(f"git cat-file: its answer cannot be read ({error})") from None

    def commit(self, id: str) -> Commit:
        """The commit itself, at no path."""
        return _commit("show", self.run("show", "--no-patch", "--encoding=UTF-8", _FORMAT, id, "--").strip("\n"), "")

    def after(self, older: str, newer: str = "HEAD") -> list[str]:
        """The hashes of the commits after `older` up to `newer`, along first parents."""
        return self.run("rev-list", "--first-parent", newer, f"^{older}", "--").split()

    def run(self, *arguments: str) -> str:
        """What git prints. Raises `GitError` with git's own words."""
        return self._bytes(*arguments).decode("utf-8", errors="replace")

    def _commits(self, start: str, path: str) -> list[Commit]:
        """Newest first. `rev-list`, unlike `git log`, ignores the user's settings (`log.follow`, dates)."""
        text = self.run(
            "rev-list", "--first-parent", "--encoding=UTF-8", _FORMAT, start,
            "--", f":(top,literal){path}",
        )  # fmt: skip
        return [_commit("rev-list", line, path) for line in text.split("\n") if "\0" in line]

    def _moved(self, commit: str, path: str) -> tuple[str | None, str]:
        """Where the file was before `commit` created it here: (the parent, the path there), or None for nowhere.

        Only a move that keeps the file's name counts, because the name is the device's.
        """
        parent = self.commit_id(f"{commit}^")
        if parent is not None:
            text = self.run("diff-tree", "-r", "-z", "-M", "--diff-filter=R", "--name-status", parent, commit)
            fields = text.split("\0")
            for old, new in zip(fields[1::3], fields[2::3], strict=False):
                if new == path and PurePosixPath(old).name == PurePosixPath(new).name:
                    return parent, old
        return None, path

    def _bytes(self, *arguments: str, stdin: bytes = b"") -> bytes:
        # In English, because the constructor looks for "not a git repository"; without locks and without questions.
        outside = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
        environment = {**outside, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
        command = ["git", "--no-pager", "-C", os.fspath(self.folder), *arguments]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, env=environment)
        except FileNotFoundError:
            raise GitError("git is not installed, or not on the PATH: install it") from None
        if done.returncode:
            problem = done.stderr.decode("utf-8", errors="replace").strip() or f"exit status {done.returncode}"
            raise GitError(f"git {arguments[0]}: {problem.removeprefix('fatal: ')}")
        return done.stdout


def _commit(asked: str, line: str, path: str) -> Commit:
    # Author and subject are printed: no character of theirs may control the terminal.
    fields = [printable(field, " ") for field in line.split("\0", 4)]
    if len(fields) != _FORMAT.count("%x00") + 1:
        raise GitError(f"git {asked}: its answer cannot be read ({fields[0]!r:.60} is no line about a commit)")
    id, short, author, date, subject = fields
    try:
        when = datetime.datetime.fromisoformat(date)
    except ValueError:  # git gives a damaged date as an empty text
        when = None
    return Commit(id, short, author, when, subject, path)


def _objects(answer: bytes, number: int) -> list[tuple[str, bytes] | None]:
    """The ids and contents in an answer of `git cat-file --batch` about so many objects."""
    found: list[tuple[str, bytes] | None] = []
    at = 0
    for _ in range(number):
        end = answer.index(b"\n", at)
        line, at = answer[at:end], end + 1
        id, *rest = line.split()
        if line.endswith(b" missing") or len(rest) != 2:
            found.append(None)
            continue
        kind, size = rest[0], int(rest[1])
        found.append((id.decode(), answer[at : at + size]) if kind == b"blob" else None)  # else it is a folder
        at += size + 1
    return found
