"""Files: names for messages, and writes that show a reader the old content or the new one, never half of either."""

import contextlib
import os
import secrets
import stat
from pathlib import Path

TEMPORARY = ".tmp"
"""How the names of files end that are not finished. A killed process may leave one, as `.NAME.xxxxxxxx.tmp`."""


def write_atomically(path: Path, content: bytes | str, *, durable: bool = False) -> None:
    """Write `content` beside `path`, then move it there. The file keeps the permissions that it has.

    A text is written as UTF-8; half of a surrogate pair, which a test's name may hold, becomes a question mark.
    `durable` waits until the file would survive a power cut. Raises `OSError`, and leaves `path` as it was then.
    """
    data = content.encode(errors="replace") if isinstance(content, str) else content
    temporary = path.with_name(f"{temporary_prefix(path)}{secrets.token_hex(4)}{TEMPORARY}")
    try:
        # "x" creates it with the permissions that the user's umask gives. `tempfile` would keep other users out.
        with open(temporary, "xb") as file:
            if path.exists():
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        _sync_folder(path.parent)


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
        found = os.path.relpath(file)
    except (ValueError, OSError):  # another drive, or a working directory that is gone
        return file
    return file if found.startswith("..") else found


def short_path(file: str) -> str:
    """The path of a file of an installed package in its package, as "equinox/_jit.py"; else from here."""
    _, installed, inside = file.rpartition(f"-packages{os.sep}")
    return inside if installed else from_here(file)


def temporary_prefix(path: Path) -> str:
    """How the names of unfinished versions of `path` begin."""
    return f".{path.name}."


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut, where the system can. The content is safe either way."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
