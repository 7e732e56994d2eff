"""Files: names for messages, locks, and writes: a reader sees the old content or the new one, never half of either."""

import contextlib
import hashlib
import os
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".tmp"
"""How the names of files end that are not finished. A killed process may leave one, as `.NAME.xxxxxxxx.tmp`."""

_PAUSE = 0.02
"""Seconds between two attempts to get a lock."""


class LockedTooLong(Exception):  # noqa: N818  (what another process does, not a fault)
    """Another process has held the lock all the time."""


@contextlib.contextmanager
def folder_locked(folder: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a folder that exists, after waiting for at most `seconds`. It leaves nothing in the folder.

    The folder itself is locked. Where the system cannot lock a folder (Windows, NFS), a file in the temporary folder
    stands for it. A lock file beside the baselines would lie in the way of `git status`; one in /tmp could not be
    opened by a second user (Linux's fs.protected_regular).

    Raises `LockedTooLong`, and `OSError` where the folder cannot be opened.
    """
    with contextlib.ExitStack() as held:
        try:
            if sys.platform == "win32":
                held.enter_context(file_locked(_instead_of(folder), seconds))
            else:
                held.enter_context(_locked(os.open(folder, os.O_RDONLY), seconds))
        except _CannotBeLocked:
            held.enter_context(file_locked(_instead_of(folder), seconds))
        yield


@contextlib.contextmanager
def file_locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a file, which is made where it is missing and stays, after waiting for at most `seconds`.

    The lock is the operating system's: it ends with a killed process. Raises `LockedTooLong`, and `OSError` where the
    file cannot be opened or locked.
    """
    if sys.platform == "win32":
        import filelock  # of Windows alone

        try:
            with filelock.FileLock(path, timeout=seconds):
                yield
        except filelock.Timeout:
            raise LockedTooLong from None
    else:
        with _locked(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), seconds):
            yield


class _CannotBeLocked(OSError):  # noqa: N818  (what a file system does)
    """NFS locks no file that is open for reading."""


@contextlib.contextmanager
def _locked(opened: int, seconds: float) -> Iterator[None]:
    """Hold the lock of an open file or folder, and close it at the end, which gives the lock back."""
    import fcntl  # Windows has none

    try:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise LockedTooLong from None
                time.sleep(_PAUSE)
            except OSError as error:
                raise _CannotBeLocked(error.errno, error.strerror) from error
        yield
    finally:
        os.close(opened)


def _instead_of(folder: Path) -> Path:
    name = hashlib.sha256(os.path.realpath(folder).encode(errors="surrogateescape")).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"perfsuite-{name}.lock"


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write `content` beside `path`, then move it there. The file keeps the permissions that it has.

    A text is written as UTF-8; half of a surrogate pair, which a test's name may hold, becomes a question mark.
    Raises `OSError`, and leaves `path` as it was then.
    """
    data = content.encode(errors="replace") if isinstance(content, str) else content
    temporary = path.with_name(f"{temporary_prefix(path)}{secrets.token_hex(4)}{TEMPORARY}")
    try:
        # "x" creates it with the permissions that the user's umask gives. `tempfile` would keep other users out.
        with open(temporary, "xb") as file:
            if path.exists():
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # the new name may survive a power cut that takes what was not on the disk
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def user_cache() -> Path:
    """The user's folder for what takes time to make again and belongs to no project. Nothing makes it here."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "perfsuite"


def relative(path: Path, root: Path) -> str:
    """The path relative to `root`; in full where it lies elsewhere."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def from_here(file: str) -> str:
    """The path of a file from the working directory where the file is below it; else as it is."""
    try:
        path = os.path.relpath(file)
    except (ValueError, OSError):  # another drive, or a working directory that is gone
        return file
    return file if path.startswith("..") else path


def short_path(file: str) -> str:
    """The path of a file of an installed package in its package, as "equinox/_jit.py"; else from here."""
    _, installed, inside = file.rpartition(f"-packages{os.sep}")
    return inside if installed else from_here(file)


def temporary_prefix(path: Path) -> str:
    """How the names of unfinished versions of `path` begin."""
    return f".{path.name}."
