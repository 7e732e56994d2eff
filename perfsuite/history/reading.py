"""A baseline file over its commits: what each commit holds, and which commits cannot be read."""

import dataclasses
import datetime
from pathlib import Path

from perfsuite.gate.baseline import Baselines, Entry, beside, labelled, name_of
from perfsuite.git import NOT_COMMITTED, SHALLOW, Commit, GitError, Repository
from perfsuite.history import HistoryError
from perfsuite.history.source import CALIBRATION, decode, on_disk

_TOO_LATE = (": repair it, or `git checkout` the file", ": delete the file and run pytest --perf-save")
"""Advice about a damaged file or an older one, which comes too late for a commit."""


@dataclasses.dataclass(frozen=True)
class Version:
    """The baselines in a commit, or in the working tree where `commit.id` is empty."""

    commit: Commit
    baselines: Baselines


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A commit whose file cannot be read, and why."""

    commit: Commit
    why: str


@dataclasses.dataclass(frozen=True)
class History:
    """A baseline file over its commits, oldest first. `path` is as the user named it.

    `notes` are sentences about the history as a whole, for example that the clone is shallow.
    """

    path: str
    versions: tuple[Version, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Series:
    """One metric over the versions of a history: an entry for each version, None where the file does not have it."""

    test: str
    id: str
    entries: tuple[Entry | None, ...]

    @property
    def name(self) -> str:
        """What people call the metric now."""
        return name_of(self.id, self.last)

    @property
    def last(self) -> Entry:
        """The newest entry."""
        return next(entry for entry in reversed(self.entries) if entry is not None)


def read_history(path: Path, since: str | None = None) -> History:
    """The history of the baseline file at `path`. The working tree comes last where it differs from the last commit.

    `since` is a revision, or a day (`2026-11-21`): the history begins with the state at that time.

    Raises `HistoryError` when the file is in no repository or in no commit, or when `since` names nothing.
    """
    if path.name.startswith(CALIBRATION):
        raise HistoryError(f"{path}: a calibration, not baselines: `perfsuite show` prints it")
    try:
        repository = Repository(path.parent)
        commits = repository.commits(repository.prefix + path.name)
        notes = (SHALLOW,) if repository.shallow else ()
        if not commits:
            raise HistoryError("; ".join([_unknown(path), *notes]))
        commits = _since(repository, commits, since)
        contents = repository.contents([f"{commit.id}:{commit.path}" for commit in commits])
    except GitError as error:
        raise HistoryError(f"{path}: {error}") from None
    versions, skipped = _decoded(commits, contents)
    if path.exists():
        commit = Commit("", NOT_COMMITTED, "", None, "", "")
        try:
            now = on_disk(path).baselines
            if not versions or versions[-1].baselines != now:
                versions.append(Version(commit, now))
        except HistoryError as error:
            skipped.append(Skipped(commit, str(error)))
    return History(str(path), tuple(versions), tuple(skipped), notes)


def _decoded(commits: list[Commit], contents: list[tuple[str, bytes] | None]) -> tuple[list[Version], list[Skipped]]:
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
            versions.append(Version(commit, known[id]))
        except HistoryError as error:
            why = str(error)
            for advice in _TOO_LATE:
                why = why.removesuffix(advice)
            skipped.append(Skipped(commit, why))
    return versions, skipped


def series_of(history: History) -> list[Series]:
    """Every metric of any version, sorted by test and id; for each processor, where a version has it of several."""
    files = [version.baselines for version in history.versions]
    found = []
    for test, id in sorted({(test, id) for file in files for test, entries in file.metrics.items() for id in entries}):
        versions = [file.of_each_processor(test, id) for file in files]
        if all(len(entries) < 2 for entries in versions):
            found.append(Series(test, id, tuple(file.get(test, id) for file in files)))
            continue
        processors = list(dict.fromkeys(processor for entries in reversed(versions) for processor in entries))
        for place, processor in enumerate(processors):
            entries = [entries.get(processor) for entries in versions]
            if place:
                entries = [entry and labelled(entry, processor) for entry in entries]
            found.append(Series(test, beside(id, processor) if place else id, tuple(entries)))
    return found


def _since(repository: Repository, commits: list[Commit], since: str | None) -> list[Commit]:
    if since is None:
        return commits
    if (revision := repository.commit_id(since)) is not None:
        after = set(repository.after(revision))
        later = [commit.id in after for commit in commits]
    else:
        try:
            day = datetime.date.fromisoformat(since)
        except ValueError:
            problem = "neither a revision that git knows nor a day such as 2026-11-21"
            raise HistoryError(f"--since {since}: {problem}") from None
        later = [commit.date is not None and commit.date.date() >= day for commit in commits]
    first = later.index(True) if True in later else len(commits)
    return commits[max(first - 1, 0) :]


def _unknown(path: Path) -> str:
    if path.exists():
        return f"{path}: no commit has this file: `git add` and commit it; every later save then extends its history"
    return f"{path}: no such file, neither here nor in any commit of this branch"
