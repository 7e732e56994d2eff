"""What the compiler said of a program, kept on disk under a key: one gzip'd JSON file an entry.

A cache may only save time, so nothing here fails a run: an entry that is damaged counts as absent and is replaced, and
a folder that cannot be written is left alone. Entries are written to a temporary file and renamed, so neither a reader
nor a killed writer leaves or sees half of one. The entries used longest ago go once all take more than `LIMIT_BYTES`.
"""

import contextlib
import gzip
import json
import os
import secrets
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfsuite.measure import progress

LIMIT_BYTES = 512 * 2**20
"""A train step of BERT-base takes 0.5 MB (and 25 ms to read), so this is room for a thousand programs of that size."""

LOCK_SECONDS = 3600.0
"""The longest that one process waits for another to compile the same program; then it compiles it itself."""

_SUFFIX = ".json.gz"
_TEMPORARY = ".tmp"
# A writer takes well under a second; an older temporary file is that of a killed one.
_ABANDONED_SECONDS = 3600.0


def read(folder: Path | None, key: str) -> dict[str, Any] | None:
    """The entry under `key`; `None` where there is none, or only a damaged one. Marks it as used."""
    if folder is None:
        return None
    path = _path(folder, key)
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
    """Keep `entry`, which must be JSON, under `key`, and say whether that worked. Makes the folder if need be."""
    if folder is None:
        return False
    content = gzip.compress(json.dumps({**entry, "key": key}).encode(), compresslevel=6, mtime=0)
    path = _path(folder, key)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError:
        return False
    prune(folder, limit_bytes)
    return True


def prune(folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Remove the entries used longest ago until the others take at most `limit_bytes`, and what killed writers left."""
    found = []
    now = time.time()
    # Another process may prune at the same time: whatever is gone is gone.
    with contextlib.suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with contextlib.suppress(OSError):
                about = file.stat(follow_symlinks=False)
                if file.name.endswith(_SUFFIX):
                    found.append((about.st_mtime, about.st_size, file.path))
                elif file.name.endswith(_TEMPORARY) and now - about.st_mtime > _ABANDONED_SECONDS:
                    os.unlink(file.path)
    taken = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if taken <= limit_bytes:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        taken -= size


@contextlib.contextmanager
def locked(folder: Path | None, key: str, *, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock of `key`, so that of processes that want the same entry only one makes it.

    The lock is the operating system's and goes with a killed process. Goes on without it where there is no folder that
    can be written, and after `seconds`: two that make the same entry waste time, nothing else.
    """
    # Here and not above: only the compiling for a target needs it.
    import filelock

    lock = None
    if folder is not None:
        # At most 4096 (empty) files for all keys, because a lock file cannot be removed without a race. Two programs
        # that share one only wait for each other.
        path = folder / f".{key[:3]}.lock"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(path, timeout=seconds)
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                with progress.waiting("waiting for another process that compiles the same program"):
                    lock.acquire()
        except (OSError, NotImplementedError):
            # `filelock.Timeout` is an `OSError`, too.
            lock = None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}{_SUFFIX}"
