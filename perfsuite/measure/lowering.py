"""A call turned into the compiler's input, for the device that is here or for a platform that is not.

Lowering happens in the user's process, where the function and its arguments are; it needs no TPU library.
"""

import contextlib
import dataclasses
import functools
import gc
import inspect
import math
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

import jax

from perfsuite.measure import _jax_internals
from perfsuite.measure.call import Call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.hlo_module import Source

_NOT_USABLE = "Some donated buffers were not usable"
_ARGUMENT_NAME = re.compile(r'loc\("(.*)"(?:\(.*\))?\)\Z', re.DOTALL)


class HostCallbackError(MeasurementError, AssertionError):
    """A program for a device that is not here calls the host, and JAX lowers such calls only where the device is.

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
    function: Source | None = None


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
    without `.lower`, and `HostCallbackError` for one that calls the host, when `platform` is not the present one.
    """
    fn, args, kwargs = _unwrapped(call.fn, call.args, call.kwargs)
    started = time.perf_counter()
    with warnings.catch_warnings(), _no_collection(), _jax_internals.lowering(platform) as seen:
        warnings.filterwarnings("ignore", message=_NOT_USABLE)  # a fact of the program, which `lost_donations` has
        try:
            lowered = fn.lower(*args, **kwargs)
        except (ValueError, NotImplementedError) as error:
            if platform is not None and seen.traced is not None and (calls := _host_calls(seen.traced.jaxpr.jaxpr)):
                raise HostCallbackError(_callback_message(call.label, platform, calls), len(calls)) from error
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


def _definition(fn: Any) -> Source | None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return None if code is None else Source(code.co_filename, code.co_firstlineno, code.co_qualname)


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


def _callback_message(label: str, platform: str, calls: list[tuple[str, str]]) -> str:
    named = "\n".join(f"  {primitive} at {line}" for primitive, line in calls)
    return (
        f"{label} calls the host {len(calls)} time{'s' * (len(calls) > 1)} a step, so it cannot be compiled for "
        f"{platform} here (JAX lowers host calls only where the device is):\n{named}\n"
        "take the call out of the step, or ask for the program of the present device"
    )
