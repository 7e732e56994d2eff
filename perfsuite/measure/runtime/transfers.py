"""Transfers between host and device, and callbacks from running programs: counted with their lines, or forbidden.

A transfer is implicit where the code does not say that it wants one: a NumPy array or a Python number given to a
jitted function, `float(x)`, `if x > 0:`, `np.asarray(x)`, `print(x)`. It is explicit with `jax.device_put`,
`jax.device_get` and `copy_to_host_async`. So says `jax.transfer_guard` too
(https://docs.jax.dev/en/latest/transfer_guard.html), which on CPU sees no transfer to the host.

On CPU a read counts although it copies nothing. `perfsuite.measure.compat.transfer_internals` says which reads in place
are not seen there with Python 3.11.
"""

import contextlib
import dataclasses
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any, Literal

import jax

from perfsuite.measure.call import label_of
from perfsuite.measure.compat.transfer_internals import callback_function, fetched, observing
from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.description import text_of_array
from perfsuite.measure.errors import TransferError
from perfsuite.measure.runtime import transfer_causes
from perfsuite.measure.runtime.transfer_causes import Words, said

__all__ = ["Transfer", "Transfers", "count", "forbid"]

Direction = Literal["host_to_device", "device_to_host", "callback"]

_CALLBACK = "the program calls Python in each run", "take it out, or call it every so many steps only"


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One array that moved, or one callback.

    `direction` is "host_to_device", "device_to_host" or "callback". `what` is shape and dtype such as "float32[8,128]",
    and of a callback the function. `cause` says in words what did it, and `advice` what to do. `location` is the user's
    `file:line`: of a callback where the function was defined, "" where nobody knows. `inside` is the `file:line` of the
    library that the user's line called and that did it, "" where none was between.
    """

    direction: Direction
    what: str
    cause: str
    advice: str
    location: str
    explicit: bool = False
    inside: str = ""

    def __str__(self) -> str:
        moved = "callback" if self.direction == "callback" else f"{self.direction.replace('_', ' ')} transfer"
        at = f" at {self.location}" if self.location else ""
        at += f" (in {self.inside})" if self.inside else ""
        advice = f": {self.advice}" if self.advice else ""
        return f"{'explicit ' if self.explicit else ''}{moved} of {self.what}{at}: {self.cause}{advice}"


class Transfers:
    """What moved while a context was open, in any thread.

    Implicit transfers are in `host_to_device` and `device_to_host`, explicit ones in `explicit`. An array that is read
    twice moves once. Callbacks are counted where they have run when the context closes, which waits for all arrays.
    """

    def __init__(self) -> None:
        # Reentrant: the collector may run a finalizer that reads an array while it is held.
        self._lock = threading.RLock()
        self._events: list[Transfer] = []
        self._fetched: dict[int, weakref.ref[jax.Array]] = {}

    @property
    def events(self) -> tuple[Transfer, ...]:
        with self._lock:
            return tuple(self._events)

    @property
    def host_to_device(self) -> int:
        return self._count("host_to_device")

    @property
    def device_to_host(self) -> int:
        return self._count("device_to_host")

    @property
    def callbacks(self) -> int:
        return self._count("callback")

    @property
    def explicit(self) -> int:
        return sum(event.explicit for event in self.events)

    @property
    def by_line(self) -> dict[str, dict[str, int]]:
        """The implicit transfers and the callbacks of each direction, by the user's line, the busiest first.

        `by_line["device_to_host"]` is for example `{"train.py:42": 10}`.
        """
        found: dict[str, Counter[str]] = {
            "host_to_device": Counter(),
            "device_to_host": Counter(),
            "callback": Counter(),
        }
        for event in self.events:
            if not event.explicit:
                found[event.direction][event.location or event.what] += 1
        return {direction: dict(lines.most_common()) for direction, lines in found.items()}

    def _count(self, direction: Direction) -> int:
        return sum(event.direction == direction and not event.explicit for event in self.events)

    def _add(self, event: Transfer) -> None:
        with self._lock:
            self._events.append(event)

    def _first_read(self, value: jax.Array) -> bool:
        """Whether an array is read for the first time. Identities are used again, so they count while it lives."""
        with self._lock:
            known = self._fetched.get(id(value))
            if known is not None and known() is value:
                return False
            self._fetched[id(value)] = weakref.ref(value)
            return True


class _Forbidden(Transfers):
    """Raises where a transfer happens; what cannot raise there, or was caught, is raised when the context closes."""

    def __init__(self, *, explicit: bool) -> None:
        super().__init__()
        self._explicit = explicit
        self._threads: list[str] = []

    def _add(self, event: Transfer) -> None:
        __tracebackhide__ = True
        super()._add(event)
        if not self._refuses(event):
            return
        with self._lock:
            self._threads.append(threading.current_thread().name)
        if event.direction != "callback":
            raise _error(event)

    def _refuses(self, event: Transfer) -> bool:
        return self._explicit or not event.explicit

    def raise_refused(self) -> None:
        __tracebackhide__ = True
        refused = [event for event in self.events if self._refuses(event)]
        if not refused:
            return
        here = self._threads[0] == threading.current_thread().name
        note = "The error was raised there, and something caught it." if here else f"In thread {self._threads[0]!r}."
        note = "" if refused[0].direction == "callback" else f"\n  {note}"
        more = f"\n  {len(refused) - 1} more like it" if len(refused) > 1 else ""
        raise _error(refused[0], note + more)


@contextlib.contextmanager
def count() -> Iterator[Transfers]:
    """Count transfers and callbacks inside, in any thread; asserts nothing.

    `with count() as counted: step(state, batch)`, then `counted.device_to_host` and the others. Use it for counting
    and not for timing: inside, every call of a jitted function and every read of an array calls Python.

    A thread that was ever inside `jax.debug_nans` has a hook of its own in JAX, which no other thread can reach. So
    of such threads only the one that opens the first context has its calls on JAX's fast path watched. It should close
    the last one too: where another thread does, the first is left with the hook of the watch in place of its own, and
    calls Python in each call of a jitted function.
    """
    watch = Transfers()
    with _telling(watch):
        yield watch
        _settle()


@contextlib.contextmanager
def forbid(*, explicit: bool = False) -> Iterator[Transfers]:
    """Raise `TransferError` at any implicit transfer inside, in any thread, and for callbacks when it closes.

    The error names the direction, what moved, the cause and the user's line. It is raised again when the context
    closes, should something have caught it, or it was another thread's. `explicit=True` forbids `jax.device_put`,
    `jax.device_get` and `copy_to_host_async` too.
    """
    __tracebackhide__ = True
    watch = _Forbidden(explicit=explicit)
    with _telling(watch):
        yield watch
        _settle()
    watch.raise_refused()


# Copied on every change, so that an observer may read it in any thread without a lock.
_open: tuple[Transfers, ...] = ()
_observing = contextlib.ExitStack()
# Reentrant: an interrupt's handler may open a context too.
_lock = threading.RLock()


@contextlib.contextmanager
def _telling(watch: Transfers) -> Iterator[None]:
    """Tell `watch` of every transfer inside. JAX is observed for as long as a context is open."""
    global _open
    try:
        with _lock:
            if not _open:
                _observing.enter_context(observing(_Tell()))
            _open = (*_open, watch)
        yield
    finally:
        with _lock:
            _open = tuple(other for other in _open if other is not watch)
            if not _open:
                _observing.close()


class _Tell:
    """Finds out what a transfer is, and tells every open context of it."""

    def moved_to_device(self, value: Any, frame: FrameType, *, explicit: bool) -> None:
        __tracebackhide__ = True
        what = text_of_array(value)
        words = said(lambda: transfer_causes.of_put(what, frame, explicit=explicit))
        line, inside = transfer_causes.line(frame), transfer_causes.library_line(frame)
        _tell(Transfer("host_to_device", what, *words, line, explicit, inside))

    def called(self, jitted: Any, args: tuple, kwargs: dict[str, Any], frame: FrameType) -> None:
        __tracebackhide__ = True
        try:
            moved = list(transfer_causes.of_call(jitted, args, kwargs, frame))
        except Exception:  # a tree or a leaf that cannot be described: the user's call has gone well all the same
            of_host = transfer_causes.any_of_host(jitted, args, kwargs)
            moved = [("a host value", transfer_causes.UNKNOWN)] if of_host else []
        line, inside = (transfer_causes.line(frame), transfer_causes.library_line(frame)) if moved else ("", "")
        for what, words in moved:
            _tell(Transfer("host_to_device", what, *words, line, inside=inside))

    def moved_to_host(self, value: jax.Array, frame: FrameType, *, explicit: bool) -> None:
        __tracebackhide__ = True
        if fetched(value):
            return
        told = tuple(watch for watch in _open if watch._first_read(value))
        if told:
            words = said(lambda: transfer_causes.of_read(frame, explicit=explicit))
            line, inside = transfer_causes.line(frame), transfer_causes.library_line(frame)
            _tell(Transfer("device_to_host", text_of_array(value), *words, line, explicit, inside), told)

    def called_back(self, kind: str, function: Any) -> None:
        text, inner = callback_function(function)
        if text:
            kind, what = "jax.debug.print", repr(text)
        else:
            kind = "jax.debug.callback" if kind == "jax.debug" else kind
            what = "a function" if inner is None else f"`{label_of(inner)}`"
        location = callsite.code_of(inner) if inner is not None else ""
        words: Words = _CALLBACK
        # Of a builtin the location is the name of its type.
        _tell(Transfer("callback", f"{kind} {what}", *words, location if ":" in location else ""))


def _tell(event: Transfer, told: tuple[Transfers, ...] | None = None) -> None:
    """Every context is told, also where one of them raises."""
    __tracebackhide__ = True
    error: TransferError | None = None
    for watch in _open if told is None else told:
        try:
            watch._add(event)
        except TransferError as raised:
            error = raised
    if error is not None:
        raise error.with_traceback(None)


def _settle() -> None:
    """Wait until the callbacks that are under way have run. What fails in them is its caller's to see."""
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):
            array.block_until_ready()


def _error(event: Transfer, more: str = "") -> TransferError:
    return TransferError(
        f"{event}{more}", direction=event.direction, what=event.what, cause=event.cause, location=event.location
    )
