"""What a listener learns of long waits and long timings while they last. Without a listener nothing here does anything.

Reports must not disturb what is being timed. So there are two ways: `waiting` is for a compile, a lock or another
process, where nothing is timed, and a thread reports; `sampling` is for a loop of timed blocks, which reports between
blocks itself. No instrument samples inside `waiting`.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

FIRST_SECONDS = 2.0
"""Nothing shorter than this is reported."""

EVERY_SECONDS = 1.0
"""Between two reports, which show whole seconds."""


class Progress(NamedTuple):
    """`what` has lasted for `seconds` so far. It ends after `most_seconds` at the latest, where that is known."""

    what: str
    seconds: float
    most_seconds: float | None = None


Listener = Callable[[Progress | None], None]
"""Gets each report, and None at the end. Another thread may call it; it must not raise."""

_listener: Listener | None = None
_waiting: list[threading.Event] = []
"""The waits that last now, the innermost last: only that one is reported."""


@contextlib.contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Report to `listener` alone what takes long inside."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Something during which nothing is timed."""
    listener = _listener
    if listener is None:
        yield
        return
    over = threading.Event()
    began = time.monotonic()

    def report() -> None:
        if over.wait(FIRST_SECONDS):
            return
        while True:
            if _waiting[-1:] == [over]:
                listener(Progress(what, time.monotonic() - began))
            if over.wait(EVERY_SECONDS):
                listener(None)
                return

    thread = threading.Thread(target=report, name="perfsuite progress", daemon=True)
    _waiting.append(over)
    thread.start()
    try:
        yield
    finally:
        _waiting.remove(over)
        over.set()
        thread.join()  # so that it cannot wake while something is timed


@contextlib.contextmanager
def sampling(what: str, most_seconds: float) -> Iterator[Callable[[], None] | None]:
    """A loop of timed blocks of `most_seconds` at most. Gives what the loop calls between blocks, or None."""
    listener = _listener
    if listener is None:
        yield None
        return
    began = time.monotonic()
    due = began + FIRST_SECONDS
    reported = False

    def report() -> None:
        """Costs a look at the clock, unless a report is due."""
        nonlocal due, reported
        now = time.monotonic()
        if now >= due:
            reported = True
            listener(Progress(what, now - began, most_seconds))
            due = time.monotonic() + EVERY_SECONDS

    try:
        yield report
    finally:
        if reported:
            listener(None)
