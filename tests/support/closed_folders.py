"""A folder that nobody may write to, for tests of what is said then."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def closed(fill: Callable[[Path], object]) -> Iterator[Path]:
    """A folder that this process may read and not write, whoever runs it; `fill(folder)` writes what is in it."""
    # pytest's own folders are hidden from other users, so a refusal there would not be about this folder.
    folder = Path(tempfile.mkdtemp())
    fill(folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    folder.chmod(0o555)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    if root:
        # Root may write anywhere, whatever the permissions say.
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)
