"""What runs and what moves: each compiled program, each transfer and each callback. No public API tells of them.

A warm call of a jitted function is one call into C++, which `sys.setprofile` does not see, nor do monitoring listeners.
Two places together see every run of a program, each run once:

- the hook that JAX's fast path calls after a program (the one of `jax_debug_nans`), in every thread;
- `pxla.ExecuteReplicated.__call__`, through which JAX's slow path runs a program.

`jax.transfer_guard` can only raise or log, and on CPU it sees no transfer to the host (jax 0.10.2: `float(x)`,
`np.asarray(x)` and `jax.device_get(x)` all pass under "disallow"). So these are replaced for a while:

- `ArrayImpl._value`, which JAX itself reads an array through, and what begins copies to the host;
- on CPU, `ArrayImpl.__buffer__` (PEP 688), through which NumPy reads an array in place: it refuses, so that NumPy calls
  `ArrayImpl.__array__`, which reads `_value`, as for arrays of an accelerator. Python 3.11 has no `__buffer__`, and no
  read by NumPy is seen there;
- `xla_client.batched_device_put`, which moves what JAX's fast path does not. The hook tells what that moves;
- the three functions that run the callbacks of compiled programs.
"""

import contextlib
import dataclasses
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from types import FrameType
from typing import Any, TypeAlias

import jax
import numpy as np

from perfsuite.measure.private import jax_stack, lowering
from perfsuite.measure.private.capabilities import PROGRAM_RUNS, TRANSFERS
from perfsuite.measure.private.compile_events import fresh_function, undisturbed
from perfsuite.measure.private.names import Attribute, Frame, Moved, Name

_EXECUTE = PROGRAM_RUNS.needs(Name("jax._src.interpreters.pxla", "ExecuteReplicated.__call__"))
_PROGRAM_NAME = PROGRAM_RUNS.needs(Attribute("jax._src.interpreters.pxla", "name"))
_UNSAFE_CALL = PROGRAM_RUNS.needs(jax_stack.UNSAFE_CALL)

_HOOK = PROGRAM_RUNS.needs(Name("jax._src.api", "_post_hook_state"))
_UNSET = PROGRAM_RUNS.needs(Name("jax._src.config", "config_ext.unset"))
_SWITCHES = PROGRAM_RUNS.needs((Name("jax._src.config", "debug_nans"), Name("jax._src.config", "debug_infs")))
"""They replace the hook of the thread that switches them."""
_UPDATE = PROGRAM_RUNS.needs(Attribute("jax._src.config", "_update_thread_local_hook"))

_AHEAD_OF_TIME = PROGRAM_RUNS.needs(Frame("jax._src.stages", "__call__", ("self",)))
"""The call of a function that was compiled ahead of time."""
_EXECUTABLE = PROGRAM_RUNS.needs(Attribute("jax._src.stages", "_executable"))

_FUNCTION_OF = PROGRAM_RUNS.needs(Name("jax._src.core", "jaxpr_as_fun"))
PROGRAM_RUNS.needs((*jax_stack.BINDING, jax_stack.PMAP, jax_stack.MISS))  # they tell JAX's operations from functions

_ARRAY = TRANSFERS.needs(Name("jax._src.array", "ArrayImpl"))
_VALUE = TRANSFERS.needs(Name("jax._src.array", "ArrayImpl._value"))
_COPY = TRANSFERS.needs(Name("jax._src.array", "ArrayImpl.copy_to_host_async"))
_COPY_ALL = TRANSFERS.needs(Name("jax._src.lib", "_jax.batched_copy_to_host_async", since="0.12"))
_KEPT = TRANSFERS.needs(Attribute("jax._src.array", "_npy_value"))
_PUT = TRANSFERS.needs(Name("jax._src.lib", "xla_client.batched_device_put"))
_THREAD = TRANSFERS.needs(Name("jax._src.lib", "guard_lib.thread_local_state"))
TRANSFERS.needs(jax_stack.PLACING)

_CALLBACKS = {
    "jax.pure_callback": Name("jax._src.callback", "pure_callback_impl", called=True),
    "io_callback": Name("jax._src.callback", "io_callback_impl", called=True),
    # Outside jit a debug callback belongs to no program. Its arguments are read, and the read is observed by itself.
    "jax.debug.print or jax.debug.callback": Name("jax._src.debugging", "debug_callback_p.impl"),
}
TRANSFERS.needs(tuple(_CALLBACKS.values()))

Hook: TypeAlias = Callable[[Any, tuple, dict[str, Any], Any, FrameType], None]
"""Gets a jitted function whose program JAX's fast path has run, its arguments, its outputs, and the caller's frame."""

Move: TypeAlias = Callable[[Any, FrameType, bool], None]
"""Gets the array or its type, the frame of JAX's that moves it, and whether the code asked for it."""

_here = threading.local()
"""`_here.in_callback` is true in a thread that runs a callback: what a callback reads is no transfer of its own."""

# Programs.


class TextUnknown(Exception):  # noqa: N818  (a report, not a fault)
    """A program has no text that says all of it."""


def _no_text() -> str:
    raise TextUnknown("it is no call of a function that jax.jit returned")


@dataclasses.dataclass(frozen=True)
class ProgramRun:
    """One run of a compiled program. `operation` says that JAX itself defined the function, such as `jnp.add`'s.

    `frame` is the frame that ran it, of JAX's or of the user's code. `key()` is equal for two runs of one program while
    both are observed, None where that is not known. `text()` is the program without names of files and lines: it has to
    be asked for while the run is observed, and may trace and lower. It raises `TextUnknown` for a program whose text
    leaves something out. `source()` is a function that can be lowered to the program, with its arguments; None where
    JAX has the program alone.
    """

    name: str
    operation: bool
    frame: FrameType
    key: Callable[[], Hashable] = dataclasses.field(default=lambda: None, compare=False)
    text: Callable[[], str] = dataclasses.field(default=_no_text, compare=False)
    source: Callable[[], jax_stack.Bound | None] = dataclasses.field(default=lambda: None, compare=False)


@contextlib.contextmanager
def observing_programs(observe: Callable[[ProgramRun], None]) -> Iterator[None]:
    """Tell `observe` of every program that begins to run inside, in the thread that runs it; not of its own."""
    telling = threading.local()

    def tell(run: ProgramRun) -> None:
        if not getattr(telling, "here", False):
            telling.here = True
            try:
                observe(run)
            finally:
                telling.here = False

    with _running_programs(
        lambda executable, outputs, frame: tell(_slow_run(executable, frame)),
        lambda jitted, args, kwargs, outputs, frame: tell(_fast_run(jitted, args, kwargs, frame)),
    ):
        yield


@contextlib.contextmanager
def telling_outputs(tell: Callable[[Any], None]) -> Iterator[None]:
    """Tell `tell` what every program that runs inside puts out, once it has begun, in the thread that runs it.

    Of none where JAX has moved what that needs.
    """
    if PROGRAM_RUNS.lost():
        yield
        return
    with _running_programs(
        lambda executable, outputs, frame: tell(outputs),
        lambda jitted, args, kwargs, outputs, frame: tell(outputs),
    ):
        yield


@contextlib.contextmanager
def _running_programs(slow: Callable[[Any, Any, FrameType], None], fast: Hook) -> Iterator[None]:
    """Call `slow` after each program that JAX's slow path begins, with its outputs, and `fast` after the others."""

    def through_slow_path(execute: Callable[..., Any]) -> Callable[..., Any]:
        def executing(self: Any, *args: Any) -> Any:
            outputs = execute(self, *args)
            slow(self, outputs, sys._getframe(1))
            return outputs

        return executing

    with _EXECUTE.replaced(through_slow_path), hooked_calls(fast):
        yield


def is_ready(array: jax.Array) -> bool:
    """Whether an array is ready, or deleted, without waiting for it."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)  # keys cannot tell
    try:
        return bool(array.is_ready())  # type: ignore[attr-defined]
    except RuntimeError:
        if array.is_deleted():  # to the next program, maybe of another thread
            return True
        raise


@contextlib.contextmanager
def hooked_calls(hook: Hook) -> Iterator[None]:
    """Call `hook` after every program that JAX's fast path runs inside, in any thread; what was hooked goes on.

    A thread that was ever inside `jax.debug_nans`, which `jax.vmap` of a jitted function is too, has a hook of its own
    from then on, if only None. It is taken from this thread, and from any thread that comes through one inside. Of
    another thread that got it before and comes through none, nothing is heard.
    """
    state, unset, outside = _HOOK.get(), _UNSET.get(), [True]

    def chained(first: Any) -> Callable[..., None]:
        return _chained(first, hook, outside)

    def hook_here(_: Any = None) -> None:
        # JAX's own hook looks at the configuration, so a thread may have the one of all threads in place of None.
        own = state.get_local()
        state.set_local(chained(own) if callable(own) else unset)

    def updating(update: Callable[[Any], None] | None) -> Callable[[Any], None]:
        def updated(value: Any) -> None:
            if update is not None:
                update(value)
            hook_here()

        return updated

    before, before_here, thread = state.get_global(), state.get_local(), threading.get_ident()
    switches = [(switch, _UPDATE.of(switch)) for switch in (each.get() for each in _SWITCHES)]
    for_all = chained(before)
    outside.clear()
    state.set_global(for_all)
    hook_here()
    for switch, update in switches:
        setattr(switch, _UPDATE.name, updating(update))
    try:
        yield
    finally:
        outside.append(True)
        for switch, update in switches:
            setattr(switch, _UPDATE.name, update)
        if state.get_global() is for_all:  # else jax_debug_nans was switched in the meantime
            state.set_global(before)
        if threading.get_ident() == thread:
            own = state.get_local()  # else jax.debug_nans was entered or left in the meantime
            state.set_local(before_here if own is unset and before_here is None else getattr(own, "first", own))


def _chained(first: Any, hook: Hook, outside: list[bool]) -> Callable[..., None]:
    """A hook of JAX's that calls `first`, and then `hook` as long as `outside` is empty."""

    def after(jitted: Any, args: tuple, kwargs: dict[str, Any], outputs: Any) -> None:
        __tracebackhide__ = True
        if callable(first):
            first(jitted, args, kwargs, outputs)
        if not outside:
            hook(jitted, args, kwargs, outputs, sys._getframe(1))

    after.first = first  # type: ignore[attr-defined]
    return after


def _fast_run(jitted: Any, args: tuple, kwargs: dict[str, Any], frame: FrameType) -> ProgramRun:
    function = getattr(jitted, "__wrapped__", None)
    if function is not None:
        name, of_jax = _short_name(jitted.__name__), jax_stack.belongs_to_jax(function)
        key = functools.partial(_key, jitted, args, kwargs)
        text = functools.partial(_lowered_text, jitted, args, kwargs)
        return ProgramRun(name, of_jax, frame, key, text, source=lambda: (jitted, args, kwargs))
    if (bound := jax_stack.bound_program(frame)) is not None:
        name = _short_name(bound.name)
        return ProgramRun(name, bound.of_jax, frame, source=lambda: (_bound_function(frame), args, {}))
    compiled = _AHEAD_OF_TIME.local(frame, "self") if _AHEAD_OF_TIME.runs(frame) else None
    program = _UNSAFE_CALL.of(_EXECUTABLE.of(compiled))
    return ProgramRun(_short_name(_PROGRAM_NAME.of(program, "?")), False, frame)


def _slow_run(executable: Any, frame: FrameType) -> ProgramRun:
    outer: FrameType | None = frame
    of_jax = False
    while outer is not None and outer.f_globals.get("__name__", "").startswith("jax."):
        if (function := jax_stack.jitted_function(outer)) is not None:
            of_jax = jax_stack.belongs_to_jax(function)
            break
        if (bound := jax_stack.bound_program(outer)) is not None:
            of_jax = bound.of_jax
        outer = outer.f_back
    name = _short_name(_PROGRAM_NAME.of(executable, "?"))
    return ProgramRun(name, of_jax, frame, lambda: executable)


def _key(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> Hashable:
    """A jitted function with what its program depends on in its arguments, and maybe more."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    key = jitted, structure, tuple(map(_leaf_signature, leaves))
    try:
        hash(key)
    except TypeError:  # an argument that cannot be hashed
        return None
    return key


def _leaf_signature(leaf: Any) -> Hashable:
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False), leaf.sharding  # a key has no weak type
    if isinstance(leaf, np.ndarray | np.generic):
        return np.shape(leaf), leaf.dtype
    return type(leaf), leaf  # it may be static


def _lowered_text(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> str:
    """The program as JAX hands it to the compiler. Arguments that were donated to it need not be there any more."""
    lowered = jitted.lower(*args, **kwargs)
    if (options := lowering.compiler_options(lowered)) is None:
        raise TextUnknown("the options of its compiler are not known")
    named = sorted((name, str(value)) for name, value in options.items())
    text = lowered.as_text()
    if "_callback" in text:
        raise TextUnknown("its program calls back into Python")
    return f"{text}{named or ''}"


def _bound_function(frame: FrameType) -> Any:
    binding = next(each for each in jax_stack.BINDING if each.runs(frame))
    return jax.jit(_FUNCTION_OF.get()(binding.local(frame, "jaxpr")))


def _short_name(name: str) -> str:
    """`step` for `jit(step)`."""
    outer, bracket, inner = name.partition("(")
    name = inner[:-1] if bracket and outer == "jit" and inner.endswith(")") else name
    return "lambda" if name == "<lambda>" else name


# Transfers and callbacks.


@contextlib.contextmanager
def observing(
    read: Move, fetched: Move, placed: Move, moved: Move, called: Hook, called_back: Callable[[str], None]
) -> Iterator[None]:
    """Tell of every transfer and callback inside, in the thread that makes it. Only one such context may be open.

    `read` is called before the host reads an array, `fetched` before its copy to the host begins without waiting,
    `placed` before a host value goes to a device outside of JAX's fast path, `moved` before an array of other devices
    does, and `called` when that has run a jitted function: some of its arguments may be host values. `called_back` gets
    the kind of a callback before it runs. What these raise reaches the user's code.
    """

    def hook(jitted: Any, args: tuple, kwargs: dict[str, Any], outputs: Any, frame: FrameType) -> None:
        __tracebackhide__ = True
        if not _in_callback():
            called(jitted, args, kwargs, outputs, frame)

    with contextlib.ExitStack() as replaced:
        replaced.enter_context(_VALUE.replaced(lambda old: property(_reading(read, old.fget))))
        replaced.enter_context(_COPY.replaced(lambda old: _reading(fetched, old, explicit=True)))
        if _COPY_ALL.is_current():
            replaced.enter_context(_COPY_ALL.replaced(functools.partial(_copying, fetched)))
        if sees_numpy():
            array = _ARRAY.get()
            replaced.callback(setattr, array, "__buffer__", inspect.getattr_static(array, "__buffer__"))
            array.__buffer__ = _no_buffer
        replaced.enter_context(_PUT.replaced(lambda old: _putting(placed, moved, old)))
        replaced.enter_context(hooked_calls(hook))
        for kind, name in _CALLBACKS.items():
            replaced.enter_context(name.replaced(functools.partial(_calling_back, called_back, kind)))
        yield


def sees_numpy() -> bool:
    """Whether reads by NumPy are seen on CPU: from Python 3.12 on."""
    return hasattr(_ARRAY.get(), "__buffer__")


def is_fetched(value: jax.Array) -> bool:
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


def _copying(tell: Move, copy: Callable[[list[jax.Array]], None]) -> Callable[[list[jax.Array]], None]:
    def copying(arrays: list[jax.Array]) -> None:
        __tracebackhide__ = True
        frame = sys._getframe(1)
        for array in () if _in_callback() else arrays:
            tell(array, frame, True)
        copy(arrays)

    return copying


def _no_buffer(self: Any, flags: int) -> memoryview:
    raise BufferError("perfsuite counts transfers here, so a jax.Array has no buffer: use np.asarray(x)")


def _putting(placed: Move, moved: Move, put: Callable[..., Any]) -> Callable[..., Any]:
    thread = _THREAD.get()

    def batched_device_put(aval: Any, sharding: Any, shards: Any, devices: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        frame = sys._getframe(1)
        if not all(isinstance(shard, jax.Array) for shard in shards):
            tell = None if _in_fast_path(frame) else placed
        else:
            stay = all(shard.devices() == {device} for shard, device in zip(shards, devices, strict=False))
            tell = None if stay else moved
        if tell is not None and not _in_callback():
            tell(aval, frame, thread().explicit_device_put)
        return put(aval, sharding, shards, devices, *args, **kwargs)

    return batched_device_put


def _in_fast_path(frame: FrameType | None) -> bool:
    """Whether JAX's fast path puts an argument on several devices; its hook reports that call."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("jax."):
        if jax_stack.PLACING.runs(frame):
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


# Probes.


@PROGRAM_RUNS.probed_by
def _probe_program_runs() -> None:
    """Run a program through JAX's slow path, and then through the fast one: each run is seen once (10 ms)."""
    function, argument = fresh_function(), np.float32(1)
    jitted = jax.jit(function)
    names: list[str] = []
    calls: list[tuple[Any, tuple, Any]] = []

    def hook(fn: Any, args: tuple, _: dict[str, Any], outputs: Any, __: FrameType) -> None:
        calls.append((fn, args, outputs))

    with undisturbed(), observing_programs(lambda run: names.append(run.name)), hooked_calls(hook):
        for path in ("slow", "fast"):
            names.clear()
            jitted(argument)
            if (times := names.count(function.__name__)) != 1:
                raise Moved(f"a program that JAX's {path} path runs once is seen {times} times")
    # Other threads may run programs, too.
    own = [(args, outputs) for fn, args, outputs in calls if fn is jitted]
    if not any(args and args[0] is argument and jax.tree.leaves(outputs) for args, outputs in own):
        raise Moved("the hook of JAX's fast path does not get the arguments and outputs of a call")


@TRANSFERS.probed_by
def _probe_transfers() -> None:
    """Move a number to the device and back: each transfer is seen, and whether it is explicit. Nothing compiles."""
    host, explicits = np.float32(0), []

    def note(value: Any, frame: FrameType, explicit: bool) -> None:
        explicits.append(explicit)

    with jax.transfer_guard("allow"), jax.ensure_compile_time_eval():  # whatever surrounds the first test that asks
        x = jax.device_put(host)
        transfers: list[tuple[str, bool, Callable[[], Any]]] = [
            ("jax.device_put(x)", True, lambda: jax.device_put(host)),
            ("jax.device_get(x)", True, lambda: jax.device_get(x)),
            ("float(x)", False, lambda: float(x)),
            *([("np.asarray(x)", False, lambda: np.asarray(x))] if sees_numpy() else []),
        ]
        with observing(note, note, note, note, lambda *_: None, lambda _: None):
            for what, explicit, move in transfers:
                explicits.clear()
                move()
                if explicit not in explicits:
                    raise Moved(f"{what} is not seen as {'an explicit' if explicit else 'an implicit'} transfer")
