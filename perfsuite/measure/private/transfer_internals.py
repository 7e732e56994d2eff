"""The private names of JAX that observing transfers needs, all in this module.

`jax.transfer_guard` is the public way, but it can only raise or log, and on CPU it sees no transfer to the host
(jax 0.10.2: `float(x)`, `np.asarray(x)` and `jax.device_get(x)` all pass under "disallow"). This module replaces:

- `ArrayImpl._value`, which JAX itself reads an array through, and `copy_to_host_async`;
- on CPU, `ArrayImpl.__buffer__` (PEP 688), through which NumPy reads an array in place: it refuses, so that NumPy calls
  `ArrayImpl.__array__`, which reads `_value`, as for arrays of an accelerator. Python 3.11 has no `__buffer__`, and no
  read by NumPy is seen there;
- `xla_client.batched_device_put`, which moves what JAX's fast path does not. What the fast path moves is told by the
  hook of `program_runs`;
- the three functions that run the callbacks of compiled programs.
"""

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax
import numpy as np

from perfsuite.measure.private.names import Attribute, Moved, Name
from perfsuite.measure.private.program_runs import Hook, hooked_calls
from perfsuite.measure.private.slow_path import PLACING, places_argument

_ARRAY = Name("jax._src.array", "ArrayImpl")
_VALUE = Name("jax._src.array", "ArrayImpl._value")
_COPY = Name("jax._src.array", "ArrayImpl.copy_to_host_async")
_KEPT = Attribute("jax._src.array", "_npy_value")
_PUT = Name("jax._src.lib", "xla_client.batched_device_put")
_THREAD = Name("jax._src.lib", "guard_lib.thread_local_state")
_PLACING = PLACING
"""What `places_argument` looks for."""

_CALLBACKS = {
    "jax.pure_callback": Name("jax._src.callback", "pure_callback_impl", called=True),
    "io_callback": Name("jax._src.callback", "io_callback_impl", called=True),
    # Outside jit a debug callback belongs to no program. Its arguments are read, and the read is observed by itself.
    "jax.debug.print or jax.debug.callback": Name("jax._src.debugging", "debug_callback_p.impl"),
}

Move = Callable[[Any, FrameType, bool], None]
"""Gets the array or its type, the frame of JAX's that moves it, and whether the code asked for it."""

_here = threading.local()
"""`_here.in_callback` is true in a thread that runs a callback: what a callback reads is no transfer of its own."""


@contextlib.contextmanager
def observing(read: Move, placed: Move, called: Hook, called_back: Callable[[str], None]) -> Iterator[None]:
    """Tell of every transfer and callback inside, in the thread that makes it. Only one such context may be open.

    `read` is called before the host reads an array, `placed` before a host value goes to a device outside of JAX's fast
    path, and `called` when that has run a jitted function: some of its arguments may be host values. `called_back` gets
    the kind of a callback before it runs. What these raise reaches the user's code.
    """

    def hook(jitted: Any, args: tuple, kwargs: dict[str, Any], outputs: Any, frame: FrameType) -> None:
        __tracebackhide__ = True
        if not _in_callback():
            called(jitted, args, kwargs, outputs, frame)

    with contextlib.ExitStack() as replaced:
        replaced.enter_context(_VALUE.replaced(lambda old: property(_reading(read, old.fget))))
        replaced.enter_context(_COPY.replaced(lambda old: _reading(read, old, explicit=True)))
        if sees_numpy():
            array = _ARRAY.get()
            replaced.callback(setattr, array, "__buffer__", inspect.getattr_static(array, "__buffer__"))
            array.__buffer__ = _no_buffer
        replaced.enter_context(_PUT.replaced(lambda old: _putting(placed, old)))
        replaced.enter_context(hooked_calls(hook))
        for kind, name in _CALLBACKS.items():
            replaced.enter_context(name.replaced(functools.partial(_calling_back, called_back, kind)))
        yield


def sees_numpy() -> bool:
    """Whether reads by NumPy are seen on CPU: from Python 3.12 on."""
    return hasattr(_ARRAY.get(), "__buffer__")


def fetched(value: jax.Array) -> bool:
    """Whether an array keeps a copy on the host, so that reading it moves nothing."""
    return _KEPT.of(value) is not None


def _in_callback() -> bool:
    return getattr(_here, "in_callback", False)


def _reading(tell: Move, method: Callable[..., Any], *, explicit: bool = False) -> Callable[..., Any]:
    """A method of an array that reads it, which tells first."""
    thread = _THREAD.get()

    @functools.wraps(method)
    def reading(self: jax.Array) -> Any:
        __tracebackhide__ = True
        if not self.is_deleted() and not _in_callback():
            state = thread()
            # Some changes of sharding go through the host.
            wanted = explicit or state.explicit_device_get or state.explicit_device_put
            tell(self, sys._getframe(1), wanted)
        return method(self)

    return reading


def _no_buffer(self: Any, flags: int) -> memoryview:
    raise BufferError("perfsuite counts transfers here, so a jax.Array has no buffer: use np.asarray(x)")


def _putting(tell: Move, put: Callable[..., Any]) -> Callable[..., Any]:
    thread = _THREAD.get()

    def batched_device_put(aval: Any, sharding: Any, shards: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        frame = sys._getframe(1)
        of_host = not all(isinstance(shard, jax.Array) for shard in shards)
        if of_host and not _in_callback() and not _in_fast_path(frame):
            tell(aval, frame, thread().explicit_device_put)
        return put(aval, sharding, shards, *args, **kwargs)

    return batched_device_put


def _in_fast_path(frame: FrameType | None) -> bool:
    """Whether JAX's fast path puts an argument on several devices; its hook reports that call."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("jax."):
        if places_argument(frame):
            return True
        frame = frame.f_back
    return False


def _calling_back(called_back: Callable[[str], None], kind: str, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def calling(*args: Any, **kwargs: Any) -> Any:
        called_back(kind)
        before, _here.in_callback = _in_callback(), True
        try:
            return run(*args, **kwargs)
        finally:
            _here.in_callback = before

    return calling


def probe() -> None:
    """Move a number to the device and back: each transfer is seen, and whether it is explicit. Nothing compiles."""
    host, seen = np.float32(0), []

    def note(value: Any, frame: FrameType, explicit: bool) -> None:
        seen.append(explicit)

    with jax.transfer_guard("allow"), jax.ensure_compile_time_eval():  # whatever surrounds the first test that asks
        x = jax.device_put(host)
        transfers: list[tuple[str, bool, Callable[[], Any]]] = [
            ("jax.device_put(x)", True, lambda: jax.device_put(host)),
            ("jax.device_get(x)", True, lambda: jax.device_get(x)),
            ("float(x)", False, lambda: float(x)),
            *([("np.asarray(x)", False, lambda: np.asarray(x))] if sees_numpy() else []),
        ]
        with observing(note, note, lambda *_: None, lambda _: None):
            for what, explicit, move in transfers:
                seen.clear()
                move()
                if explicit not in seen:
                    raise Moved(f"{what} is not seen as {'an explicit' if explicit else 'an implicit'} transfer")
