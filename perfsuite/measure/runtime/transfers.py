"""Transfers between host and device, and callbacks from running programs: counted with their lines, or forbidden.

A transfer is implicit where the code does not ask for one: a NumPy array or a Python number as an argument of a jitted
function, `float(x)`, `if x > 0:`, `np.asarray(x)`, `print(x)`. `jax.device_put`, `jax.device_get` and
`copy_to_host_async` are explicit. `jax.transfer_guard` (https://docs.jax.dev/en/latest/transfer_guard.html) uses the
same words, but sees no transfer to the host on CPU.

On CPU a read counts although it copies nothing, but under Python 3.11 NumPy's reads are not seen there.
"""

import contextlib
import dataclasses
import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Literal, get_args

import jax
import numpy as np

from perfsuite.measure.call import Call, label_of, leaves_with_paths, text_of_array
from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.settle import agreed_run, borrowed, settle
from perfsuite.measure.compiles.signature import with_parameter
from perfsuite.measure.errors import TransferError
from perfsuite.measure.metric import Metric
from perfsuite.measure.private import jax_stack
from perfsuite.measure.private.execution import is_fetched, observing
from perfsuite.measure.switches import switches_first

Direction = Literal["host_to_device", "device_to_host", "device_to_device", "callback"]

SUFFIXES = {
    "host_to_device": " host to device transfers",
    "device_to_host": " device to host transfers",
    "device_to_device": " device to device transfers",
    "callback": " callbacks",
    "explicit": " explicit transfers",
    "blocking": " blocking reads",
}

_ADVICE: dict[Direction, str] = {
    "host_to_device": "put it on the device before the step, with jax.device_put, or move the operation into jit",
    "device_to_host": "the host waits for it; keep it on the device, or fetch it every so many steps with "
    "jax.device_get",
    "device_to_device": "put it where the program needs it, once, before the loop: jax.device_put(x, sharding)",
    "callback": "take it out, or call it every so many steps only",
}

_ALL_AT_ONCE = "fetch all at once: one jax.device_get of a tuple waits once"

_NUMBERS = (bool, int, float, complex)
_OUTSIDE = "in an operation outside jit"

_NUMPY = "np.asarray(x), or a NumPy function of x"
_READS = {
    "": _NUMPY,
    "__array__": _NUMPY,
    "__bool__": "bool(x), as in `if x:` or `while x < y:`",
    "__reduce__": "pickle of x",
    "device_get": "jax.device_get",
    "device_put": "jax.device_put to another sharding",
}
"""What the user wrote, by the function that it calls, where the function's name does not tell."""


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One array that moved, or one callback.

    `what` is the shape and dtype, such as "float32[8,128]", or the kind of a callback. `cause` says what did it.
    `location` is the user's `file:line`, "" for a callback.
    """

    direction: Direction
    what: str
    cause: str
    location: str = ""
    explicit: bool = False

    def __str__(self) -> str:
        moved = "callback" if self.direction == "callback" else f"{self.direction.replace('_', ' ')} transfer"
        at = f" at {self.location}" if self.location else ""
        if self.explicit:
            return f"explicit {moved} of {self.what}{at}: {self.cause}"
        return f"{moved} of {self.what}{at}: {self.cause}: {_ADVICE[self.direction]}"


class Transfers:
    """What moved in one warm call, or while a context was open, in any thread: `events` has each transfer.

    `explicit` counts the transfers that the code asks for; the other counts leave them out. An array that is read twice
    moves once. Callbacks count once they have run; a context waits for all arrays when it closes.

    `waits` has the reads that the host waits for, explicit ones too, and `blocking_reads` their number. Arrays whose
    copies begin before it waits, as those of a list in one `jax.device_get`, are one.
    """

    def __init__(self, refuses: Callable[[Transfer], bool] = lambda event: False) -> None:
        self.events: tuple[Transfer, ...] = ()
        self.waits: tuple[Transfer, ...] = ()
        self._refuses = refuses
        self._refused: list[Transfer] = []
        # Reentrant: the collector may run a finalizer that reads an array while a thread holds it.
        self._lock = threading.RLock()
        self._fetched: dict[int, tuple[weakref.ref[jax.Array], int]] = {}

    @property
    def host_to_device(self) -> int:
        """Implicit transfers to a device."""
        return self._implicit("host_to_device")

    @property
    def device_to_host(self) -> int:
        """Implicit transfers to the host."""
        return self._implicit("device_to_host")

    @property
    def device_to_device(self) -> int:
        """Implicit transfers of an array to other devices."""
        return self._implicit("device_to_device")

    @property
    def blocking_reads(self) -> int:
        """Reads of arrays that the host waits for."""
        return len(self.waits)

    @property
    def callbacks(self) -> int:
        """Runs of Python functions that a program calls."""
        return self._implicit("callback")

    @property
    def explicit(self) -> int:
        """Transfers that the code asks for."""
        return sum(event.explicit for event in self.events)

    @property
    def total(self) -> int:
        """Implicit transfers and callbacks: what `Budget(transfers=)` limits."""
        return len(self.events) - self.explicit

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

    def metrics(self, name: str) -> list[Metric]:
        """The counts, each with what moved as its detail."""
        metrics = []
        for kind, suffix in SUFFIXES.items():
            events = [event for event in self.events if kind == ("explicit" if event.explicit else event.direction)]
            events = list(self.waits) if kind == "blocking" else events
            what = [f"{event.what}: {event.cause}" for event in events]
            places = {part: event.location for part, event in zip(what, events, strict=True) if event.location}
            unit = {"callback": "callbacks", "blocking": "reads"}.get(kind, "transfers")
            detail = dict(Counter(what)) or None
            metrics.append(Metric(name + suffix, len(events), unit, "count", detail=detail, places=places or None))
        return metrics

    def in_words(self) -> str:
        """One line for each implicit transfer and callback, equal ones together."""
        return _in_words(str(event) for event in self.events if not event.explicit)

    def waits_in_words(self) -> str:
        """One line for each place that waits, and what to do."""
        places = (f"waits for {event.what} at {event.location}: {event.cause}" for event in self.waits)
        return f"{_in_words(places)}\n  {_ALL_AT_ONCE}"

    def _implicit(self, direction: Direction) -> int:
        return sum(event.direction == direction and not event.explicit for event in self.events)

    def _add(self, event: Transfer) -> None:
        """Raises `TransferError` for a transfer that is refused; `_raise_refused` does for a callback."""
        __tracebackhide__ = True
        refused = self._refuses(event)
        with self._lock:
            self.events += (event,)
            if refused:
                self._refused.append(event)
        if refused and event.direction != "callback":
            raise _error(event)

    def _raise_refused(self) -> None:
        """Raise for the callbacks that were refused, and again for a transfer whose error did not end the block."""
        __tracebackhide__ = True
        if self._refused:
            first, *others = self._refused
            caught = "\n  Something caught the error there, or it was raised in another thread."
            more = f"\n  {len(others)} more like it" if others else ""
            raise _error(first, ("" if first.direction == "callback" else caught) + more)

    def _first_read(self, value: jax.Array) -> bool:
        """Whether an array is read for the first time. Python reuses the identity of an array that is gone."""
        with self._lock:
            last = self._fetched.get(id(value))
            if last is not None and last[0]() is value:
                return False
            self._fetched[id(value)] = weakref.ref(value), len(self.waits)
            return True

    def _blocks(self, value: jax.Array) -> bool:
        """Whether the host has not waited since the copy of an array began."""
        return self._fetched.get(id(value), (None, 0))[1] == len(self.waits)


def _in_words(lines: Iterable[str]) -> str:
    counts = Counter(lines).most_common()
    return "\n".join(f"{line} ({times} times)" if times > 1 else line for line, times in counts)


@contextlib.contextmanager
def count_transfers() -> Iterator[Transfers]:
    """Count transfers and callbacks inside, in any thread, without asserting anything.

    `with count_transfers() as counted: step(state, batch)`, then `counted.device_to_host` and the others. Do not time
    inside: every call of a jitted function and every read of an array calls Python there.

    In a thread that was ever inside `jax.debug_nans`, which `jax.vmap` of a jitted function is too, calls on JAX's fast
    path are seen only if the thread opens the first context. It should then close the last one too, or its calls of
    jitted functions go on calling Python.
    """
    watch = Transfers()
    with _reporting_to(watch):
        yield watch
        _settle()


@contextlib.contextmanager
def forbid_transfers(*, explicit: bool = False) -> Iterator[Transfers]:
    """Raise `TransferError` at any implicit transfer inside, in any thread, and for callbacks when it closes.

    The error names the direction, what moved, the cause and the user's line. When the context closes it is raised again
    if something caught it, or if another thread raised it. `explicit=True` forbids `jax.device_put`, `jax.device_get`
    and `copy_to_host_async` too.
    """
    __tracebackhide__ = True
    watch = Transfers(lambda event: explicit or not event.explicit)
    with _reporting_to(watch):
        yield watch
        _settle()
    watch._raise_refused()


def transfers_of(call: Call) -> Transfers:
    """Count the transfers and callbacks of one warm call, until its outputs are ready.

    Takes what two runs in a row agree on: what happens only in the first is not part of a step, what happens in every
    second is. Moves a call that carries on. Raises `MeasurementError` when none agree, and what `warm` raises.
    """
    __tracebackhide__ = True
    with borrowed(call) as subject:
        settle(subject)

        def once() -> Transfers:
            with count_transfers() as counted:
                jax.block_until_ready(subject.run())
            return counted

        return agreed_run(once, _counts, f"{call.label}: the transfers differ")


def _counts(moved: Transfers) -> tuple[int, ...]:
    directions = (moved._implicit(direction) for direction in get_args(Direction))
    return *directions, moved.explicit, moved.blocking_reads


# Copied on every change, so that a transfer may read it in any thread without a lock.
_open: tuple[Transfers, ...] = ()
_observing = contextlib.ExitStack()
# Reentrant: an interrupt's handler may open a context too.
_lock = threading.RLock()


@contextlib.contextmanager
def _reporting_to(watch: Transfers) -> Iterator[None]:
    """Report every transfer inside to `watch`. JAX is observed while at least one context is open."""
    global _open
    try:
        with _lock:
            if not _open:
                fetched = functools.partial(_read, waits=False)
                placed = functools.partial(_placed, direction="host_to_device", what="a host value")
                moved = functools.partial(_placed, direction="device_to_device", what="an array of other devices")
                _observing.enter_context(observing(_read, fetched, placed, moved, _called, _called_back))
            _open = (*_open, watch)
        yield
    finally:
        with _lock:
            _open = tuple(other for other in _open if other is not watch)
            if not _open:
                _observing.close()


def _read(array: jax.Array, frame: FrameType, explicit: bool, waits: bool = True) -> None:
    __tracebackhide__ = True
    if is_fetched(array):  # an array that has a copy on the host moves no more
        return
    watches = [watch for watch in _open if watch._first_read(array)]
    waiting = [watch for watch in _open if waits and watch._blocks(array)]
    if watches or waiting:
        cause = functools.partial(_read_by, frame, explicit)
        event = _transfer("device_to_host", text_of_array(array), cause, frame, explicit)
        for watch in waiting:
            watch.waits += (event,)
        _report(event, watches)


def _placed(value: Any, frame: FrameType, explicit: bool, direction: Direction, what: str) -> None:
    __tracebackhide__ = True
    cause = functools.partial(_placed_by, frame, explicit, what)
    _report(_transfer(direction, text_of_array(value), cause, frame, explicit), _open)


def _called(jitted: Any, args: tuple, kwargs: dict[str, Any], outputs: Any, frame: FrameType) -> None:
    __tracebackhide__ = True
    events = []
    with contextlib.suppress(Exception):  # the call has gone well: arguments without paths may not make it fail here
        for path, leaf in _host_arguments(jitted, args, kwargs):
            cause = functools.partial(_passed, jitted, path, leaf, frame)
            events.append(_transfer("host_to_device", text_of_array(jax.typeof(leaf)), cause, frame))
        arrays = [leaf for leaf in jax.tree.leaves(outputs) if isinstance(leaf, jax.Array)]
        devices = set().union(*(leaf.sharding.device_set for leaf in arrays))
        # JAX moves an array to the one device of a program in C++, which its guard does not see (jax 0.10.2).
        for path, leaf in leaves_with_paths(args, kwargs) if len(devices) == 1 else ():
            if isinstance(leaf, jax.Array) and leaf.sharding.device_set != devices:  # a donated one too
                cause = functools.partial(_passed, jitted, path, leaf, frame)
                events.append(_transfer("device_to_device", text_of_array(leaf), cause, frame))
    for event in events:
        _report(event, _open)


def _called_back(kind: str) -> None:
    _report(Transfer("callback", kind, "the program calls Python in each run"), _open)


def _transfer(
    direction: Direction, what: str, cause: Callable[[], str], frame: FrameType, explicit: bool = False
) -> Transfer:
    try:
        text = cause()
    except Exception:  # a transfer counts even if nothing on the stack explains it
        text = "no cause known"
    return Transfer(direction, what, text, callsite.location(frame), explicit)


def _report(event: Transfer, watches: Sequence[Transfers]) -> None:
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
    text = switches_first("perf.no_transfers", f"{event}{more}")
    return TransferError(text, direction=event.direction, what=event.what, cause=event.cause, location=event.location)


# Causes, read from the stack and from the arguments of a call.


def _read_by(frame: FrameType, explicit: bool) -> str:
    """What reads an array: the outermost function of JAX or NumPy between the user's line and the read."""
    name, package = "copy_to_host_async" if explicit else "", ""
    outer: FrameType | None = frame
    while outer is not None and _package(outer) in ("jax", "numpy"):
        name, package = outer.f_code.co_qualname.removesuffix(".<locals>.<genexpr>"), _package(outer)
        outer = outer.f_back
    name = name.rpartition(".")[2]
    return _READS.get(name) or f"{'np.' if package == 'numpy' else ''}{name.strip('_')}(x)"


def _placed_by(frame: FrameType, explicit: bool, value: str) -> str:
    """What moves a value outside JAX's fast path: the user's call has it as an argument, or an operation."""
    if explicit:
        return "jax.device_put"
    outer, transformed = _outermost(frame)
    if transformed:
        return f"`{transformed}` was called with {value}"
    if jax_stack.PLACING.runs(outer):  # JAX's fast path, which has no frame for the function
        return f"a jitted function was called with {value}"
    site = callsite.on_stack(frame)
    if site.through or site.eager or site.function is None:
        return f"{value} {_OUTSIDE}"
    return f"`{label_of(site.function)}` was called with {value}"


def _passed(jitted: Any, path: str, leaf: Any, frame: FrameType) -> str:
    """What moves an argument on JAX's fast path: the user's call, also through a wrapper such as `filter_jit`."""
    if transformed := _outermost(frame)[1]:
        return f"`{transformed}` was called with {_kind(leaf)}"
    # JAX makes a function without a name where a transformation such as jax.vmap runs an operation outside jit.
    nameless = not getattr(jitted, "__name__", "")
    if nameless or jax_stack.belongs_to_jax(getattr(jitted, "__wrapped__", jitted)):
        return f"{_kind(leaf)} {_OUTSIDE}"
    site, function = callsite.on_stack(frame), jitted
    for passed, value in leaves_with_paths(site.args, site.kwargs):
        if value is leaf and site.function is not None:
            path, function = passed, site.function
    return f"`{label_of(function)}` was called with {_kind(leaf)} at {with_parameter(path, function)}"


def _outermost(frame: FrameType) -> tuple[FrameType, str]:
    """JAX's outermost frame, and the jitted function of the user's whose program a transformation runs; "" for none."""
    function = ""
    while True:
        if (bound := jax_stack.bound_program(frame)) is not None and not bound.of_jax:
            function = "lambda" if bound.name == "<lambda>" else bound.name
        if frame.f_back is None or _package(frame.f_back) != "jax":
            return frame, function
        frame = frame.f_back


def _kind(leaf: Any) -> str:
    if isinstance(leaf, jax.Array):
        return "an array of other devices"
    if not hasattr(leaf, "shape"):  # JAX has types of its own for numbers that code contains
        return f"a Python {next(kind for kind in _NUMBERS if isinstance(leaf, kind)).__name__}"
    if not leaf.shape:
        return "a number"  # `jnp.ones` passes one, too
    return "a NumPy array" if isinstance(leaf, np.ndarray) else "a host value"


def _package(frame: FrameType) -> str:
    return (frame.f_globals.get("__name__") or "").partition(".")[0]


def _is_of_host(leaf: Any) -> bool:
    # JAX wraps constants in a type of its own that is like a NumPy array.
    return not isinstance(leaf, jax.Array) and (
        isinstance(leaf, _NUMBERS) or (hasattr(leaf, "dtype") and hasattr(leaf, "shape"))
    )


def _host_arguments(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The arguments that JAX's fast path moves, with their paths: values of the host that the program reads."""
    traced = jax_stack.without_statics(args, kwargs, jax_stack.static_arguments(jitted))
    if not any(map(_is_of_host, jax.tree.leaves(traced))):
        return []
    leaves = list(leaves_with_paths(*traced))
    read = _read_by_program(jitted, args, kwargs)
    read += [True] * (len(leaves) - len(read))
    return [leaf for leaf, used in zip(leaves, read, strict=False) if used and _is_of_host(leaf[1])]


def _read_by_program(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> list[bool]:
    """Which of the traced leaves the program reads; empty if unknown."""
    try:
        jaxpr = jitted.trace(*args, **kwargs).jaxpr.jaxpr  # JAX has traced it before, and answers from its cache
    except Exception:
        return []
    needed = {id(out) for out in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):  # without effects: JAX has no fast path for those
        if any(id(out) in needed for out in equation.outvars):
            needed.update(map(id, equation.invars))
    return [id(variable) in needed for variable in jaxpr.invars]
