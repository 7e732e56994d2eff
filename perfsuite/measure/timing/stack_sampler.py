"""Where a thread is while it does not return: another thread looks at its stack."""

import contextlib
import linecache
import sys
import threading
import time
from collections import Counter
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
    """`line` is the user's `file:line`, with the innermost frame where that is another: "train.py:3, in
    equinox/_jit.py:246 in _call".

    What waits in a module of Python's own, such as `threading`, is told by the frame that called that. `waits` is true
    where the innermost frame's own line or function shows that it waits for the device.
    """

    line: str
    waits: bool


UNSEEN = StackPlace("", False)


class Watch:
    """Looks at the stack of the thread that makes it, every `every_s` seconds once a call has lasted `after_s`.

    A context manager. A look holds Python's lock for some 50 us, and takes nothing else of the thread that it watches.
    """

    def __init__(self, every_s: float, after_s: float = 0.0):
        self.every_s = every_s
        self.after_s = after_s
        self._watched = threading.get_ident()
        self._call: tuple[float, Counter[StackPlace]] | None = None
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._look_on, name="perfsuite watch", daemon=True)

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.thread.join()

    @contextlib.contextmanager
    def during_call(self, places: Counter[StackPlace]) -> Iterator[None]:
        """Watch a call, the body, and add to `places` where each look saw it."""
        self._call = time.perf_counter(), places
        try:
            yield
        finally:
            self._call = None

    def _look_on(self) -> None:
        due = time.perf_counter()
        while not self._stop.wait(max(0.0, due - time.perf_counter())):
            now, call = time.perf_counter(), self._call
            if call is not None and now - call[0] >= self.after_s:
                place = UNSEEN
                # A look that waits for Python's lock comes when the thread lets go of it, which is where it waits for
                # the device: counted there, it would make a call that computes look like one that waits.
                if now - due < self.every_s / 2:
                    with contextlib.suppress(Exception):  # the code runs on while its frame is described
                        place = _place_of(sys._current_frames()[self._watched])
                if self._call is call:
                    call[1][place] += 1
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


def certain_place(places: Counter[StackPlace]) -> StackPlace:
    """Where the thread waited: a place that shows it, or the one of more than half of the looks; else `UNSEEN`."""
    best = max(places, key=lambda place: (place.waits, places[place]), default=UNSEEN)
    return best if best.waits or 2 * places[best] > places.total() else UNSEEN


def _place_of(frame: FrameType) -> StackPlace:
    line, module = callsite.location(frame), frame.f_globals.get("__name__") or ""
    if callsite.is_harness(module):  # the call is in C++, and the line of the harness that called it tells nothing
        return StackPlace(line, False)
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    is_jax = module.partition(".")[0] in ("jax", "jaxlib")
    waits = any(name in text for name in _WAITS) or (is_jax and jax_stack.waits_for_device(frame))
    caller = callsite.outside_of_python(frame)
    inner = f"{short_path(caller.f_code.co_filename)}:{caller.f_lineno}"
    return StackPlace(line if inner == line else f"{line}, in {inner} in {caller.f_code.co_qualname}", waits)
