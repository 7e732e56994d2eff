"""A baseline file over its commits: what it held in each, and which of them cannot be read."""

import dataclasses
import datetime
from pathlib import Path

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.history.git import NOT_COMMITTED, SHALLOW, Commit, GitError, Repository
from perfsuite.history.source import CALIBRATION, SourceError, decode, on_disk


class HistoryError(Exception):
    """A file has no history that can be read: the message names it, and says what to do."""


@dataclasses.dataclass(frozen=True)
class Version:
    """What the file held in a commit, or holds now where `commit.id` is empty. Renames of tests are not guessed."""

    commit: Commit
    baselines: Baselines


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A commit whose file could not be read, and why."""

    commit: Commit
    why: str


@dataclasses.dataclass(frozen=True)
class History:
    """A baseline file over its commits, oldest first. `path` is as the user named it.

    `notes` are sentences that belong to it, such as that the clone is shallow.
    """

    path: str
    versions: tuple[Version, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Series:
    """One metric over the versions of a history: an entry for each version, None where it was not on file."""

    test: str
    name: str
    entries: tuple[Entry | None, ...]

    @property
    def last(self) -> Entry:
        """The newest entry."""
        return next(entry for entry in reversed(self.entries) if entry is not None)


def read_history(path: Path, since: str | None = None) -> History:
    """The history of the baseline file at `path`, the working tree's state last where it differs from the commit's.

    `since` is a revision, or a day (`2026-11-21`): the state at that time comes first.

    Raises `HistoryError` where the file is in no repository, in no commit, or `since` says nothing.
    """
    if path.name.startswith(CALIBRATION):
        raise HistoryError(f"{path}: a calibration, and no baselines: `perfsuite show` prints it")
    try:
        repository = Repository(path.parent)
        commits = repository.commits(repository.prefix + path.name)
        if not commits:
            raise HistoryError(_unknown(repository, path))
        notes = (SHALLOW,) if repository.shallow else ()
        commits = _since(repository, commits, since)
        contents = repository.contents([f"{commit.id}:{commit.path}" for commit in commits])
    except GitError as error:
        raise HistoryError(f"{path}: {error}") from None
    versions: list[Version] = []
    skipped: list[Skipped] = []
    known: dict[str, Baselines] = {}
    for commit, content in zip(commits, contents, strict=True):
        if content is None:
            skipped.append(Skipped(commit, "the file was deleted"))
            continue
        id, text = content
        try:
            known[id] = known.get(id) or decode(text, commit.path)
        except SourceError as error:
            # Repairing it is too late.
            skipped.append(Skipped(commit, str(error).removesuffix(": repair it, or `git checkout` the file")))
            continue
        versions.append(Version(commit, known[id]))
    _working_tree(path, versions, skipped)
    return History(str(path), tuple(versions), tuple(skipped), notes)


def series_of(history: History) -> list[Series]:
    """Every metric that was ever on file, sorted by test and name."""
    names = {
        (test, name)
        for version in history.versions
        for test, entries in version.baselines.metrics.items()
        for name in entries
    }
    return [
        Series(test, name, tuple(version.baselines.get(test, name) for version in history.versions))
        for test, name in sorted(names)
    ]


def _since(repository: Repository, commits: list[Commit], since: str | None) -> list[Commit]:
    if since is None:
        return commits
    if (revision := repository.commit_id(since)) is not None:
        after = repository.after(revision)
        first = next((place for place, commit in enumerate(commits) if commit.id in after), len(commits))
    else:
        try:
            day = datetime.date.fromisoformat(since)
        except ValueError:
            raise HistoryError(
                f"--since {since}: neither a revision that git knows nor a day such as 2026-11-21"
            ) from None
        first = next(
            (place for place, commit in enumerate(commits) if commit.date and commit.date.date() >= day), len(commits)
        )
    return commits[max(first - 1, 0) :]


def _working_tree(path: Path, versions: list[Version], skipped: list[Skipped]) -> None:
    commit = Commit("", NOT_COMMITTED, "", None, "", "")
    if not path.exists():
        return  # deleted, which is not committed yet, or was a commit ago
    try:
        now = on_disk(path).baselines
    except SourceError as error:
        skipped.append(Skipped(commit, str(error)))
        return
    if not versions or versions[-1].baselines != now:
        versions.append(Version(commit, now))


def _unknown(repository: Repository, path: Path) -> str:
    shallow = f"; {SHALLOW}" if repository.shallow else ""
    if path.exists():
        return f"{path}: no commit has this file: `git add` and commit it, then every save adds to its history{shallow}"
    return f"{path}: no such file, neither here nor in any commit of this branch{shallow}"
