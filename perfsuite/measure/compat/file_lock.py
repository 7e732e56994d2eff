"""A lock of a file, for all processes and threads. The operating system releases that of a killed process."""

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PAUSE = 0.02
"""Seconds between two attempts."""

_HELD = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}
"""What systems say of a lock that another has."""


class LockedTooLong(Exception):  # noqa: N818  (what another process does, not a fault)
    """Another process has held the lock all the time."""


@contextlib.contextmanager
def file_locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a file, which it creates, after waiting for at most `seconds`.

    The file stays: of a file that is removed, two processes could hold a lock, each of another file. Raises
    `LockedTooLong`, and `OSError` where the file cannot be opened or its file system has no locks.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        wait_for_lock(opened, seconds)
        yield
    finally:
        os.close(opened)  # which gives the lock back


def wait_for_lock(opened: int, seconds: float) -> None:
    """Lock an open file, or on POSIX an open folder. Raises as `file_locked` does."""
    end = time.monotonic() + seconds
    while not _try_lock(opened):
        if time.monotonic() >= end:
            raise LockedTooLong
        time.sleep(_PAUSE)


def _try_lock(opened: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt  # Windows alone has it

            msvcrt.locking(opened, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl  # Windows has none

            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True
