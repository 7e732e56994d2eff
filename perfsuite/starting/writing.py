"""Writes several files, or none of them."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from perfsuite.measure.io import write_atomically
from perfsuite.starting.project import StartError


@dataclasses.dataclass(frozen=True)
class New:
    """The new text of a file, and what it was before; None where there was no file."""

    path: Path
    text: str
    before: bytes | None = None


def write_all(files: Sequence[New]) -> None:
    """Write the files, with their folders. Raises `StartError` where one cannot be written; then all is as before."""
    undo = contextlib.ExitStack()
    for file in files:
        try:
            for folder in _missing_folders(file.path.parent):
                folder.mkdir()
                undo.callback(_remove, folder)
            write_atomically(file.path, file.text.encode())
        except OSError as error:
            undo.close()
            raise StartError(
                f"{file.path}: cannot be written ({error.strerror or error}); nothing was changed: "
                "make the folder writable, or run it where you may write"
            ) from None
        undo.callback(_restore, file)
    undo.pop_all()


def _missing_folders(folder: Path) -> list[Path]:
    """The outermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    return missing[::-1]


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _restore(file: New) -> None:
    with contextlib.suppress(OSError):
        if file.before is None:
            file.path.unlink()
        else:
            write_atomically(file.path, file.before)
