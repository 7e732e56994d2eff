"""A baseline file that the user names, on disk or `REVISION:PATH` of git, and which of its metrics to show."""

import dataclasses
import fnmatch
import os
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from perfsuite.gate.baseline import Baselines, name_of
from perfsuite.gate.baseline_file import BaselineError, LocatedError, baseline_files, is_baselines, load, parse
from perfsuite.git import GitError, Repository
from perfsuite.history import HistoryError


@dataclasses.dataclass(frozen=True)
class Source:
    """Baselines, and where they are from: `name` as the user would write it."""

    name: str
    baselines: Baselines


def decode(content: bytes, path: str) -> Baselines:
    """The baselines in the content of a file. Raises `HistoryError` that names the line, but not the file."""
    try:
        return parse(content.decode("utf-8-sig"), PurePosixPath(path).stem)
    except UnicodeDecodeError:
        raise HistoryError("not UTF-8") from None
    except LocatedError as error:
        raise HistoryError(f"line {error.line}: {error.problem}") from None


def on_disk(path: Path) -> Source:
    """The baselines in a file. Raises `HistoryError` when it does not exist or is damaged."""
    if not path.exists():
        raise HistoryError(f"{path}: no such file{_files_near(path)}")
    if path.is_dir():
        raise HistoryError(f"{path} is a folder: name a file in it{_files_near(path / 'any')}")
    try:
        return Source(os.fspath(path), load(path))
    except BaselineError as error:
        raise HistoryError(str(error)) from None


def at_revision(repository: Repository, revision: str, path: str) -> Source:
    """The baselines of a file in a commit. `path` is relative to the root, or to this folder if it begins with a dot.

    Raises `HistoryError` when there is no such revision, no such file in it, or the file is damaged.
    """
    name = f"{revision}:{path}"
    try:
        commit = repository.commit_id(revision)
        found = repository.contents([f"{commit}:{path}"])[0] if commit else None
        if found is not None:
            return Source(name, decode(found, path))
    except (GitError, HistoryError) as error:
        raise HistoryError(f"{name}: {error}") from None
    if commit is None:
        raise HistoryError(f"{name}: git knows no revision {revision!r}")
    inside = "" if path.startswith(".") or not repository.prefix else f" (from here it may be {revision}:./{path})"
    raise HistoryError(f"{name}: there was no such file in {revision!r}{inside}")


def named(text: str, default: Path | None = None) -> Source:
    """The baselines that `text` names: a file, `REVISION:PATH`, or a revision alone, which means the file `default`.

    A file that exists comes before a revision of the same name. Raises `HistoryError`.
    """
    path = Path(text)
    if path.is_file():
        return on_disk(path)
    revision, colon, inside = text.partition(":")
    if colon and revision and inside:
        return at_revision(_repository(text, Path()), revision, inside)
    if not colon and default is not None and not path.exists():
        repository = _repository(text, default.parent)
        if repository.commit_id(text) is not None:
            return at_revision(repository, text, repository.prefix + default.name)
        raise HistoryError(f"{text}: neither a file nor a revision that git knows{_files_near(path)}")
    return on_disk(path)


def files_at(revision: str, folder: Path) -> dict[str, Source]:
    """The baseline files of a folder in a commit, by their names. Raises `HistoryError`."""
    repository = _repository(revision, folder)
    commit = repository.commit_id(revision)
    if commit is None:
        raise HistoryError(f"{revision}: neither a file nor a revision that git knows")
    paths = {PurePosixPath(path).name: path for path in repository.files(commit, repository.prefix)}
    return {name: at_revision(repository, revision, path) for name, path in paths.items() if is_baselines(name)}


def select(
    baselines: Baselines,
    pattern: str | None = None,
    kinds: Collection[str] = (),
    provenances: Collection[str] = (),
) -> Baselines:
    """The metrics that match the pattern and have one of the kinds and provenances; an empty choice means all."""
    metrics = {
        test: {
            id: entry
            for id, entry in entries.items()
            if _matches(pattern, test, id, name_of(id, entry))
            and (not kinds or entry.kind in kinds)
            and (not provenances or entry.provenance in provenances)
        }
        for test, entries in baselines.metrics.items()
    }
    metrics = {test: entries for test, entries in metrics.items() if entries}
    revisions = {test: each for test, each in baselines.revisions.items() if test in metrics}
    return Baselines(baselines.device, metrics, revisions)


def _matches(pattern: str | None, *names: str) -> bool:
    """Whether one of the names contains `pattern`, or matches it with `*` and `?`; ignores case."""
    if pattern is None:
        return True
    wanted = pattern.casefold()
    # First whether it contains the pattern: fnmatch reads the brackets of a test's parameters as a set of letters.
    return any(wanted in text.casefold() or fnmatch.fnmatchcase(text.casefold(), wanted) for text in names)


def _repository(text: str, folder: Path) -> Repository:
    try:
        return Repository(folder)
    except GitError as error:
        raise HistoryError(f"{text}: no such file, and no revision: {error}") from None


def _files_near(path: Path) -> str:
    """For a message: the baseline files that the user may have meant."""
    near = baseline_files(path.parent) or baseline_files(Path("baselines"))
    return f"; there is {', '.join(map(str, near))}" if near else ""
