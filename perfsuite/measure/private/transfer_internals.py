"""The private names of JAX that observing transfers needs, all in this module.

`jax.transfer_guard` is the public way, but it can only raise or log, and on CPU it sees no transfer to the host
(jax 0.10.2: `float(x)`, `np.asarray(x)` and `jax.device_get(x)` all pass under "disallow"). This module replaces:

- `ArrayImpl._value`, which JAX itself reads an array through, and `copy_to_host_async`;
- on CPU, NumPy's way of reading an array in place, without Python. From Python 3.12 on, `ArrayImpl.__buffer__`
  (PEP 688) refuses, so that NumPy calls `ArrayImpl.__array__`, which reads `_value`, as for arrays of an accelerator.
  Python 3.11 has no `__buffer__`: there, `array`, `asarray` and `asanyarray` are replaced in NumPy's modules, and no
  other read in place is seen, such as `np.add(x, 1)`, `losses[i] = x`, `memoryview(x)`, or an `asarray` that a project
  imported by name;
- `xla_client.batched_device_put`, which moves what JAX's fast path does not. What the fast path moves is told by the
  hook of `program_runs`;
- the three functions that run the callbacks of compiled programs.

When JAX moves a name, `tests/private/test_transfer_internals.py` fails and says which.
"""

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

import jax
import numpy as np
from jax._src import array, callback, debugging
from jax._src.lib import guard_lib, xla_client

from perfsuite.measure.private.program_runs import hooked_calls
from perfsuite.measure.private.slow_path import places_argument

_CALLBACKS = {
    "jax.pure_callback": (callback, "pure_callback_impl"),
    "io_callback": (callback, "io_callback_impl"),
    # Outside jit a debug callback belongs to no program. Its arguments are read, and the read is observed by itself.
    "jax.debug": (debugging.debug_callback_p, "impl"),
}

_NUMPY_READS = ("array", "asarray", "asanyarray")


class Observer(Protocol):
    """Gets each transfer, in the thread that makes it. What it raises reaches the user's code."""

    def moved_to_device(self, value: Any, frame: FrameType, *, explicit: bool) -> None:
        """JAX is about to copy a host value, outside its fast path."""

    def called(self, jitted: Any, args: tuple, kwargs: dict[str, Any], frame: FrameType) -> None:
        """JAX's fast path has run a jitted function; some of the arguments may be host values."""

    def moved_to_host(self, value: jax.Array, frame: FrameType, *, explicit: bool) -> None:
        """The host is about to read an array."""

    def called_back(self, kind: str, function: Any) -> None:
        """A running program calls Python."""


_here = threading.local()
"""`_here.in_callback` is true in a thread that runs a callback: what a callback reads is no transfer of its own."""


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Tell `observer` of every transfer and callback inside, in any thread. Only one such context may be open."""
    with contextlib.ExitStack() as undo:

        def replace(owner: Any, name: str, new: Callable[[Any], Any]) -> None:
            old = inspect.getattr_static(owner, name)
            undo.callback(setattr, owner, name, old)
            setattr(owner, name, new(old))

        replace(array.ArrayImpl, "_value", lambda old: property(_reading(observer, old.fget)))
        replace(array.ArrayImpl, "copy_to_host_async", lambda old: _reading(observer, old, explicit=True))
        if hasattr(array.ArrayImpl, "__buffer__"):
            replace(array.ArrayImpl, "__buffer__", lambda old: _no_buffer)
        else:
            for module, name in _numpy_reads():
                replace(module, name, lambda old: _reading(observer, old))
        replace(xla_client, "batched_device_put", lambda old: _putting(observer, old))
        undo.enter_context(hooked_calls(functools.partial(_called, observer)))
        for kind, (owner, name) in _CALLBACKS.items():
            replace(owner, name, functools.partial(_calling_back, observer, kind))
        yield


def fetched(value: jax.Array) -> bool:
    """Whether an array keeps a copy on the host, so that reading it moves nothing."""
    return getattr(value, "_npy_value", None) is not None


def callback_function(flat: Any) -> tuple[str, Any]:
    """From the function that JAX runs for a callback: the format of a `debug.print` or "", and the user's function."""
    if hasattr(flat, "callback_func"):
        return "", flat.callback_func
    with contextlib.suppress(TypeError, ValueError):
        inner = inspect.getclosurevars(flat).nonlocals.get("callback")
        if isinstance(inner, functools.partial) and inner.func is debugging._format_print_callback:
            return str(inner.args[0]), None
        return "", inner
    return "", None


def _in_callback() -> bool:
    return getattr(_here, "in_callback", False)


def _reading(observer: Observer, read: Callable[..., Any], *, explicit: bool = False) -> Callable[..., Any]:
    """`read`, which first tells of every array among its arguments."""

    @functools.wraps(read)
    def reading(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        for value in (*args, *kwargs.values()):
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, array.ArrayImpl) and not each.is_deleted() and not _in_callback():
                    state = guard_lib.thread_local_state()
                    # Some changes of sharding go through the host.
                    wanted = explicit or state.explicit_device_get or state.explicit_device_put
                    observer.moved_to_host(each, sys._getframe(1), explicit=wanted)
        return read(*args, **kwargs)

    return reading


def _no_buffer(self: Any, flags: int) -> memoryview:
    raise BufferError("perfsuite counts transfers here, so a jax.Array has no buffer: use np.asarray(x)")


def _numpy_reads() -> list[tuple[Any, str]]:
    """The places of the functions by which NumPy's own Python code reads an array, such as `np.stack`'s.

    A module that is first imported inside the context, and takes one of them from NumPy, keeps what it got. That goes
    on reading arrays, with nobody left to tell.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "numpy"]
    return [
        (module, name)
        for module in modules
        for name in _NUMPY_READS
        if getattr(module, "__dict__", {}).get(name) is getattr(np, name)
    ]


def _putting(observer: Observer, put: Callable[..., Any]) -> Callable[..., Any]:
    def batched_device_put(aval: Any, sharding: Any, shards: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        frame = sys._getframe(1)
        of_host = not all(isinstance(shard, jax.Array) for shard in shards)
        if of_host and not _in_callback() and not _in_fast_path(frame):
            explicit = guard_lib.thread_local_state().explicit_device_put
            observer.moved_to_device(aval, frame, explicit=explicit)
        return put(aval, sharding, shards, *args, **kwargs)

    return batched_device_put


def _in_fast_path(frame: FrameType | None) -> bool:
    """Whether JAX's fast path puts an argument on several devices; its hook reports that call."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("jax."):
        if places_argument(frame):
            return True
        frame = frame.f_back
    return False


def _called(
    observer: Observer, jitted: Any, args: tuple, kwargs: dict[str, Any], outputs: Any, frame: FrameType
) -> None:
    __tracebackhide__ = True
    if not _in_callback():
        observer.called(jitted, args, kwargs, frame)


def _calling_back(observer: Observer, kind: str, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def called_back(*args: Any, **kwargs: Any) -> Any:
        observer.called_back(kind, kwargs.get("callback"))
        before, _here.in_callback = _in_callback(), True
        try:
            return run(*args, **kwargs)
        finally:
            _here.in_callback = before

    return called_back
