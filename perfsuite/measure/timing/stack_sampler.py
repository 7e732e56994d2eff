"""Where a thread is while it does not return: another thread looks at its stack."""

import collections
import contextlib
import linecache
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from perfsuite.measure.compiles import callsite
from perfsuite.measure.io import short_path
from perfsuite.measure.private import jax_stack

_WAITS = ("block_until_ready", "device_get", "effects_barrier")
"""Names that show that a line waits for the device."""

_SWITCH_SECONDS = 1e-4


class StackPlace(NamedTuple):
    """`line` is the user's `file:line`, `frame` the innermost frame, as "equinox/_jit.py:246 in _call".

    What waits in a module of Python's own, such as `threading`, is told by the frame that called that. `waits` is true
    where the innermost frame's own line or function shows that it waits for the device.
    """

    line: str
    frame: str
    waits: bool

    def __str__(self) -> str:
        return self.line if self.frame.startswith(f"{self.line} ") else f"{self.line}, in {self.frame}"


class Watch:
    """Looks at the stack of the thread that makes it, every `every_s` seconds once a call has lasted `after_s`.

    A context manager. A look holds Python's lock for some 50 us, and takes nothing else of the thread that it watches.
    """

    def __init__(self, every_s: float, after_s: float = 0.0):
        self.every_s = every_s
        self.after_s = after_s
        self.looks = 0
        """Looks during a call, also those that came too late to tell where it was."""
        self._watched = threading.get_ident()
        self._entered: float | None = None
        self._places: collections.Counter[StackPlace] = collections.Counter()
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._look_on, name="perfsuite watch", daemon=True)

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered = None
        self._stop.set()
        self.thread.join()

    @contextlib.contextmanager
    def during_call(self) -> "Iterator[collections.Counter[StackPlace]]":
        """Watch a call, the body: gives the places where it is seen, and how often."""
        places: collections.Counter[StackPlace] = collections.Counter()
        self._places = places
        self._entered = time.perf_counter()
        try:
            yield places
        finally:
            self._entered = None

    def _look_on(self) -> None:
        due = time.perf_counter()
        while not self._stop.wait(max(0.0, due - time.perf_counter())):
            now, entered, places = time.perf_counter(), self._entered, self._places
            if entered is not None and now - entered >= self.after_s:
                self.looks += 1
                # A look that waits for Python's lock comes when the thread lets go of it, which is where it waits for
                # the device: counted, it would make a call that computes look like one that waits.
                if now - due < self.every_s / 2 and self._entered == entered:
                    # The code runs on meanwhile: a frame that cannot be described is one look fewer.
                    with contextlib.suppress(Exception):
                        place = _place_of(sys._current_frames()[self._watched])
                        if self._entered == entered:  # it may have returned while its frame was described
                            places[place] += 1
            due = max(due, time.perf_counter() - self.every_s) + self.every_s


@contextlib.contextmanager
def eager_switching() -> Iterator[None]:
    """Let threads take Python's lock from each other after 0.1 ms, not 5, so that looks come when they are due."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def most_seen(places: "collections.Counter[StackPlace]") -> StackPlace | None:
    """Where the thread was seen most; a place that shows a wait comes before any that does not."""
    return max(places, key=lambda place: (place.waits, places[place]), default=None)


def _place_of(frame: FrameType) -> StackPlace:
    line = callsite.location(frame)
    module = frame.f_globals.get("__name__") or ""
    if callsite.is_harness(module):  # the call is in C++, and the line of the harness that called it tells nothing
        return StackPlace(line, f"{line} itself", False)
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    is_jax = module.partition(".")[0] in ("jax", "jaxlib")
    waits = any(name in text for name in _WAITS) or (is_jax and jax_stack.waits_for_device(frame))
    told = callsite.outside_of_python(frame)
    code = told.f_code
    return StackPlace(line, f"{short_path(code.co_filename)}:{told.f_lineno} in {code.co_qualname}", waits)
