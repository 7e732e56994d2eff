"""How far the processes of the sides are: each notes it in its folder, and a thread tells people now and then."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from perfsuite.measure.io import write_atomically

EVERY_SECONDS = 30.0
_FILE = "ended"

Say = Callable[[str], None]
"""Called with what begins, and with how far it is."""


def note(folder: Path, ended: int, tests: int) -> None:
    """Note that so many of the tests of a process ended; `folder` is the process's."""
    write_atomically(folder / _FILE, f"{ended} of {tests}")


@contextlib.contextmanager
def told(folders: Mapping[str, Path], say: Say, *, every: float | None = None) -> Iterator[None]:
    """Say every so many seconds how far the process of each folder is. `folders` are by the names of the sides."""
    over = threading.Event()

    def tell() -> None:
        said = ""
        while not over.wait(every or EVERY_SECONDS):
            noted = {name: text for name, folder in folders.items() if (text := _read(folder))}
            line = ", ".join(f"{text} at the {name}" for name, text in noted.items())
            if line != said:
                with contextlib.suppress(OSError):  # nobody reads the output any more; the end will say so
                    say(f"tests that ended: {line}")
            said = line

    thread = threading.Thread(target=tell, name="perfsuite following", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _read(folder: Path) -> str:
    try:
        return (folder / _FILE).read_text(encoding="utf-8")
    except OSError:
        return ""
