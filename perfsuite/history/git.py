"""The little that is asked of git: which commits touched a file, and what it held then.

The executable is run, and no library. It is there wherever baselines are under version control, reads every format of
repository that its user's own commands do (worktrees, partial clones, alternates, SHA-256), and answers in the plumbing
formats that do not change. GitPython runs it too, and pygit2 brings a second implementation of all of that for the
sake of two questions.
"""

import dataclasses
import datetime
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

NOT_COMMITTED = "not committed"
"""Stands for the hash of what lies in the working tree."""

SHALLOW = (
    "this clone is shallow, what came before its first commit is not here: "
    "`git fetch --unshallow` brings it (`fetch-depth: 0` of actions/checkout)"
)

_FIELDS = ("%H", "%h", "%an", "%aI", "%s")


class GitError(Exception):
    """git cannot answer: the message says what was asked for, what is wrong and what to do."""


@dataclasses.dataclass(frozen=True)
class Commit:
    """A commit, and where the file lay in it. `id` and `short` are the full and the shortened hash.

    Of what lies in the working tree `id` is empty, and there is no author, subject or date.
    """

    id: str
    short: str
    author: str
    date: datetime.datetime | None
    subject: str
    path: str

    @property
    def day(self) -> str:
        """The author's date in the author's time zone, `2026-11-21`; empty where there is none."""
        return self.date.date().isoformat() if self.date else ""


class Repository:
    """The git repository around a folder. Raises `GitError` where there is no git, no folder or no repository."""

    def __init__(self, folder: Path):
        self.folder = folder
        if not folder.is_dir():
            raise GitError(f"{folder}: no such folder")
        try:
            prefix = self._run("rev-parse", "--show-prefix")
        except GitError as error:
            if "not a git repository" in str(error):
                raise GitError(
                    f"{folder.absolute()} is not in a git repository, and the history of baselines is git's"
                ) from None
            raise
        self.prefix = prefix.removesuffix("\n")
        """The folder as it is seen from the repository's root: empty, or ending with a slash."""

    @property
    def shallow(self) -> bool:
        """Whether the older commits were not fetched."""
        return self._run("rev-parse", "--is-shallow-repository").strip() == "true"

    def commit_id(self, revision: str) -> str | None:
        """The full hash of the commit that a revision names; None when there is none of that name."""
        try:
            return self._run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
        except GitError:
            return None

    def files(self, revision: str, folder: str) -> list[str]:
        """The paths of the files right in a folder (from the root, with a slash at its end) of a revision."""
        return self._run("ls-tree", "-z", "--name-only", "--full-tree", revision, "--", folder or ".").split("\0")[:-1]

    def commits(self, path: str) -> list[Commit]:
        """The commits that changed the file at `path` (from the root), oldest first, along first parents.

        So a merge is one step: the file as it was on this branch, and nothing of what it was on another at the time. A
        move to another folder is followed. `git log --follow` is not used: it also takes the file for a copy of the one
        that it was most like when it was made, which in a folder of baselines is that of another device.
        """
        if self.commit_id("HEAD") is None:
            raise GitError("this repository has no commit yet: commit the baselines first")
        found: list[Commit] = []
        start: str | None = "HEAD"
        while start is not None:
            made = self._commits(start, path)
            found += made
            start, path = self._moved(made[-1].id, path) if made else (None, path)
        return found[::-1]

    def contents(self, objects: Sequence[str]) -> list[tuple[str, bytes] | None]:
        """The id and the content of each object (`revision:path`), None for one that is not there."""
        if broken := [name for name in objects if "\n" in name]:
            raise GitError(f"{broken[0]!r}: git cannot be asked for a path with a line break in it")
        answer = self._bytes("cat-file", "--batch", stdin="".join(f"{name}\n" for name in objects).encode())
        found: list[tuple[str, bytes] | None] = []
        at = 0
        for _ in objects:
            end = answer.index(b"\n", at)
            line, at = answer[at:end], end + 1
            id, *rest = line.split()
            if line.endswith(b" missing") or len(rest) != 2:
                found.append(None)
                continue
            kind, size = rest[0], int(rest[1])
            found.append((id.decode(), answer[at : at + size]) if kind == b"blob" else None)  # or it is a folder
            at += size + 1
        return found

    def after(self, revision: str) -> set[str]:
        """The hashes of the commits on the way from `revision` to HEAD, along first parents."""
        return set(self._run("rev-list", "--first-parent", "HEAD", f"^{revision}", "--").split())

    def between(self, older: str, newer: str) -> int:
        """How many commits lead from one to the other, the newer one included, along first parents."""
        return int(self._run("rev-list", "--first-parent", "--count", newer, f"^{older}", "--"))

    def _commits(self, start: str, path: str) -> list[Commit]:
        """Newest first. `rev-list` heeds none of the options that make `git log` another's (`log.follow`, dates)."""
        text = self._run(
            "rev-list", "--first-parent", "--encoding=UTF-8", f"--format={'%x00'.join(_FIELDS)}", start,
            "--", f":(top,literal){path}",
        )  # fmt: skip
        lines = [line for line in text.split("\n") if "\0" in line]
        return [_commit(line.split("\0", len(_FIELDS) - 1), path) for line in lines]

    def _moved(self, commit: str, path: str) -> tuple[str | None, str]:
        """Where the file lay before the commit that made it: (the parent, the path there), or None for nowhere.

        Only a move that keeps the file's name counts, for the name is that of the device.
        """
        parent = self.commit_id(f"{commit}^")
        if parent is None:
            return None, path
        text = self._run("diff-tree", "-r", "-z", "-M", "--diff-filter=R", "--name-status", parent, commit)
        fields = text.split("\0")
        for old, new in zip(fields[1::3], fields[2::3], strict=False):
            if new == path and PurePosixPath(old).name == PurePosixPath(new).name:
                return parent, old
        return None, path

    def _run(self, *arguments: str) -> str:
        return self._bytes(*arguments).decode("utf-8", errors="replace")

    def _bytes(self, *arguments: str, stdin: bytes = b"") -> bytes:
        # In English, for "not a git repository" is looked for; no lock, no question, whatever the user's settings are.
        environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
        command = ["git", "--no-pager", "-C", os.fspath(self.folder), *arguments]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, env=environment)
        except FileNotFoundError:
            raise GitError("git is not installed, or not on the PATH: the history of baselines is git's") from None
        if done.returncode:
            said = done.stderr.decode("utf-8", errors="replace").strip() or f"exit status {done.returncode}"
            raise GitError(f"git {arguments[0]}: {said.removeprefix('fatal: ')}")
        return done.stdout


def printable(text: str) -> str:
    """A text from a repository as one line that does nothing to a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _commit(fields: Sequence[str], path: str) -> Commit:
    id, short, author, date, subject = fields
    try:
        when = datetime.datetime.fromisoformat(date)
    except ValueError:  # a damaged date, which git gives as an empty text
        when = None
    return Commit(id, short, printable(author), when, printable(subject), path)
