"""Transfers between host and device, and callbacks from running programs: counted with their lines, or forbidden.

A transfer is implicit where the code does not ask for one: a NumPy array or a Python number as an argument of a jitted
function, `float(x)`, `if x > 0:`, `np.asarray(x)`, `print(x)`. `jax.device_put`, `jax.device_get` and
`copy_to_host_async` are explicit. `jax.transfer_guard` (https://docs.jax.dev/en/latest/transfer_guard.html) uses the
same words, but sees no transfer to the host on CPU.

On CPU a read counts although it copies nothing, but under Python 3.11 NumPy's reads are not seen there.
"""

import contextlib
import dataclasses
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Literal, get_args

import jax

from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.description import text_of_array
from perfsuite.measure.compiles.warmup import borrowed, warm
from perfsuite.measure.errors import TransferError
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.transfer_internals import callback_function, fetched, observing
from perfsuite.measure.runtime import transfer_causes
from perfsuite.measure.runtime.repeats import agreed
from perfsuite.measure.runtime.transfer_causes import Words, words_or_unknown

Direction = Literal["host_to_device", "device_to_host", "callback"]

SUFFIXES = {
    "host_to_device": " host to device transfers",
    "device_to_host": " device to host transfers",
    "callback": " callbacks",
    "explicit": " explicit transfers",
}

_CALLBACK: Words = "the program calls Python in each run", "take it out, or call it every so many steps only"


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One array that moved, or one callback.

    `what` is the shape and dtype, such as "float32[8,128]", or the function of a callback. `cause` says what did it,
    and `advice` what to do. `location` is the user's `file:line`, for a callback where its function is defined; "" if
    unknown. `inside` is the `file:line` of a library between the user's line and the transfer; "" if there is none.
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


class TransferCounts:
    """The counts of `events`: `explicit` counts the explicit transfers, the other counts leave them out."""

    events: tuple[Transfer, ...]

    @property
    def host_to_device(self) -> int:
        """Implicit transfers to a device."""
        return self._implicit("host_to_device")

    @property
    def device_to_host(self) -> int:
        """Implicit transfers to the host."""
        return self._implicit("device_to_host")

    @property
    def callbacks(self) -> int:
        """Runs of Python functions that a program calls."""
        return self._implicit("callback")

    @property
    def explicit(self) -> int:
        """Transfers that the code asks for."""
        return sum(event.explicit for event in self.events)

    def _implicit(self, direction: Direction) -> int:
        return sum(event.direction == direction and not event.explicit for event in self.events)


class TransferWatch(TransferCounts):
    """What moved while a context was open, in any thread.

    An array that is read twice moves once. Callbacks count once they have run; the context waits for all arrays when it
    closes. With `forbids` a transfer raises `TransferError` where it happens, an explicit one only with `explicit`.
    """

    def __init__(self, *, forbids: bool = False, explicit: bool = False) -> None:
        self.events = ()
        self._forbids, self._explicit = forbids, explicit
        self._refused: list[tuple[Transfer, str]] = []  # with the name of the thread
        # Reentrant: the collector may run a finalizer that reads an array while a thread holds it.
        self._lock = threading.RLock()
        self._fetched: dict[int, weakref.ref[jax.Array]] = {}

    @property
    def by_line(self) -> dict[str, dict[str, int]]:
        """The implicit transfers and the callbacks of each direction, by the user's line, the busiest first.

        `by_line["device_to_host"]` is for example `{"train.py:42": 10}`.
        """
        lines: dict[str, Counter[str]] = {direction: Counter() for direction in get_args(Direction)}
        for event in self.events:
            if not event.explicit:
                lines[event.direction][event.location or event.what] += 1
        return {direction: dict(counts.most_common()) for direction, counts in lines.items()}

    def raise_refused(self) -> None:
        """Raise for the callbacks that were refused, and again for a transfer whose error something caught."""
        __tracebackhide__ = True
        if not self._refused:
            return
        event, thread = self._refused[0]
        note = ""
        if event.direction != "callback":
            here = thread == threading.current_thread().name
            caught = "The error was raised there, and something caught it."
            note = f"\n  {caught}" if here else f"\n  In thread {thread!r}."
        more = len(self._refused) - 1
        raise _error(event, note + (f"\n  {more} more like it" if more else ""))

    def _add(self, event: Transfer) -> None:
        __tracebackhide__ = True
        refused = self._forbids and (self._explicit or not event.explicit)
        with self._lock:
            self.events += (event,)
            if refused:
                self._refused.append((event, threading.current_thread().name))
        if refused and event.direction != "callback":
            raise _error(event)

    def _first_read(self, value: jax.Array) -> bool:
        """Whether an array is read for the first time. Python reuses the identity of an array that is gone."""
        with self._lock:
            known = self._fetched.get(id(value))
            if known is not None and known() is value:
                return False
            self._fetched[id(value)] = weakref.ref(value)
            return True


@contextlib.contextmanager
def count_transfers() -> Iterator[TransferWatch]:
    """Count transfers and callbacks inside, in any thread, without asserting anything.

    `with count_transfers() as counted: step(state, batch)`, then `counted.device_to_host` and the others. Do not time
    inside: every call of a jitted function and every read of an array calls Python there.

    In a thread that was ever inside `jax.debug_nans`, which `jax.vmap` of a jitted function is too, calls on JAX's fast
    path are seen only if the thread opens the first context. It should then close the last one too, or its calls of
    jitted functions go on calling Python.
    """
    watch = TransferWatch()
    with _reporting_to(watch):
        yield watch
        _settle()


@contextlib.contextmanager
def forbid_transfers(*, explicit: bool = False) -> Iterator[TransferWatch]:
    """Raise `TransferError` at any implicit transfer inside, in any thread, and for callbacks when it closes.

    The error names the direction, what moved, the cause and the user's line. When the context closes it is raised again
    if something caught it, or if another thread raised it. `explicit=True` forbids `jax.device_put`, `jax.device_get`
    and `copy_to_host_async` too.
    """
    __tracebackhide__ = True
    watch = TransferWatch(forbids=True, explicit=explicit)
    with _reporting_to(watch):
        yield watch
        _settle()
    watch.raise_refused()


@dataclasses.dataclass
class CallTransfers(TransferCounts):
    """The implicit transfers, the callbacks and the explicit transfers of one warm call; `events` has each of them."""

    label: str
    events: tuple[Transfer, ...]

    @property
    def total(self) -> int:
        """Implicit transfers and callbacks: what `Budget(transfers=)` limits."""
        return self.host_to_device + self.device_to_host + self.callbacks

    def metrics(self, name: str) -> list[Metric]:
        """Four counts, each with what moved as its detail."""
        metrics = []
        for kind, suffix in SUFFIXES.items():
            events = [event for event in self.events if kind == ("explicit" if event.explicit else event.direction)]
            what = [f"{event.what}: {event.cause}" for event in events]
            places = {part: event.location for part, event in zip(what, events, strict=True) if event.location}
            unit = "callbacks" if kind == "callback" else "transfers"
            detail = dict(Counter(what)) or None
            metrics.append(Metric(name + suffix, len(events), unit, "count", detail=detail, places=places or None))
        return metrics

    def in_words(self) -> str:
        """One line for each implicit transfer and callback, equal ones together."""
        lines = Counter(str(event) for event in self.events if not event.explicit)
        return "\n".join(f"{line} ({times} times)" if times > 1 else line for line, times in lines.most_common())


def transfers_of(call: Call) -> CallTransfers:
    """Count the transfers and callbacks of one warm call, until its outputs are ready.

    Takes what two runs in a row agree on: what happens only in the first is not part of a step, what happens in every
    second is. Moves a call that carries on. Raises `MeasurementError` when none agree, and what `warm` raises.
    """
    __tracebackhide__ = True
    with borrowed(call) as subject:
        warm(subject.fn, over=[subject])

        def once() -> CallTransfers:
            with count_transfers() as counted:
                jax.block_until_ready(subject.run())
            return CallTransfers(call.label, counted.events)

        return agreed(once, _counts, f"{call.label}: the transfers differ")


def _counts(moved: CallTransfers) -> tuple[int, ...]:
    return moved.host_to_device, moved.device_to_host, moved.callbacks, moved.explicit


# Copied on every change, so that an observer may read it in any thread without a lock.
_open: tuple[TransferWatch, ...] = ()
_observing = contextlib.ExitStack()
# Reentrant: an interrupt's handler may open a context too.
_lock = threading.RLock()


@contextlib.contextmanager
def _reporting_to(watch: TransferWatch) -> Iterator[None]:
    """Report every transfer inside to `watch`. JAX is observed while at least one context is open."""
    global _open
    try:
        with _lock:
            if not _open:
                _observing.enter_context(observing(_Reporter()))
            _open = (*_open, watch)
        yield
    finally:
        with _lock:
            _open = tuple(other for other in _open if other is not watch)
            if not _open:
                _observing.close()


class _Reporter:
    """Describes each transfer, and reports it to every open context."""

    def moved_to_device(self, value: Any, frame: FrameType, *, explicit: bool) -> None:
        __tracebackhide__ = True
        what = text_of_array(value)
        words = words_or_unknown(lambda: transfer_causes.of_put(what, frame, explicit=explicit))
        _report(_moved("host_to_device", what, words, frame, explicit), _open)

    def called(self, jitted: Any, args: tuple, kwargs: dict[str, Any], frame: FrameType) -> None:
        __tracebackhide__ = True
        for what, words in transfer_causes.of_call(jitted, args, kwargs, frame):
            _report(_moved("host_to_device", what, words, frame), _open)

    def moved_to_host(self, value: jax.Array, frame: FrameType, *, explicit: bool) -> None:
        __tracebackhide__ = True
        watches = [] if fetched(value) else [watch for watch in _open if watch._first_read(value)]
        if watches:
            words = words_or_unknown(lambda: transfer_causes.of_read(frame, explicit=explicit))
            _report(_moved("device_to_host", text_of_array(value), words, frame, explicit), watches)

    def called_back(self, kind: str, function: Any) -> None:
        text, inner = callback_function(function)
        if text:
            what = f"jax.debug.print {text!r}"
        else:
            kind = "jax.debug.callback" if kind == "jax.debug" else kind
            what = f"{kind} {'a function' if inner is None else f'`{label_of(inner)}`'}"
        location = callsite.code_of(inner) if inner is not None else ""
        # The location of a builtin is the name of its type.
        _report(Transfer("callback", what, *_CALLBACK, location if ":" in location else ""), _open)


def _moved(direction: Direction, what: str, words: Words, frame: FrameType, explicit: bool = False) -> Transfer:
    location, inside = transfer_causes.lines(frame)
    return Transfer(direction, what, *words, location, explicit, inside)


def _report(event: Transfer, watches: Sequence[TransferWatch]) -> None:
    """Every context gets the event, even if one of them raises."""
    __tracebackhide__ = True
    error: TransferError | None = None
    for watch in watches:
        try:
            watch._add(event)
        except TransferError as raised:
            error = raised
    if error is not None:
        raise error.with_traceback(None)


def _settle() -> None:
    """Wait until the callbacks that are under way have run. Their errors are for the code that reads their outputs."""
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):
            array.block_until_ready()


def _error(event: Transfer, more: str = "") -> TransferError:
    return TransferError(
        f"{event}{more}", direction=event.direction, what=event.what, cause=event.cause, location=event.location
    )
