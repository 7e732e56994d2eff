"""A lock of a folder that leaves nothing in it, for all processes and all users of the folder.

The folder itself is locked. Where the system cannot lock a folder (Windows, NFS), a file in the temporary folder stands
for it. A lock file beside the baselines would lie in the way of `git status`; one in /tmp could not be opened by a
second user (Linux's fs.protected_regular).
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perfsuite.measure.compat.file_lock import file_locked, wait_for_lock


@contextlib.contextmanager
def locked(folder: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a folder that exists, after waiting for at most `seconds`.

    Raises `file_lock.LockedTooLong`, and `OSError` where the folder cannot be opened.
    """
    with _folder_locked(folder, seconds) if os.name == "posix" else _file_locked(folder, seconds):
        yield


@contextlib.contextmanager
def _folder_locked(folder: Path, seconds: float) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.ExitStack() as instead:
            try:
                wait_for_lock(opened, seconds)
            except OSError:  # NFS locks no file that is open for reading
                instead.enter_context(_file_locked(folder, seconds))
            yield
    finally:
        os.close(opened)  # which gives the lock back


def _file_locked(folder: Path, seconds: float) -> contextlib.AbstractContextManager[None]:
    name = hashlib.sha256(os.path.realpath(folder).encode(errors="surrogateescape")).hexdigest()[:16]
    return file_locked(Path(tempfile.gettempdir()) / f"perfsuite-{name}.lock", seconds)
