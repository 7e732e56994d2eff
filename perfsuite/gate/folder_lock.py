"""A lock of a folder that leaves nothing in it, for all processes and all users of the folder.

The folder itself is locked. Where the system cannot lock a folder (Windows, NFS), a file in the temporary folder stands
for it. A lock file beside the baselines would lie in the way of `git status`; one in /tmp could not be opened by a
second user (Linux's fs.protected_regular).
"""

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PAUSE = 0.02
"""Seconds between two attempts."""


class LockedTooLong(Exception):  # noqa: N818  (what another process does, not a fault)
    """Another process has held the lock all the time."""


@contextlib.contextmanager
def locked(folder: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a folder that exists, after waiting for at most `seconds`.

    Raises `LockedTooLong`, and `OSError` where the folder cannot be opened.
    """
    with _folder_locked(folder, seconds) if os.name == "posix" else _file_locked(folder, seconds):
        yield


@contextlib.contextmanager
def _folder_locked(folder: Path, seconds: float) -> Iterator[None]:
    import fcntl  # Windows has none

    opened = os.open(folder, os.O_RDONLY)
    try:
        end = time.monotonic() + seconds
        with contextlib.ExitStack() as instead:
            while True:
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= end:
                        raise LockedTooLong from None
                    time.sleep(_PAUSE)
                except OSError:  # NFS locks no file that is open for reading
                    instead.enter_context(_file_locked(folder, seconds))
                    break
            yield
    finally:
        os.close(opened)  # which gives the lock back


@contextlib.contextmanager
def _file_locked(folder: Path, seconds: float) -> Iterator[None]:
    import filelock  # 0.3 s on a busy machine of 2 cores, and few systems need it

    name = hashlib.sha256(os.path.realpath(folder).encode(errors="surrogateescape")).hexdigest()[:16]
    lock = filelock.FileLock(Path(tempfile.gettempdir()) / f"perfsuite-{name}.lock", timeout=seconds)
    try:
        with lock:
            yield
    except filelock.Timeout:
        raise LockedTooLong from None
