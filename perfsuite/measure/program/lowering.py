"""A call turned into the compiler's input, for the device that is here or for a platform that is not.

Lowering happens in the user's process, where the function and its arguments are; it needs no TPU library.
"""

import collections
import contextlib
import dataclasses
import functools
import gc
import inspect
import math
import re
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import jax
from jax.interpreters.mlir import ModuleContext

from perfsuite.measure.call import Call
from perfsuite.measure.compat import jax_stack as _jax_internals
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.hlo.hlo_module import Frame

_NOT_USABLE = "Some donated buffers were not usable"
_ARGUMENT_NAME = re.compile(r'loc\("(.*)"(?:\(.*\))?\)\Z', re.DOTALL)


class HostCallbackError(MeasurementError, AssertionError):
    """A program for a device that is not here calls the host in a way that JAX does not lower for that device.

    The message names each call with its source line. `calls` is how many there are.
    """

    def __init__(self, message: str, calls: int):
        super().__init__(message)
        self.calls = calls


@dataclasses.dataclass(frozen=True)
class Donation:
    """An argument that the caller gives away. `parameter` is its number in the program, None if the program drops it.

    `path` leads to it from the call: `args[0]['w']`. `function` is where the function is defined that it is given to,
    None where that is not known.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    parameter: int | None
    function: Frame | None = None


@dataclasses.dataclass(frozen=True)
class LoweredCall:
    """`text` is StableHLO with its source locations; `partitions` how many devices the program runs on."""

    label: str
    text: str
    partitions: int
    donations: tuple[Donation, ...]
    lower_seconds: float
    lowered: jax.stages.Lowered


def lower_call(call: Call, platform: str | None = None) -> LoweredCall:
    """Lower a call without running it, for `platform` ("tpu"), or for the device that its arguments are on.

    Arguments may be `jax.ShapeDtypeStruct`s wherever the function takes them. Raises `MeasurementError` for a function
    without `.lower`, and `HostCallbackError` for one that calls the host as `platform` cannot. Calls of the host that
    it can make, such as those of `jax.debug.print` and `equinox.error_if`, are in the text as sends and receives.
    """
    fn, args, kwargs = _unwrapped(call.fn, call.args, call.kwargs)
    started = time.perf_counter()
    elsewhere = _without_device(platform) if platform is not None else contextlib.nullcontext()
    with warnings.catch_warnings(), _no_collection(), elsewhere, _jax_internals.lowering(platform) as seen:
        warnings.filterwarnings("ignore", message=_NOT_USABLE)  # a fact of the program, which `lost_donations` has
        try:
            lowered = fn.lower(*args, **kwargs)
        except (ValueError, NotImplementedError) as error:
            if platform is not None and seen.traced is not None and (calls := _host_calls(seen.traced.jaxpr.jaxpr)):
                message = _callback_message(call.label, platform, calls, error)
                raise HostCallbackError(message, len(calls)) from error
            raise
    seconds = time.perf_counter() - started
    while not isinstance(lowered, jax.stages.Lowered):  # those of Equinox and NNX hold JAX's
        lowered = lowered.lowered
    module = lowered.compiler_ir("stablehlo")
    return LoweredCall(
        call.label,
        lowered.as_text(debug_info=True),
        _partitions(module),
        tuple(_donations(lowered, module, seen, call)),
        seconds,
        lowered,
    )


class _NoDevice:
    """In the place of the runtime of a device that is not here, which JAX asks to keep the functions to call back.

    They are no part of the program's text, and the program is not going to run.
    """

    def make_python_callback_from_host_send_and_recv(self, *_: Any) -> None:
        return None


@contextlib.contextmanager
def _without_device(platform: str) -> Iterator[None]:
    """Let calls of the host be lowered for a platform without its runtime, in this thread.

    JAX asks for the runtime where a program calls the host, and for nothing else that a TPU's program has in it.
    """
    thread, original = threading.get_ident(), ModuleContext.get_backend

    def get_backend(self: ModuleContext, optional: bool = False) -> Any:
        try:
            return original(self, optional)
        except (ValueError, RuntimeError):  # of another platform, or not installed
            if threading.get_ident() != thread or tuple(self.platforms) != (platform,):
                raise
            return _NoDevice()

    ModuleContext.get_backend = get_backend  # type: ignore[method-assign]
    try:
        yield
    finally:
        ModuleContext.get_backend = original  # type: ignore[method-assign]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Tracing makes many objects that stay; looking for garbage among them takes a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _unwrapped(fn: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, tuple, dict[str, Any]]:
    while not hasattr(fn, "lower"):
        if not isinstance(fn, functools.partial):
            raise MeasurementError(
                f"perf.program needs a function with .lower: what jax.jit, filter_jit or nnx.jit returned, not "
                f"{type(fn).__name__} {getattr(fn, '__name__', '')!r}; wrap it in jax.jit"
            )
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return fn, args, kwargs


def _partitions(module: Any) -> int:
    attributes = module.operation.attributes
    return attributes["mhlo.num_partitions"].value if "mhlo.num_partitions" in attributes else 1


def _donations(
    lowered: jax.stages.Lowered, module: Any, seen: _jax_internals.Lowering, call: Call
) -> Iterator[Donation]:
    infos = jax.tree_util.tree_leaves_with_path(lowered.args_info)
    if not any(info.donated for _, info in infos):
        return
    paths = _paths(seen.leaves, call) if seen.leaves is not None and len(seen.leaves) == len(infos) else {}
    parameters = _parameters(seen, module, len(infos))
    function = _definition(call.fn)
    for number, (path, info) in enumerate(infos):
        if info.donated:
            name = paths.get(number) or f"args{jax.tree_util.keystr(path[1:])}"
            bytes_ = math.prod(info.shape) * info.dtype.itemsize
            shape = tuple(info.shape)
            yield Donation(name, shape, str(info.dtype), bytes_, parameters.get(number), function)


def _definition(fn: Any) -> Frame | None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return None if code is None else Frame(code.co_filename, code.co_firstlineno, code.co_qualname)


def _paths(leaves: list[Any], call: Call) -> dict[int, str]:
    """Where the user passed each leaf that reached `jax.jit`, found by identity: wrappers rearrange arguments."""
    given: dict[int, str] = {}
    for root, tree in (("args", call.args), ("kwargs", call.kwargs)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            given.setdefault(id(leaf), f"{root}{jax.tree_util.keystr(path)}")
    return {number: given[id(leaf)] for number, leaf in enumerate(leaves) if id(leaf) in given}


def _parameters(seen: _jax_internals.Lowering, module: Any, count: int) -> dict[int, int]:
    """Leaf number to parameter number. JAX drops arguments that the program does not use; names tell which."""
    (main,) = (op for op in module.body.operations if str(op.attributes["sym_name"]) == '"main"')
    arguments = list(main.regions[0].blocks[0].arguments)
    if len(arguments) == count:
        return {number: number for number in range(count)}
    if seen.traced is None:
        return {}
    names = list(seen.traced.jaxpr.jaxpr.debug_info.arg_names)
    found: dict[int, int] = {}
    leaf = 0
    for parameter, argument in enumerate(arguments):
        match = _ARGUMENT_NAME.match(str(argument.location))
        while leaf < len(names) and (match is None or names[leaf] != match[1]):
            leaf += 1
        if leaf < len(names):
            found[leaf] = parameter
        leaf += 1
    return found


def _host_calls(jaxpr: Any) -> list[tuple[str, str]]:
    """The primitive and the source line of every host callback, also in inner jaxprs."""
    from jax.extend import source_info_util

    found = []
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if "callback" in name or name == "debug_print":
            found.append((name, source_info_util.summarize(equation.source_info)))
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    found += _host_calls(inner)
    return found


def _callback_message(label: str, platform: str, calls: list[tuple[str, str]], error: Exception) -> str:
    times = {1: "", **{n: f" ({n} times)" for n in range(2, len(calls) + 1)}}
    named = "\n".join(f"  {call} at {line}{times[n]}" for (call, line), n in collections.Counter(calls).items())
    return (
        f"{label} calls the host {len(calls)} time{'s' * (len(calls) > 1)} a step in a way that JAX does not lower for "
        f"{platform}: {error}\n{named}\ntake the call out of the step, or ask for the program of the present device"
    )
