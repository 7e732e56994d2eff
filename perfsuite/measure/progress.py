"""What takes long, told to a listener while it lasts. There is none as it is, and then nothing is told at all.

Two ways, because telling must not disturb what is being timed: `waiting` is for a compile, a lock, another process,
where no clock is held to anything, so that a thread tells; `sampling` is for a loop of timed blocks, which tells by
itself, between blocks. No instrument samples inside `waiting`.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

FIRST_SECONDS = 2.0
"""What is over sooner is not told of."""

EVERY_SECONDS = 1.0
"""Between two tellings: what is told has whole seconds."""


class Progress(NamedTuple):
    """`what` goes on for `seconds` now.

    It ends after `most_seconds` at the latest, where that is known; `usual_seconds` is what it took the last time,
    where anybody remembers.
    """

    what: str
    seconds: float
    most_seconds: float | None = None
    usual_seconds: float | None = None


Listener = Callable[[Progress | None], None]
"""Is told how far it is, and None when it is over. May be called in another thread; must not raise."""

_listener: Listener | None = None
_waiting: list[threading.Event] = []
"""What goes on now, the innermost last: that one alone is told of."""


@contextlib.contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Tell `listener` of what takes long inside, and nobody else."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@contextlib.contextmanager
def waiting(what: str, *, usual: Callable[[], float | None] = lambda: None) -> Iterator[None]:
    """Something during which nothing is timed. `usual` gives the seconds that it took last time; called if need be."""
    listener = _listener
    if listener is None:
        yield
        return
    over = threading.Event()
    arguments = (listener, over, what, time.monotonic(), usual)
    thread = threading.Thread(target=_tell_until, args=arguments, name="perfsuite progress", daemon=True)
    _waiting.append(over)
    thread.start()
    try:
        yield
    finally:
        _waiting.remove(over)
        over.set()
        thread.join()  # so that nothing of it is left to wake while something is timed


def _tell_until(
    listener: Listener, over: threading.Event, what: str, began: float, usual: Callable[[], float | None]
) -> None:
    if over.wait(FIRST_SECONDS):
        return
    usual_seconds = usual()
    while True:
        if _waiting[-1:] == [over]:
            listener(Progress(what, time.monotonic() - began, usual_seconds=usual_seconds))
        if over.wait(EVERY_SECONDS):
            listener(None)
            return


@contextlib.contextmanager
def sampling(what: str, most_seconds: float) -> Iterator[Callable[[], None] | None]:
    """A loop of timed blocks of `most_seconds` at most: what it is to call between two blocks, None for nothing."""
    listener = _listener
    if listener is None:
        yield None
        return
    told = _Sampling(listener, what, most_seconds)
    try:
        yield told
    finally:
        told.end()


class _Sampling:
    """Called between blocks; costs a look at the clock unless it is time to tell."""

    def __init__(self, listener: Listener, what: str, most_seconds: float):
        self._listener = listener
        self._what = what
        self._most_seconds = most_seconds
        self._began = time.monotonic()
        self._due = self._began + FIRST_SECONDS
        self._told = False

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._told = True
        self._listener(Progress(self._what, now - self._began, self._most_seconds))
        self._due = time.monotonic() + EVERY_SECONDS

    def end(self) -> None:
        if self._told:
            self._listener(None)
