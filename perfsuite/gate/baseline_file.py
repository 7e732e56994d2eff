"""Baseline files on disk: read whole or refused, and written so that no reader or killed writer ever sees half a file.

A save holds a lock of the folder, reads the file again inside it, merges, writes a temporary file in the same folder
and renames it over the old one. The lock is the operating system's, so it ends with a killed process. Such a process
leaves a temporary file at most, which the next save removes.
"""

import contextlib
import dataclasses
import os
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from perfsuite.gate.baseline import Baselines, Entry, Provenance, Revision
from perfsuite.gate.baseline_format import LocatedError, encode, parse
from perfsuite.gate.merging import Change, Direction, merge
from perfsuite.measure import progress
from perfsuite.measure.io import TEMPORARY, LockedTooLong, folder_locked, temporary_prefix, write_atomically

LOCK_SECONDS = 30.0


class BaselineError(Exception):
    """A baseline file cannot be used or written; the message names file, line where there is one, and what to do.

    The file is unchanged.
    """

    def __init__(self, path: str | os.PathLike[str], problem: str, line: int | None = None):
        super().__init__(f"{os.fspath(path)}{'' if line is None else f':{line}'}: {problem}")
        self.path = Path(path)
        self.problem = problem
        self.line = line


@dataclasses.dataclass(frozen=True)
class SaveResult:
    """What a save did to the metrics of its run. `untouched` counts the others in the file.

    `written` is False when nothing changed: the file was then not rewritten.
    """

    path: Path
    changes: tuple[Change, ...]
    untouched: int
    written: bool

    @property
    def created(self) -> list[Change]:
        """Metrics that were not in the file."""
        return [change for change in self.changes if change.action == "create"]

    def updated(self, direction: Direction | None = None) -> list[Change]:
        """Metrics that the file held otherwise: all, or those that became "better", "worse" or stayed the "same".

        "same" ones differ within their noise, or in their versions or parts only. "not comparable" ones changed their
        unit or kind, or were measured where the old metric cannot be compared.
        """
        return [
            change
            for change in self.changes
            if change.action == "update" and (direction is None or change.direction == direction)
        ]

    @property
    def trimmed(self) -> list[Change]:
        """Metrics that went, because their test no longer makes them."""
        return [change for change in self.changes if change.action == "trim"]

    @property
    def kept(self) -> list[Change]:
        """Metrics that agree with the file, which keeps its entries."""
        return [change for change in self.changes if change.action == "keep"]


def load(path: str | os.PathLike[str]) -> Baselines:
    """The baselines in `path`; empty ones, named after the file, when there is no such file.

    Raises `BaselineError` when the file cannot be read or is not exactly a baseline file of this schema.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # reading a pipe would wait for who writes into it
            kind = "folder" if stat.S_ISDIR(mode) else "pipe, a socket or a device"
            raise BaselineError(path, f"this is a {kind}: move it away, or choose another --perf-baselines")
        content = path.read_bytes()
    except FileNotFoundError:
        return Baselines(path.stem)
    except OSError as error:
        raise BaselineError(path, f"cannot be read ({_reason(error)})") from error
    try:
        # Some editors put a byte order mark before UTF-8; it does no harm.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BaselineError(path, "not UTF-8: save it as UTF-8, or `git checkout` the file", line) from None
    try:
        return parse(text, path.stem)
    except LocatedError as error:
        raise BaselineError(path, error.problem, error.line) from None


def save(
    path: str | os.PathLike[str],
    new: Mapping[str, Mapping[str, Entry]],
    *,
    trim: Collection[str] = (),
    gone: Collection[str] = (),
    provenances: tuple[Provenance, ...] = ("measured",),
    revision: Revision | None = None,
    kinds: Collection[str] | None = None,
    lock_seconds: float = LOCK_SECONDS,
) -> SaveResult:
    """Record the metrics `new` (test id -> metric id -> entry), by the rules of `merge`. Returns what that changed.

    `trim` are the tests that ran completely and `gone` those that no longer exist, `provenances` those of the metrics
    that this run makes for the device, `kinds` what alone is to be saved. Waits `lock_seconds` for another process that
    is saving. The folder is made when it is missing; the file keeps its permissions.

    Raises `BaselineError` when the file is damaged, locked for too long or cannot be written, and leaves it unchanged.
    """
    path = Path(path)
    if not new and not os.path.exists(path):
        return SaveResult(path, (), 0, written=False)
    target = _led_to(path)
    _make_folder(target.parent)
    with _locked(target, lock_seconds):
        _remove_leftovers(target)
        old = load(path)
        merged, changes = merge(old, new, trim=trim, gone=gone, provenances=provenances, revision=revision, kinds=kinds)
        written = any(change.action != "keep" for change in changes)
        if written:
            try:
                write_atomically(target, encode(merged), durable=True)
            except OSError as error:
                raise BaselineError(target, _cannot_write(error)) from error
    untouched = len(old.entries) - sum(change.old is not None for change in changes)
    return SaveResult(path, changes, untouched, written)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Make sure that the baseline file `path` can be written, by writing beside it: before a long run, not after it.

    Makes the folder when it is missing. Raises `BaselineError` when it cannot be made or written to.
    """
    folder = _led_to(path).parent
    _make_folder(folder)
    try:
        # Permission bits would say nothing of a read-only or full disk.
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"perfsuite")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise BaselineError(folder, _cannot_write(error)) from error


def _led_to(path: str | os.PathLike[str]) -> Path:
    """The file that is written. A link stays a link: what it leads to is replaced."""
    return Path(os.path.realpath(path))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BaselineError(
            folder, f"the folder cannot be made ({_reason(error)}): make it, or choose another --perf-baselines"
        ) from error


@contextlib.contextmanager
def _locked(target: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of the file's folder. It leaves no file there that git would see."""
    held = contextlib.ExitStack()
    try:
        with progress.waiting(f"waiting for another process that saves into {target.parent}"):
            held.enter_context(folder_locked(target.parent, seconds))
    except LockedTooLong:
        problem = f"another process has held the lock of this folder for {seconds:g} s"
        raise BaselineError(target.parent, f"{problem}: wait for its --perf-save to end, or stop it") from None
    except OSError as error:
        raise BaselineError(target.parent, f"cannot be locked ({_reason(error)}): make it readable") from error
    with held:
        yield


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes left. Only the holder of the lock writes such files, so none is in use."""
    # One that cannot be removed does no harm.
    with contextlib.suppress(OSError):
        for path in target.parent.iterdir():
            if path.name.startswith(temporary_prefix(target)) and path.name.endswith(TEMPORARY):
                path.unlink()


def _cannot_write(error: OSError) -> str:
    advice = "make the folder writable, free some space, or choose another --perf-baselines"
    return f"cannot be written ({_reason(error)}), nothing was changed: {advice}"


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
