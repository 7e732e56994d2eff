"""A baseline file that the user names: one on disk, or `REVISION:PATH` of git."""

import dataclasses
import os
from pathlib import Path, PurePosixPath

from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_file import BaselineError, load
from perfsuite.gate.baseline_format import LocatedError, parse
from perfsuite.git import GitError, Repository
from perfsuite.history import HistoryError

CALIBRATION = "calibration-"
"""How the names of the files begin that `pytest --perf-calibrate` writes. They hold no baselines."""


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
            return Source(name, decode(found[1], path))
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
    return {name: at_revision(repository, revision, path) for name, path in paths.items() if _is_baselines(name)}


def gating(source: Source) -> Source:
    """The same source. Raises `HistoryError` for a calibration, which only `perfsuite show` reads."""
    if source.baselines.device.startswith(CALIBRATION):
        raise HistoryError(f"{source.name}: a calibration, not baselines: `perfsuite show` prints it")
    return source


def baseline_files(folder: Path) -> list[Path]:
    """The baseline files in a folder, sorted by name, without calibrations."""
    return sorted(path for path in folder.glob("*.json") if _is_baselines(path.name))


def _is_baselines(name: str) -> bool:
    return name.endswith(".json") and not name.startswith((CALIBRATION, "."))


def _repository(text: str, folder: Path) -> Repository:
    try:
        return Repository(folder)
    except GitError as error:
        raise HistoryError(f"{text}: no such file, and no revision: {error}") from None


def _files_near(path: Path) -> str:
    """For a message: the baseline files that the user may have meant."""
    near = baseline_files(path.parent) or baseline_files(Path("baselines"))
    return f"; there is {', '.join(map(str, near))}" if near else ""
