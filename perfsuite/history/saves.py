"""The saves of a baseline file: what each commit that changed it holds."""

import dataclasses
from pathlib import Path

from perfsuite.git import SHALLOW, GitError, Repository
from perfsuite.history import HistoryError
from perfsuite.history.source import Source, decode, on_disk

NOT_COMMITTED = "not committed"
"""The name of the file in the working tree."""


@dataclasses.dataclass(frozen=True)
class Saves:
    """The saves of the file `path`, newest first, each by the name of its commit.

    `notes` are sentences about the saves that are missing.
    """

    path: Path
    sources: tuple[Source, ...]
    notes: tuple[str, ...]


def saves_of(path: Path, since: str | None = None) -> Saves:
    """The saves of a baseline file. The working tree comes first where it differs from the last commit.

    With `since`, a revision, the oldest one is the file at that revision. Raises `HistoryError` when the file is in no
    repository or in no commit, or when git knows no such revision.
    """
    now = on_disk(path).baselines if path.exists() else None
    try:
        repository = Repository(path.parent)
        inside = repository.prefix + path.name
        start = None if since is None else repository.commit_id(since)
        if start is None and since is not None:
            raise HistoryError(f"--since {since}: git knows no such revision")
        commits = [(commit.title, commit.id) for commit in repository.commits(inside, start)]
        commits += [(str(since), start)] if start else []
        contents = repository.contents([f"{id}:{inside}" for _, id in commits])
        notes = [SHALLOW] if repository.shallow else []
    except GitError as error:
        raise HistoryError(f"{path}: {error}") from None
    if not any(contents):
        problem = "no commit has this file: `git add` and commit it" if now else "no such file, here or in git"
        raise HistoryError("; ".join([f"{path}: {problem}", *notes]))
    sources, skipped = [], []
    for (title, _), content in zip(commits, contents, strict=True):
        try:
            if content is not None:  # the commit deleted it
                sources.append(Source(title, decode(content, path.name)))
        except HistoryError:
            skipped.append(title)
    if skipped:
        rest = f" and {len(skipped) - 1} older ones" if skipped[1:] else ""
        notes.append(f"damaged, or written by another version of perfsuite, in {skipped[0]}{rest}")
    if now and (not sources or sources[0].baselines != now):
        sources.insert(0, Source(NOT_COMMITTED, now))
    return Saves(path, tuple(sources), tuple(notes))
