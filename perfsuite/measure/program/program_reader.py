"""Reads a `Program` from a compiler's output: the optimised program, its cost analysis, its memory statistics."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from perfsuite.measure.hlo.cost_model import CostModel
from perfsuite.measure.hlo.hlo_module import Instruction, Module
from perfsuite.measure.hlo.library_calls import (
    is_library_product,
    library_flops,
    library_of,
    library_product_flops,
)
from perfsuite.measure.hlo.product_flops import product_flops
from perfsuite.measure.hlo.runs import Runs, runs_of
from perfsuite.measure.hlo.trip_counts import trip_counts
from perfsuite.measure.program.collectives import (
    across_slices,
    collectives_in,
    crosses_network,
    ends_sum,
    sends_between_slices,
)
from perfsuite.measure.program.kernel_estimates import GPU_KERNELS
from perfsuite.measure.program.placed import Placed, bytes_of, placed_in, source_of
from perfsuite.measure.program.program import NAME, DonatedArgument, Fusion, Kernel, Operation, Origin, Product, Program

_COSTS = {"flops": "flops", "bytes accessed": "bytes", "transcendentals": "transcendentals"}
"""XLA's names of costs, and those of the fields of `Cost`."""

_MEMORY = {
    "argument_size_in_bytes": "argument_bytes",
    "output_size_in_bytes": "output_bytes",
    "temp_size_in_bytes": "temp_bytes",
    "alias_size_in_bytes": "alias_bytes",
    "generated_code_size_in_bytes": "code_bytes",
}
"""XLA's names of memory statistics, and those of the fields of `Program`."""

_CONTROL = frozenset(("while", "conditional", "call", "async-start"))
"""Instructions that run the computations that they call, instruction by instruction."""

_NO_WORK = _CONTROL | {"after-all", "async-update", "bitcast", "constant", "get-tuple-element", "parameter", "tuple"}

_PRODUCTS = ("dot", "convolution")
_RESHARDS = ("all-gather", "all-to-all", "collective-permute")
_ASKED_FOR = {
    *("all_gather", "all_to_all", "ppermute", "psum_scatter", "reduce_scatter"),
    *("reshard", "shard_map", "sharding_constraint"),
}
"""Primitives with which a program asks for data to move. The partitioner adds all other moves by itself."""

_MOVES = ("MoveToHost", "MoveToDevice")
_BOOKKEEPING = {
    *("AllocateBuffer", "AssumeGatherIndicesInBound", "AsyncCollectiveDone", "AsyncCollectiveStart", "ConcatBitcast"),
    *("GatherScatterIndicesBitpacked", "X64Combine", "X64SplitHigh", "X64SplitLow"),
}
"""Custom calls that the TPU's compiler adds for its own use."""

_KERNELS = (*GPU_KERNELS, "tpu_custom_call")
"""Custom calls that run a kernel of the user's, whose cost only the user knows."""


def read_program(
    origin: Origin,
    module: Module,
    cost: Mapping[str, float],
    memory: Mapping[str, int],
    donations: Sequence[DonatedArgument],
    unsplit: Module | None = None,
) -> Program:
    """The facts of a compiled program.

    `unsplit` is the program of several slices before the compiler splits its collectives (see `collectives`).

    `cost` is XLA's cost analysis ("flops", "bytes accessed", "transcendentals"), which counts the body of a loop once
    and lacks what it does not know; `memory` its memory statistics (`argument_size_in_bytes` and so on).
    """
    trips = trip_counts(module)
    counts = trips.counts
    once, model = CostModel(module, {}), CostModel(module, counts)
    runs = runs_of(module, counts)
    # All instructions, and those that run by themselves: in the entry, in loops and in branches, not inside fusions.
    everything = list(placed_in(module, runs, _called))
    kernels = list(placed_in(module, runs, lambda op: op.calls if op.opcode in _CONTROL else ()))
    of_the_user = [placed for placed in everything if placed.op.custom_call_target in _KERNELS]
    unestimated = (
        *(_kernel(placed) for placed in of_the_user if placed.op.cost_estimate is None),
        *(_operation(placed, name) for placed in everything if (name := _unknown_library_call(placed))),
    )
    costs = dict.fromkeys(_COSTS) if unestimated else _costs(cost, once, model)
    needed: dict[str, Any] = {field: memory[statistic] for statistic, field in _MEMORY.items()}
    return Program(
        **{field.name: getattr(origin, field.name) for field in dataclasses.fields(origin)},
        flops=costs["flops"],
        bytes_accessed=costs["bytes accessed"],
        transcendentals=costs["transcendentals"],
        **needed,
        donations_asked=len(donations),
        lost_donations=tuple(_lost(donations, module)),
        fusions=tuple(_fusion(module, placed) for placed in kernels if placed.op.opcode == "fusion"),
        operations=tuple(
            _sliced(model, runs, placed, _operation(placed, what)) for placed in kernels if (what := _work(placed.op))
        ),
        products=tuple(_product(placed) for placed in everything if _is_product(placed.op)),
        **_collectives(everything, everything if unsplit is None else _all_of(unsplit)),
        custom_calls=_operations(everything, _custom_call),
        kernels=tuple(_kernel(placed) for placed in of_the_user),
        copies=_operations(kernels, lambda op: "copy" if _only_copies(module, op) else None),
        transposes=_operations(everything, lambda op: "transpose" if op.opcode == "transpose" else None),
        host_transfers=_operations(everything, _host_transfer),
        estimated_cycles=sum((placed.op.estimated_cycles or 0) * placed.runs for placed in kernels),
        at_least=tuple(_operation(placed, "while") for placed in everything if _unknown_trips(placed, counts)),
        at_most=tuple(
            _operation(placed, placed.op.opcode)
            for placed in everything
            if (placed.within, placed.op.name) in trips.at_most or _branches_differ(model, placed.op)
        ),
        unestimated=unestimated,
    )


def _collectives(placed: Sequence[Placed], unsplit: Iterable[Placed]) -> dict[str, Any]:
    """The fields of `Program` that are collectives."""
    named = list(collectives_in(unsplit))
    across = across_slices(sends_between_slices(placed), dict(named))
    within = [each for name, each in named if name not in across]
    moved = [each for _, each in named if each.what in _RESHARDS and not ends_sum(each, across.values())]
    return {
        "collectives": tuple(within),
        "resharding": tuple(each for each in moved if _ASKED_FOR.isdisjoint(NAME.findall(each.op_name))),
        "cross_slice_collectives": tuple(across.values()),
    }


def _unknown_trips(placed: Placed, counts: Mapping[tuple[str, str], int | None]) -> bool:
    return counts.get((placed.within, placed.op.name), 0) is None


def _costs(cost: Mapping[str, float], once: CostModel, model: CostModel) -> dict[str, float | None]:
    """XLA's costs with the runs of loops, which its own leave out.

    `once` counts the body of a loop once, `model` as often as it runs.
    """
    costs: dict[str, float | None] = {}
    for name, field in _COSTS.items():
        if not model.counts and name in cost:
            costs[name] = max(cost[name], 0.0)
            continue
        first, all_runs = getattr(once.total(), field), getattr(model.total(), field)
        # What the model has otherwise than the compiler is in the loops as it is elsewhere.
        beside = max(cost.get(name, first), 0.0) - first
        costs[name] = float(round(all_runs + (beside * all_runs / first if first else beside)))
    return costs


def _called(op: Instruction) -> Iterable[str]:
    return op.calls


def _all_of(module: Module) -> Iterator[Placed]:
    return placed_in(module, runs_of(module, trip_counts(module).counts), _called)


def _operations(among: Iterable[Placed], what: Callable[[Instruction], str | None]) -> tuple[Operation, ...]:
    """Those instructions for which `what` has a name."""
    return tuple(_operation(placed, name) for placed in among if (name := what(placed.op)))


def _operation(placed: Placed, what: str) -> Operation:
    op = placed.op
    size = bytes_of(op.shapes) + bytes_of(placed.operands)
    return Operation(what, op.op_name, source_of(op.stack), size, runs=placed.runs)


def _sliced(model: CostModel, runs: Runs, placed: Placed, operation: Operation) -> Operation:
    """An operation with the bytes that it reads: each iteration of a loop has a slice of the same array."""
    if placed.within not in runs.looped:
        return operation
    return dataclasses.replace(operation, bytes=model.instruction(placed.within, placed.op).bytes)


def _branches_differ(model: CostModel, op: Instruction) -> bool:
    return op.opcode == "conditional" and len({model.computation(name) for name in op.calls}) > 1


def _kernel(placed: Placed) -> Kernel:
    op = placed.op
    # Of a kernel for a GPU only the path has the name that `pallas_call(name=)` gives it: `jit(f)/name/pallas_call`.
    names = NAME.findall(op.op_name)[-2:] if op.custom_call_target in GPU_KERNELS else []
    return Kernel(
        names[0] if names[1:] == ["pallas_call"] else op.name.partition(".")[0],
        op.op_name,
        source_of(op.stack),
        bytes_of(op.shapes) + bytes_of(placed.operands),
        vmem_bytes=op.vmem_bytes,
        vmem_limit_bytes=op.vmem_limit_bytes,
        runs=placed.runs,
    )


def _unknown_library_call(placed: Placed) -> str | None:
    """The name of a library's function whose cost is not known."""
    target = placed.op.custom_call_target
    return target if library_of(target) and library_flops(placed.op, placed.operands) is None else None


def _fusion_kind(op: Instruction) -> str:
    """XLA's own word, "kLoop" and so on; for a GPU's custom kernels what they are made with, "triton_gemm" or "triton".

    XLA has changed the names of those for products, from "__triton_gemm" to "__triton_nested_gemm_fusion".
    """
    if op.kernel is None:
        return op.fusion_kind or "fusion"
    if op.kernel.startswith("__triton"):
        return "triton_gemm" if "gemm" in op.kernel else "triton"
    return op.kernel.strip("_")


def _fusion(module: Module, placed: Placed) -> Fusion:
    op, operands, *_ = placed
    parts = [part for part in _inside(module, op) if part.opcode not in ("parameter", "constant")]
    op_names = frozenset(part.op_name for part in parts if part.op_name)
    names = {name for op_name in op_names for name in NAME.findall(op_name)} | {part.opcode for part in parts}
    sources = (source_of(each.stack) for each in (op, *parts))
    return Fusion(
        f"{_fusion_kind(op)} fusion",
        op.op_name,
        next(filter(None, sources), None),
        bytes_of(op.shapes) + bytes_of(operands),
        frozenset(names),
        op_names,
        runs=placed.runs,
    )


def _inside(module: Module, op: Instruction) -> Iterator[Instruction]:
    """What a fusion holds, also in fusions inside it and in the small functions of its reductions."""
    for name in op.calls:
        for part in module.computations[name].instructions:
            yield part
            yield from _inside(module, part)


def _work(op: Instruction) -> str | None:
    return None if op.opcode in _NO_WORK or op.opcode.endswith("-done") else op.opcode


def _only_copies(module: Module, op: Instruction) -> bool:
    """A kernel that does nothing but copy: XLA's CPU compiler wraps most operations that are alone in a fusion."""
    if op.opcode != "fusion":
        return op.opcode == "copy"
    return {part.opcode for part in _inside(module, op)} - _NO_WORK - {"fusion"} == {"copy"}


def _is_product(op: Instruction) -> bool:
    return op.opcode in _PRODUCTS or is_library_product(op)


def _product(placed: Placed) -> Product:
    op, operands, *_ = placed
    name = op.custom_call_target or op.opcode
    flops = library_product_flops(op, operands) if op.custom_call_target else product_flops(op, *operands[:2])
    left, right = operands[:2]
    precision = max(re.findall(r"high\w*", op.attributes.get("operand_precision", "")), key=len, default="default")
    return Product(
        f"{left.dtype} x {right.dtype} {name}{'' if precision == 'default' else f' at {precision} precision'}",
        op.op_name,
        source_of(op.stack),
        bytes_of(op.shapes) + bytes_of(operands),
        dtypes=(left.dtype, right.dtype),
        precision=precision,
        flops=flops,
        runs=placed.runs,
    )


def _custom_call(op: Instruction) -> str | None:
    if op.opcode != "custom-call" or op.custom_call_target in _BOOKKEEPING:
        return None
    return op.custom_call_target or "custom call"


def _host_transfer(op: Instruction) -> str | None:
    if op.opcode in ("infeed", "outfeed"):
        return op.opcode
    if op.opcode in ("send", "recv"):
        return op.opcode if op.is_host_transfer and not crosses_network(op) else None
    target = op.custom_call_target or ""
    if "callback" in target.lower():
        return "callback"
    return target if target in _MOVES else None


def _lost(donations: Sequence[DonatedArgument], module: Module) -> Iterator[DonatedArgument]:
    for donation in donations:
        if donation.parameter is None:
            yield dataclasses.replace(donation, reason="the program does not use it")
        elif donation.parameter not in module.reused:
            yield dataclasses.replace(donation, reason=f"{donation.array}: no output took its memory")
