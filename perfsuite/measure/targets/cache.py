"""A cache on disk, of what compilers said: one gzip'd JSON file an entry.

A cache may only save time, so nothing here fails a run. A damaged entry counts as absent and is replaced; a folder that
cannot be written is left alone. When all entries take more than `LIMIT_BYTES`, those used longest ago go.
"""

import contextlib
import gzip
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfsuite.measure import progress
from perfsuite.measure.io import TEMPORARY, LockedTooLong, file_locked, write_atomically

LIMIT_BYTES = 512 * 2**20
"""A train step of BERT-base takes 0.5 MB (and 25 ms to read), so a thousand programs of that size fit."""

LOCK_SECONDS = 3600.0
"""The longest that one process waits for another to compile the same program. Then it compiles it itself."""

_SUFFIX = ".json.gz"
# A writer takes well under a second; an older temporary file is that of a killed one.
_ABANDONED_SECONDS = 3600.0


def key_of_baseline(test: str, id: str, target: str | None, device: str) -> str:
    """The key of what a compiler said of a program when the program's metrics were recorded."""
    return hashlib.sha256(f"baseline {json.dumps([test, id, target, device])}".encode()).hexdigest()


def read(folder: Path | None, key: str) -> dict[str, Any] | None:
    """The entry under `key`; `None` where there is none, or only a damaged one. Marks it as used."""
    if folder is None:
        return None
    path = folder / f"{key}{_SUFFIX}"
    try:
        # gzip holds a checksum and the length: a flipped bit or a missing end is an error here.
        entry = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.pop("key", None) != key:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return entry


def write(folder: Path | None, key: str, entry: Mapping[str, Any], *, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Keep `entry`, which must be JSON, under `key`, and return whether that worked. Makes the folder if need be."""
    if folder is None:
        return False
    content = gzip.compress(json.dumps({**entry, "key": key}).encode(), compresslevel=6, mtime=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{key}{_SUFFIX}", content)
    except OSError:
        return False
    prune(folder, limit_bytes)
    return True


def prune(folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Remove the entries used longest ago until the others take at most `limit_bytes`, and files of killed writers."""
    entries = []
    now = time.time()
    # Another process may prune at the same time, so any file may be gone.
    with contextlib.suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with contextlib.suppress(OSError):
                about = file.stat(follow_symlinks=False)
                if file.name.endswith(_SUFFIX):
                    entries.append((about.st_mtime, about.st_size, file.path))
                elif file.name.endswith(TEMPORARY) and now - about.st_mtime > _ABANDONED_SECONDS:
                    os.unlink(file.path)
    taken = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if taken <= limit_bytes:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        taken -= size


@contextlib.contextmanager
def locked(folder: Path | None, key: str, *, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock of `key`: of processes that want the same entry only one makes it.

    The operating system releases the lock of a killed process. Without a folder that can be written, and after
    `seconds`, it goes on without the lock: two processes that make the same entry only waste time.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, LockedTooLong):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                # At most 4096 (empty) files for all keys, because a lock file cannot be removed without a race. Two
                # programs that share one only wait for each other.
                path = folder / f".{key[:3]}.lock"
                try:
                    stack.enter_context(file_locked(path, 0))
                except LockedTooLong:
                    with progress.waiting("waiting for another process that compiles the same program"):
                        stack.enter_context(file_locked(path, seconds))
        yield
