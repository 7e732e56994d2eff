"""The private names of JAX and the parts of CPython that the observing of transfers needs, all of them here.

`jax.transfer_guard` is the public way, but it only raises, counts nothing, and on CPU it sees no transfer to the host
(jax 0.10.2: `float(x)`, `np.asarray(x)` and `jax.device_get(x)` all pass under "disallow"). So these are observed:

- `ArrayImpl._value`, which every read of an array goes through, and `copy_to_host_async`. NumPy reads an array of the
  CPU through the buffer protocol instead, and never calls Python; so the protocol is taken away in the meantime, as
  arrays of accelerators have none.
- `xla_client.batched_device_put`, which whatever is not on JAX's fast path uses, and the hook that JAX's fast path
  calls after a call (the one of `jax_debug_nans`).
- the three functions that run the callbacks of compiled programs.

Where a name has moved, `tests/measure/compat/test_transfer_internals.py` fails and says which.
"""

import contextlib
import ctypes
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

import jax
from jax._src import api, array, callback, debugging
from jax._src.lib import guard_lib, xla_client

_AS_BUFFER = 17
"""The place of `tp_as_buffer` among the words that follow the head of a type (CPython's `PyTypeObject`)."""


class Observer(Protocol):
    """Is told of transfers, in the thread that makes them. What it raises reaches the user's code."""

    def moved_to_device(self, value: Any, frame: FrameType, *, explicit: bool) -> None:
        """A host value is about to be copied, outside JAX's fast path."""

    def called(self, jitted: Any, args: tuple, kwargs: dict[str, Any], frame: FrameType) -> None:
        """A jitted function was called on JAX's fast path, with arguments that may be of the host."""

    def moved_to_host(self, value: jax.Array, frame: FrameType, *, explicit: bool) -> None:
        """An array is about to be read."""

    def called_back(self, kind: str, function: Any) -> None:
        """A program that is running calls Python."""


class _Here(threading.local):
    in_callback = False


_here = _Here()


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Tell `observer` of every transfer and callback inside, in any thread. There must be one at a time only."""
    with contextlib.ExitStack() as undo:
        undo.callback(_replace(array.ArrayImpl, "_value", property(_reading(observer))))
        undo.callback(_replace(array.ArrayImpl, "copy_to_host_async", _copying(observer)))
        undo.callback(_take_buffer_protocol(array.ArrayImpl))
        undo.callback(_replace(xla_client, "batched_device_put", _putting(observer)))
        undo.callback(_hook_calls(observer))
        undo.callback(_replace(callback, "pure_callback_impl", _calling_back(observer, callback.pure_callback_impl)))
        undo.callback(_replace(callback, "io_callback_impl", _calling_back(observer, callback.io_callback_impl)))
        # A debug callback outside jit is no callback of a program; its arguments are read, which is seen by itself.
        implementation = debugging.debug_callback_p.impl
        undo.callback(_replace(debugging.debug_callback_p, "impl", _calling_back(observer, implementation)))
        yield


def fetched(value: jax.Array) -> bool:
    """Whether an array keeps a copy on the host, so that reading it moves nothing."""
    return getattr(value, "_npy_value", None) is not None


def callback_function(flat: Any) -> tuple[str, Any]:
    """The user's function behind the one that JAX runs for a callback, and the format of a `debug.print`, or ""."""
    if hasattr(flat, "callback_func"):
        return "", flat.callback_func
    with contextlib.suppress(TypeError, ValueError):
        inner = inspect.getclosurevars(flat).nonlocals.get("callback")
        if isinstance(inner, functools.partial) and inner.func is debugging._format_print_callback:
            return str(inner.args[0]), None
        return "", inner
    return "", None


def _reading(observer: Observer) -> Callable[[Any], Any]:
    read = array.ArrayImpl._value.fget

    def _value(self: Any) -> Any:
        __tracebackhide__ = True
        if not _here.in_callback and not self.is_deleted():
            state = guard_lib.thread_local_state()
            # Some changes of sharding go by way of the host.
            explicit = state.explicit_device_get or state.explicit_device_put
            observer.moved_to_host(self, sys._getframe(1), explicit=explicit)
        return read(self)

    return _value


def _copying(observer: Observer) -> Callable[[Any], None]:
    copy = array.ArrayImpl.copy_to_host_async

    def copy_to_host_async(self: Any) -> None:
        __tracebackhide__ = True
        if not _here.in_callback and not self.is_deleted():
            observer.moved_to_host(self, sys._getframe(1), explicit=True)
        copy(self)

    return copy_to_host_async


def _putting(observer: Observer) -> Callable[..., Any]:
    put = xla_client.batched_device_put

    def batched_device_put(aval: Any, sharding: Any, shards: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        frame = sys._getframe(1)
        of_host = not all(isinstance(shard, jax.Array) for shard in shards)
        if of_host and not _here.in_callback and not _in_fast_path(frame):
            explicit = guard_lib.thread_local_state().explicit_device_put
            observer.moved_to_device(aval, frame, explicit=explicit)
        return put(aval, sharding, shards, *args, **kwargs)

    return batched_device_put


def _in_fast_path(frame: FrameType | None) -> bool:
    """Whether JAX's fast path puts an argument on several devices: of such a call it tells by itself."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("jax."):
        if frame.f_code.co_name == "cc_shard_arg":
            return True
        frame = frame.f_back
    return False


def _hook_calls(observer: Observer) -> Callable[[], None]:
    state = api._post_hook_state
    before, before_here = state.get_global(), state.get_local()

    def hook(jitted: Any, args: tuple, kwargs: dict[str, Any], outputs: Any) -> None:
        __tracebackhide__ = True
        first = before_here if callable(before_here) else before
        if first is not None:
            first(jitted, args, kwargs, outputs)
        if not _here.in_callback:
            observer.called(jitted, args, kwargs, sys._getframe(1))

    thread = threading.get_ident()
    # A thread that was ever inside `jax.debug_nans` has a hook of its own from then on, if only None.
    has_own = before_here is None or callable(before_here)

    def undo() -> None:
        if state.get_global() is hook:  # else jax_debug_nans was switched in the meantime
            state.set_global(before)
        if has_own and threading.get_ident() == thread and state.get_local() is hook:
            state.set_local(before_here)

    state.set_global(hook)
    if has_own:
        state.set_local(hook)
    return undo


def _calling_back(observer: Observer, run: Callable[..., Any]) -> Callable[..., Any]:
    kind = {"pure_callback_impl": "jax.pure_callback", "io_callback_impl": "io_callback"}.get(run.__name__, "jax.debug")

    @functools.wraps(run)
    def called_back(*args: Any, **kwargs: Any) -> Any:
        observer.called_back(kind, kwargs.get("callback"))
        before, _here.in_callback = _here.in_callback, True
        try:
            return run(*args, **kwargs)
        finally:
            _here.in_callback = before

    return called_back


def _replace(owner: Any, name: str, new: Any) -> Callable[[], None]:
    old = inspect.getattr_static(owner, name)
    setattr(owner, name, new)
    return lambda: setattr(owner, name, old)


def _take_buffer_protocol(of: type) -> Callable[[], None]:
    """Take `memoryview` and NumPy's way to read without Python from a type. Returns what gives it back."""
    if (procedures := _buffer_procedures(of)) is None or not procedures.value:
        return lambda: None
    taken = procedures.value
    procedures.value = None
    return lambda: setattr(procedures, "value", taken)


def _buffer_procedures(of: type) -> ctypes.c_void_p | None:
    """The word of `bf_getbuffer` of a type; None where the type, or this Python, has none where it is looked for."""
    if _slot_of(bytes) and _slot_of(bytearray) and _slot_of(memoryview) and not any(map(_slot_of, (int, list, dict))):
        slot = _slot_of(of)
        return ctypes.c_void_p.from_address(slot) if slot else None
    return None


def _slot_of(of: type) -> int | None:
    if sys.implementation.name != "cpython":
        return None
    head = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
    return ctypes.c_void_p.from_address(id(of) + head + _AS_BUFFER * ctypes.sizeof(ctypes.c_void_p)).value
