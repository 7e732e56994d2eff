"""Lowers a call to the compiler's input, for the present device or for a platform that is absent.

Lowering takes place in the user's process, where the function and its arguments are. It needs no TPU library.
`jax.export` does not serve: it takes only what `jax.jit` itself returned, and refuses calls of the host (jax 0.10.2).
"""

import collections
import contextlib
import dataclasses
import inspect
import math
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

import jax

from perfsuite.measure.call import Call, leaves_with_paths
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.hlo.module import KERNEL_COSTS, SourceFrame
from perfsuite.measure.private.capabilities import LOWERING
from perfsuite.measure.private.jax_stack import behind_bound
from perfsuite.measure.private.lowering import Lowering, argument_names, lowering, source_line
from perfsuite.measure.program.program import DonatedArgument, Operation
from perfsuite.measure.words import plural

_NOT_USABLE = "Some donated buffers were not usable"
_ARGUMENT_NAME = re.compile(r'loc\("(.*)"(?:\(.*\))?\)\Z', re.DOTALL)

# "model.py:42:8 (step)"
_LINE = re.compile(r"(.*?):(\d+)(?::\d+)?(?: \((.*)\))?\Z")


class HostCallbackError(MeasurementError, AssertionError):
    """A program for an absent device calls the host in a way that JAX does not lower for that device.

    The message names each call with its source line. `calls` is their number.
    """

    def __init__(self, message: str, calls: int):
        super().__init__(message)
        self.calls = calls


@dataclasses.dataclass(frozen=True)
class KernelEstimate:
    """What the author of a Pallas kernel says of its cost; `flops` and the others are None where nothing is said.

    JAX drops it when it lowers a kernel for a GPU. `place` is the `file:line` of the `pallas_call`, `results` are the
    shapes of what it returns.
    """

    place: str
    results: tuple[tuple[int, ...], ...]
    flops: int | None = None
    transcendentals: int | None = None
    bytes_accessed: int | None = None


@dataclasses.dataclass(frozen=True)
class LoweredCall:
    """`text` is StableHLO with its source locations, `partitions` is how many devices the program runs on.

    `kernel_estimates` are those of all Pallas kernels in the trace, `float64_operations` its operations that make
    float64. `arguments` and `outputs` are the paths and the shapes, on all devices together, of those that the
    program has, in its order.
    """

    text: str
    partitions: int
    donations: tuple[DonatedArgument, ...]
    lower_seconds: float
    lowered: jax.stages.Lowered
    kernel_estimates: tuple[KernelEstimate, ...] = ()
    float64_operations: tuple[Operation, ...] = ()
    arguments: tuple[tuple[str, tuple[int, ...]], ...] = ()
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()


def lower_call(
    call: Call, platform: str | None = None, *, device_kind: str | None = None, asked_by: str = "perf.program"
) -> LoweredCall:
    """Lower a call without running it, for `platform` ("tpu", "cuda"), or for the device that its arguments are on.

    `device_kind` is the absent device as JAX calls it ("NVIDIA H100 80GB HBM3"), for kernels that are made for one.

    Arguments may be `jax.ShapeDtypeStruct`s wherever the function takes them. Raises `MeasurementError`, which names
    the instrument `asked_by`, for a function without `.lower`, and `HostCallbackError` for one that calls the host as
    `platform` cannot. Calls of the host that it can make, such as those of `jax.debug.print` and `equinox.error_if`,
    are in the text as sends and receives. Raises `CapabilityLost` where a name that lowering for `platform` needs has
    moved; for the present device then less is known: not how arguments were named, nor what kernels are said to cost.
    """
    fn, args, kwargs = with_lower(call, asked_by)
    if platform is not None:
        LOWERING.check(f"{asked_by}(target=...)")
    started = time.perf_counter()
    with warnings.catch_warnings(), _named(device_kind, platform), lowering(platform) as trace:
        warnings.filterwarnings("ignore", message=_NOT_USABLE)  # `Program.lost_donations` has them
        try:
            lowered = fn.lower(*args, **kwargs)
        except (ValueError, NotImplementedError) as error:
            calls = list(_host_calls(trace.traced.jaxpr.jaxpr)) if trace.traced is not None else []
            if platform is None or not calls:
                raise
            raise HostCallbackError(_callback_message(call.label, platform, calls, error), len(calls)) from error
    seconds = time.perf_counter() - started
    while not isinstance(lowered, jax.stages.Lowered):  # those of Equinox and NNX hold JAX's
        lowered = lowered.lowered
    module: Any = lowered.compiler_ir("stablehlo")
    attributes = module.operation.attributes
    partitions = attributes["mhlo.num_partitions"].value if "mhlo.num_partitions" in attributes else 1
    leaves = _argument_leaves(lowered, trace, call)
    parameters = _parameters(trace, module, leaves)
    donations = tuple(_donations(leaves, parameters, call.fn))
    jaxpr = None if trace.traced is None else trace.traced.jaxpr.jaxpr
    outputs = jax.tree_util.tree_leaves_with_path(lowered.out_info)
    arguments = (leaves[leaf] for leaf in sorted(parameters, key=parameters.__getitem__))
    return LoweredCall(
        lowered.as_text(debug_info=True),
        partitions,
        donations,
        seconds,
        lowered,
        () if jaxpr is None else estimates_in(jaxpr),
        () if jaxpr is None else tuple(_float64_in(jaxpr)),
        arguments=tuple((path, info.shape) for path, info in arguments),
        outputs=tuple((f"result{jax.tree_util.keystr(path)}", info.shape) for path, info in outputs),
    )


@contextlib.contextmanager
def _named(device_kind: str | None, platform: str | None) -> Iterator[None]:
    """Tell JAX which device it lowers for, unless the caller has set a mesh, which may have a device of its own.

    From jax 0.12 on a Pallas kernel for a GPU is lowered for its kind, and refused where that is not known.
    """
    if device_kind is None or platform is None or jax.sharding.get_abstract_mesh().axis_names:
        yield
        return
    device = jax.sharding.AbstractDevice(device_kind, None, platform)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        yield


def runs_as_one(call: Call) -> bool:
    """Whether a call is that of a jitted function, or has descriptions of arrays, with which no other can run."""
    leaves = jax.tree.leaves((call.args, call.kwargs))
    described = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    return described or hasattr(behind_bound(call.fn)[0], "lower")


def with_lower(call: Call, asked_by: str) -> tuple[Any, tuple, dict[str, Any]]:
    """The function of a call that has `.lower`, inside of partials and bound methods, and its arguments.

    Raises `MeasurementError` where there is none.
    """
    fn, args, kwargs = behind_bound(call.fn, call.args, call.kwargs)
    if not hasattr(fn, "lower"):
        raise MeasurementError(
            f"{asked_by} needs a function with .lower: what jax.jit, filter_jit or nnx.jit returned, not "
            f"{type(fn).__name__} {getattr(fn, '__name__', '')!r}; wrap it in jax.jit"
        )
    return fn, args, kwargs


def _argument_leaves(lowered: jax.stages.Lowered, trace: Lowering, call: Call) -> list[tuple[str, Any]]:
    """The path and JAX's description of each leaf of the arguments."""
    infos = jax.tree_util.tree_leaves_with_path(lowered.args_info)
    paths = _paths(trace.leaves, call) if trace.leaves is not None and len(trace.leaves) == len(infos) else {}
    named = enumerate(infos)
    return [(paths.get(number) or f"args{jax.tree_util.keystr(path[1:])}", info) for number, (path, info) in named]


def _donations(leaves: list[tuple[str, Any]], parameters: dict[int, int], fn: Any) -> Iterator[DonatedArgument]:
    source = _definition(fn)
    for number, (path, info) in enumerate(leaves):
        if info.donated:
            array = f"{info.dtype}[{','.join(map(str, info.shape))}]"
            size = math.prod(info.shape) * info.dtype.itemsize
            yield DonatedArgument(path, array, size, parameters.get(number), source)


def _definition(fn: Any) -> SourceFrame | None:
    function, *_ = behind_bound(fn)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else SourceFrame(code.co_filename, code.co_firstlineno, code.co_qualname)


def _paths(leaves: list[Any], call: Call) -> dict[int, str]:
    """Where the user passed each leaf that reached `jax.jit`, by identity, because wrappers rearrange arguments."""
    path_by_id: dict[int, str] = {}
    for path, leaf in leaves_with_paths(call.args, call.kwargs):
        path_by_id.setdefault(id(leaf), path)
    return {number: path_by_id[id(leaf)] for number, leaf in enumerate(leaves) if id(leaf) in path_by_id}


def _parameters(trace: Lowering, module: Any, leaves: list[tuple[str, Any]]) -> dict[int, int]:
    """Leaf number to parameter number. JAX drops arguments that the program does not use; names say which."""
    named = (each for each in module.body if "sym_name" in each.attributes)
    main = next(each for each in named if each.attributes["sym_name"].value == "main")
    arguments = list(main.regions[0].blocks[0].arguments)
    if len(arguments) == len(leaves):
        return {number: number for number in range(len(leaves))}
    names = () if trace.traced is None else argument_names(trace.traced)
    if not names and any(info.donated for _, info in leaves):
        LOWERING.check("perf.program of a call that donates arguments, and gives some that its program does not use,")
    locations = [_ARGUMENT_NAME.match(str(argument.location)) for argument in arguments]
    by_name = {name[1]: parameter for parameter, name in enumerate(locations) if name}
    return {leaf: by_name[name] for leaf, name in enumerate(names) if name in by_name}


def _host_calls(jaxpr: Any) -> Iterator[tuple[str, str]]:
    """The primitive and the source line of every host callback, also in inner jaxprs."""
    for equation in equations(jaxpr):
        name = equation.primitive.name
        if "callback" in name or name == "debug_print":
            yield name, source_line(equation)


def _callback_message(label: str, platform: str, calls: list[tuple[str, str]], error: Exception) -> str:
    named = ""
    for (call, line), count in collections.Counter(calls).items():
        named += f"  {call} at {line}{f' ({count} times)' if count > 1 else ''}\n"
    return (
        f"{label} calls the host {plural(len(calls), 'time')} a step in a way that JAX does not lower for {platform}: "
        f"{error}\n{named}take the call out of the step, or ask for the program of the present device"
    )


def estimates_in(jaxpr: Any) -> tuple[KernelEstimate, ...]:
    """The estimates of all Pallas kernels in a trace, each once."""
    estimates: dict[KernelEstimate, None] = {}
    for equation in equations(jaxpr):
        if equation.primitive.name == "pallas_call":
            source = _source(equation)
            results = tuple(tuple(result.aval.shape) for result in equation.outvars)
            estimate = equation.params.get("cost_estimate")
            costs = {} if estimate is None else {name: int(getattr(estimate, name)) for name in KERNEL_COSTS}
            estimates[KernelEstimate(f"{source.file}:{source.line}" if source else "", results, **costs)] = None
    return tuple(estimates)


def _float64_in(jaxpr: Any) -> Iterator[Operation]:
    for equation in equations(jaxpr):
        types = {str(getattr(result.aval, "dtype", "")) for result in equation.outvars}
        if not types.isdisjoint(("float64", "complex128")) and not any(inner_jaxprs(equation)):
            yield Operation(equation.primitive.name, equation.primitive.name, _source(equation), bytes=0)


def _source(equation: Any) -> SourceFrame | None:
    line = _LINE.match(source_line(equation))
    return SourceFrame(line[1], int(line[2]), line[3] or "") if line else None


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr, also of those inside loops, branches and jitted functions."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_jaxprs(equation):
            yield from equations(getattr(inner, "jaxpr", inner))


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs in the parameters of an equation, closed or not: the body of a loop, the branches of a conditional."""
    for value in equation.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                yield inner
