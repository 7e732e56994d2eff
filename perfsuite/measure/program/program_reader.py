"""Reads a `Program` from a compiler's output: the optimised program, its cost analysis, its memory statistics.

The TPU's compiler splits a collective over several slices into a part inside the slices and one between them. The part
between them is a send and a receive of Megascale. It has the name of the collective, but no source line: that is in the
program as it was before the split.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perfsuite.measure.hlo.costs import (
    BOOKKEEPING,
    CONTROL,
    PRODUCTS,
    CostModel,
    call_flops,
    is_library_product,
    library_product_flops,
    product_flops,
)
from perfsuite.measure.hlo.liveness import Liveness, Lives
from perfsuite.measure.hlo.loops import Place, run_counts, total_of, trip_counts
from perfsuite.measure.hlo.module import KERNEL_COSTS, Computation, HloModule, Instruction, Shape, bits_of
from perfsuite.measure.program.estimate import OperationTime, TimeModel
from perfsuite.measure.program.lowering import KernelEstimate
from perfsuite.measure.program.program import (
    NAME,
    Arithmetic,
    DonatedArgument,
    EstimatedOperation,
    Fusion,
    Kernel,
    LiveArray,
    Loop,
    Operation,
    Origin,
    Product,
    Program,
    product_seconds,
)
from perfsuite.measure.program.schedule import (
    NO_WORK,
    Placed,
    bytes_of,
    collective_identity,
    collective_kind,
    crosses_network,
    each_collective,
    hidden_collectives,
    is_launch,
    placed_in,
)
from perfsuite.measure.targets.kernel_code import GPU_KERNELS, USER_KERNELS, KernelCode, occupancy
from perfsuite.measure.targets.targets import TARGETS, Architecture, GpuTarget, Rates

_MEMORY = {
    "argument_size_in_bytes": "argument_bytes",
    "output_size_in_bytes": "output_bytes",
    "temp_size_in_bytes": "temp_bytes",
    "alias_size_in_bytes": "alias_bytes",
    "generated_code_size_in_bytes": "code_bytes",
}
"""XLA's names of memory statistics, and those of the fields of `Program`."""


_RESHARDS = ("all-gather", "all-to-all", "collective-permute")
_ASKED_FOR = {
    *("all_gather", "all_to_all", "ppermute", "psum_scatter", "reduce_scatter"),
    *("reshard", "shard_map", "sharding_constraint"),
}
"""Primitives with which a program asks for data to move. The partitioner adds all other moves by itself."""

_MOVES = ("MoveToHost", "MoveToDevice")

_KINDS = {"ONE_TO_ONE": "collective-permute"}


def read_program(
    origin: Origin,
    module: HloModule,
    memory: Mapping[str, int],
    donations: Sequence[DonatedArgument],
    unsplit: HloModule | None = None,
    *,
    arguments: Sequence[tuple[str, Sequence[int]]] = (),
    outputs: Sequence[tuple[str, Sequence[int]]] = (),
    codes: Mapping[str, KernelCode] | None = None,
) -> Program:
    """The facts of a compiled program.

    `unsplit` is the program of several slices before the compiler splits its collectives. `memory` are XLA's memory
    statistics (`argument_size_in_bytes` and so on). `arguments` and `outputs` are the paths, with the shapes on all
    devices, of those that the program has, in its order. `codes` are those of kernels, by the names of their
    instructions.
    """
    trips = trip_counts(module)
    model = CostModel(module, trips.counts)
    runs = run_counts(module, trips.counts)
    # All instructions, and those that run by themselves: in the entry, in loops and in branches, not inside fusions.
    everything = list(placed_in(module, runs))
    kernels = list(placed_in(module, runs, CONTROL))
    target = TARGETS.get(origin.target or "")
    kernel = functools.partial(_kernel, codes or {}, target.architecture if isinstance(target, GpuTarget) else None)
    of_user = {placed.place: kernel(placed) for placed in everything if placed.op.custom_call_target in USER_KERNELS}
    unestimated = tuple(
        of_user.get(placed.place) or placed.operation(placed.op.custom_call_target)
        for placed in everything
        if _lacks_cost(placed)
    )
    hidden = set(hidden_collectives(kernels))
    of_products = {placed.place: _product(placed) for placed in everything if _is_product(placed.op)}
    known, in_all = model.total(), functools.partial(total_of, module, trips.counts)
    exposed = {
        each.place: one for each, one in each_collective(everything) if collective_identity(each.op) not in hidden
    }
    times = None
    if origin.rates is not None:
        unknown = {placed.place for placed in everything if _lacks_cost(placed)}
        times = TimeModel(model, kernels, of_products, unknown, of_user, origin.rates, origin.partitions)
    launches = _launches(model, kernels, of_user, of_products, times)
    loops = tuple(_loop(placed, trips.counts, times) for placed in kernels if placed.op.opcode == "while")
    at_least = tuple(loop for loop in loops if loop.iterations is None)
    entry = Liveness(module).lives(module.entry)
    passed = _paired(arguments, [buffer.shape for buffer in entry.arguments])
    returned = _paired(outputs, module.computations[module.entry].root.shapes)
    needed: dict[str, Any] = {field: memory[statistic] for statistic, field in _MEMORY.items()}
    return Program(
        **{field.name: getattr(origin, field.name) for field in dataclasses.fields(origin)},
        known=known,
        **needed,
        at_peak=_at_peak(entry, everything, [path for path, _ in arguments]),
        argument_sizes=_sizes(passed),
        output_sizes=_sizes(returned),
        shards=_shards((*passed, *returned)),
        reused_donations=tuple(each for each in donations if not _why_lost(each, module)),
        lost_donations=tuple(
            dataclasses.replace(each, reason=why) for each in donations if (why := _why_lost(each, module))
        ),
        fusions=tuple(_fusion(model, placed) for placed in kernels if placed.op.opcode == "fusion"),
        operations=tuple(launches.values()),
        known_us=None if times is None else times.total(),
        waiting_us=None
        if times is None or any(each.waiting_us is not None and each.estimated_us is None for each in launches.values())
        else in_all({place: each.waiting_us or 0.0 for place, each in launches.items() if each.limit == "link"}),
        launches=None if at_least else int(in_all(dict.fromkeys(launches, 1))),
        sequential_steps=None if at_least else _sequential_steps(module, trips.counts),
        loops=loops,
        conditionals=tuple(placed.operation("conditional") for placed in kernels if placed.op.opcode == "conditional"),
        selections=tuple(placed.operation("conditional") for placed in everything if placed.op.opcode == "select"),
        products=tuple(of_products.values()),
        arithmetic=tuple(
            _arithmetic(model, placed)
            for placed in placed_in(module, runs, CONTROL | {"fusion"})
            if not (placed.op.opcode in NO_WORK or placed.op.opcode == "fusion" or _is_product(placed.op))
        ),
        compute_seconds=_compute_seconds(origin.rates, known.flops, of_products, in_all),
        **_collectives(everything, module if unsplit is None else unsplit),
        cross_slice_bytes=int(
            in_all({each.place: bytes_of(each.operands) for each in everything if crosses_network(each.op, ["send"])})
        ),
        exposed_collectives=None if origin.device_kind == "cpu" else tuple(exposed.values()),
        exposed_collective_bytes=None
        if origin.device_kind == "cpu"
        else int(in_all({place: each.bytes for place, each in exposed.items()})),
        custom_calls=_operations(everything, _custom_call),
        kernels=tuple(of_user.values()),
        copies=tuple(placed.operation("copy") for placed in kernels if _only_copies(placed)),
        transposes=tuple(placed.operation("transpose") for placed in everything if placed.op.opcode == "transpose"),
        host_transfers=_operations(everything, _host_transfer),
        float64_operations=_operations(everything, _float64),
        widening_conversions=tuple(
            {(each.what, each.where): each for each in _operations(everything, _widening)}.values()
        ),
        at_least=at_least,
        at_most=tuple(
            placed.operation(placed.op.opcode)
            for placed in everything
            if placed.place in trips.at_most
            or (placed.op.opcode == "conditional" and len(set(map(model.computation, placed.op.calls))) > 1)
        ),
        unestimated=unestimated,
    )


def _operations(among: Iterable[Placed], what: Callable[[Placed], str | None]) -> tuple[Operation, ...]:
    """Those instructions for which `what` has a name."""
    return tuple(placed.operation(name) for placed in among if (name := what(placed)))


def _lacks_cost(placed: Placed) -> bool:
    return placed.op.opcode == "custom-call" and call_flops(placed.op, placed.operands) is None


def _launches(
    model: CostModel,
    kernels: Iterable[Placed],
    of_user: Mapping[Place, Kernel],
    products: Mapping[Place, Product],
    times: TimeModel | None,
) -> dict[Place, EstimatedOperation]:
    """The operations that run by themselves, with their estimated times where the device's rates are known."""
    operations = {}
    waits, starts = (times.waits(), times.starts) if times else ({}, {})
    longer = times.longer() if times else {}
    for placed in filter(is_launch, kernels):
        estimate = times.estimate(placed) if times else OperationTime(None)
        inner = {op.name for op in placed.parts}
        what = collective_kind(placed.op) or _launched(placed.op)
        if placed.place in products or any((name, op) in products for name in placed.op.calls for op in inner):
            what = "product"
        elif placed.place in of_user:
            what = of_user[placed.place].what
        operations[placed.place] = EstimatedOperation(
            what,
            placed.op.op_name,
            placed.source,
            model.instruction(placed.within, placed.op).bytes,
            runs=placed.runs,
            estimated_us=None if estimate.us is None else estimate.us + longer.get(placed.place, 0.0),
            limit=estimate.limit,
            basis=estimate.basis,
            start_us=starts.get(placed.place, 0.0),
            waiting_us=waits.get(placed.place),
        )
    return operations


def _kernel(codes: Mapping[str, KernelCode], architecture: Architecture | None, placed: Placed) -> Kernel:
    op = placed.op
    code = codes.get(op.name, KernelCode())
    # Of a kernel for a GPU only the path has the name that `pallas_call(name=)` gives it: `jit(f)/name/pallas_call`.
    names = NAME.findall(op.op_name)[-2:] if op.custom_call_target in GPU_KERNELS else []
    return Kernel(
        names[0] if names[1:] == ["pallas_call"] else op.name.partition(".")[0],
        op.op_name,
        placed.source,
        placed.bytes,
        vmem_bytes=op.vmem_bytes,
        vmem_limit_bytes=op.vmem_limit_bytes,
        occupancy=occupancy(code, architecture) if architecture else None,
        runs=placed.runs,
        **vars(code),
    )


def _fusion_kind(op: Instruction) -> str:
    """XLA's own word, "kLoop" and so on; for a GPU's custom kernels what they are made with, "triton_gemm" or "triton".

    XLA has changed the names of those for products, from "__triton_gemm" to "__triton_nested_gemm_fusion".
    """
    if not op.kernel:
        return op.fusion_kind or "fusion"
    if op.kernel.startswith("__triton"):
        return "triton_gemm" if "gemm" in op.kernel else "triton"
    return op.kernel.strip("_")


def _fusion(model: CostModel, placed: Placed) -> Fusion:
    op = placed.op
    parts = [part for part in placed.parts if part.opcode not in ("parameter", "constant")]
    op_names = frozenset(part.op_name for part in parts if part.op_name)
    names = {name for op_name in op_names for name in NAME.findall(op_name)} | {part.opcode for part in parts}
    return Fusion(
        f"{_fusion_kind(op)} fusion",
        op.op_name,
        placed.source,
        model.instruction(placed.within, op).bytes,
        frozenset(names),
        op_names,
        runs=placed.runs,
    )


def _launched(op: Instruction) -> str:
    """`top_k fusion`: a fusion by JAX's name for what it ends with, so that a new one is told from others."""
    names = NAME.findall(op.op_name) if op.opcode == "fusion" else []
    return f"{names[-1]} fusion" if names else op.custom_call_target or op.opcode


def _only_copies(placed: Placed) -> bool:
    """A kernel that does nothing but copy: XLA's CPU compiler wraps most operations that are alone in a fusion."""
    if placed.op.opcode != "fusion":
        return placed.op.opcode == "copy"
    return {part.opcode for part in placed.parts} - NO_WORK - {"fusion"} == {"copy"}


def _loop(placed: Placed, counts: Mapping[Place, int | None], times: TimeModel | None) -> Loop:
    iterations = counts.get(placed.place)
    what = f"loop of {'unknown' if iterations is None else format(iterations, ',')} iterations"
    return Loop(
        what,
        placed.op.op_name,
        placed.source,
        placed.bytes,
        iterations=iterations,
        runs=placed.runs,
        start_us=times.starts[placed.place] if times else 0.0,
        estimated_us=times.busy_us(placed) if times else None,
    )


def _sequential_steps(module: HloModule, counts: Mapping[Place, int | None]) -> int:
    """How many iterations the innermost loops of one run make. Of a conditional the largest branch counts."""

    @functools.cache
    def steps(name: str) -> int:
        total = 0
        for op in module.computations[name].instructions:
            called = [steps(called) for called in op.calls] if op.opcode in CONTROL else []
            if op.opcode == "while":
                total += (counts.get((name, op.name)) or 0) * (sum(called) or 1)
            elif op.opcode == "conditional":
                total += max(called)
            else:
                total += sum(called)
        return total

    return steps(module.entry)


def _is_product(op: Instruction) -> bool:
    return op.opcode in PRODUCTS or is_library_product(op)


def _product(placed: Placed) -> Product:
    op, operands, *_ = placed
    name = op.custom_call_target or op.opcode
    flops = library_product_flops(op, operands) if op.custom_call_target else product_flops(op, *operands[:2])
    left, right = operands[:2]
    return Product(
        f"{left.dtype} x {right.dtype} {name}{'' if op.precision == 'default' else f' at {op.precision} precision'}",
        op.op_name,
        placed.source,
        placed.bytes,
        dtypes=(left.dtype, right.dtype),
        precision=op.precision,
        flops=flops,
        runs=placed.runs,
    )


def _arithmetic(model: CostModel, placed: Placed) -> Arithmetic:
    cost = model.instruction(placed.within, placed.op)
    operation = placed.operation(placed.op.custom_call_target or placed.op.opcode)
    return Arithmetic(**vars(operation), flops=cost.flops, transcendentals=cost.transcendentals)


def _compute_seconds(
    rates: Rates | None,
    flops: float,
    products: Mapping[Place, Product],
    in_all: Callable[[Mapping[Place, float]], float],
) -> float:
    """The time of the products at the rates of their types, and of other FLOP at the fastest."""
    if rates is None:
        return 0.0
    others = flops - in_all({place: product.flops for place, product in products.items()})
    seconds = in_all({place: product_seconds(rates, product) for place, product in products.items()})
    return seconds + max(others, 0.0) / max(rates.peak_flops.values())


def _custom_call(placed: Placed) -> str | None:
    op = placed.op
    if op.opcode != "custom-call" or op.custom_call_target in BOOKKEEPING:
        return None
    return op.custom_call_target or "custom call"


def _host_transfer(placed: Placed) -> str | None:
    op = placed.op
    if op.opcode in ("infeed", "outfeed"):
        return op.opcode
    if op.opcode in ("send", "recv"):
        return op.opcode if op.is_host_transfer and not crosses_network(op) else None
    if "callback" in op.custom_call_target.lower():
        return "callback"
    return op.custom_call_target if op.custom_call_target in _MOVES else None


def _float64(placed: Placed) -> str | None:
    wide = any(shape.dtype in ("f64", "c128") for shape in placed.op.shapes)
    return placed.op.opcode if wide and is_launch(placed) else None


def _widening(placed: Placed) -> str | None:
    """The types of a conversion to a wider float. Others than the code's own are the compiler's business."""
    op = placed.op
    if op.opcode != "convert" or NAME.findall(op.op_name)[-1:] != ["convert_element_type"]:
        return None
    old, new = placed.operands[0].dtype, op.shapes[0].dtype
    floats = all(dtype.startswith(("f", "bf")) for dtype in (old, new))
    return f"{old} to {new}" if floats and bits_of(new) > bits_of(old) else None


def _paired(
    leaves: Sequence[tuple[str, Sequence[int]]], shapes: Sequence[Shape]
) -> list[tuple[str, Sequence[int], Shape]]:
    """Path and whole shape of each leaf, with what a device has of it; none where the compiler has others than JAX."""
    if len(leaves) != len(shapes):
        return []
    return [(path, whole, shape) for (path, whole), shape in zip(leaves, shapes, strict=True)]


def _sizes(leaves: Iterable[tuple[str, Sequence[int], Shape]]) -> dict[str, int]:
    sizes: collections.Counter[str] = collections.Counter()
    for path, _, shape in leaves:
        sizes[path] += shape.allocated_bytes
    return dict(sizes)


def _shards(leaves: Iterable[tuple[str, Sequence[int], Shape]]) -> dict[str, int]:
    counts = {
        path: math.prod(whole) // max(math.prod(shape.dims), 1)
        for path, whole, shape in leaves
        if len(whole) == len(shape.dims)  # a key of jax.random has its words in the program
    }
    return {path: count for path, count in counts.items() if count > 1}


def _at_peak(entry: Lives, everything: Iterable[Placed], paths: Sequence[str]) -> tuple[LiveArray, ...]:
    """The arrays that are alive at the peak, the largest first, equal ones by name."""
    placed = {id(each.op): each for each in everything}
    # Where the compiler has others than JAX, it has names for them.
    names = paths if len(paths) == len(entry.arguments) else [buffer.op.op_name for buffer in entry.arguments]
    path_of = dict(zip(entry.arguments, names, strict=True))
    arrays = []
    for buffer in entry.highest:
        what = shape = f"{buffer.shape.dtype}[{','.join(map(str, buffer.shape.dims))}]"
        maker, op_name, source, role = placed[id(buffer.op)], path_of.get(buffer, ""), None, "argument"
        if buffer not in path_of:
            op_name, source = maker.op.op_name, maker.source
            what = f"{shape} of {[maker.op.opcode, *NAME.findall(op_name)][-1]}"
            role = "output" if buffer in entry.result else "temporary"
            if maker.op.opcode == "parameter":
                what, op_name = f"{shape} of copy", ""
        arrays.append(LiveArray(what, op_name, source, buffer.bytes, shape=shape, role=role))
    return tuple(sorted(arrays, key=lambda array: (-array.bytes, array.what, array.where)))


def _why_lost(donation: DonatedArgument, module: HloModule) -> str:
    if donation.parameter is None:
        return "the program does not use it"
    return "" if donation.parameter in module.reused.values() else f"{donation.array}: no output took its memory"


def _collectives(everything: Sequence[Placed], unsplit: HloModule) -> dict[str, Any]:
    """The fields of `Program` that are collectives."""
    counts = trip_counts(unsplit).counts
    named = [
        (each.place, operation) for each, operation in each_collective(placed_in(unsplit, run_counts(unsplit, counts)))
    ]
    across = _across_slices(everything, {name: each for (_, name), each in named})
    within = {place: each for place, each in named if place[1] not in across}
    # A sum over several slices is scattered inside each slice, sent to the others, and gathered.
    sums = {(each.op_name, each.source) for each in across.values() if each.what == "all-reduce"}
    moved = [each for _, each in named if each.what in _RESHARDS and (each.op_name, each.source) not in sums]
    return {
        "collectives": tuple(within.values()),
        "collective_bytes": int(total_of(unsplit, counts, {place: each.bytes for place, each in within.items()})),
        "resharding": tuple(each for each in moved if _ASKED_FOR.isdisjoint(NAME.findall(each.op_name))),
        "cross_slice_collectives": tuple(across.values()),
    }


def _across_slices(everything: Iterable[Placed], unsplit: Mapping[str, Operation]) -> dict[str, Operation]:
    """The collectives that leave their slice, by name, with the bytes that one device sends to other slices.

    `unsplit` are the collectives before the split, by name.
    """
    across: dict[str, Operation] = {}
    for placed in everything:
        op = placed.op
        if not crosses_network(op, ["send"]):
            continue
        size = bytes_of(placed.operands)
        name = op.frontend_attributes.get("_xla_host_transfer_rendezvous", "").rpartition("_")[0]
        kind = op.frontend_attributes.get("_xla_megascale_transfer_type", "")
        if name in across:  # a collective of several arrays
            across[name] = dataclasses.replace(across[name], bytes=across[name].bytes + size)
        else:
            unknown = Operation(_KINDS.get(kind, kind.lower().replace("_", "-")), name, None, 0)
            across[name] = dataclasses.replace(unsplit.get(name, unknown), bytes=size, runs=placed.runs)
    return across


def with_estimates(module: HloModule, estimates: Iterable[KernelEstimate]) -> HloModule:
    """The program with the estimates of its GPU kernels; the same object where it has none without one.

    A kernel is found by its line and the shapes of its results. Where two kernels of one line and shape differ, neither
    is known.
    """
    by_place: dict[tuple[str, Any], set[KernelEstimate]] = collections.defaultdict(set)
    for each in estimates:
        by_place[each.place, each.results].add(each)
    certain = {key: one for key, (one, *others) in by_place.items() if not others and one.flops is not None}
    changed = {}
    for name, computation in module.computations.items():
        instructions = tuple(_estimated(op, certain) for op in computation.instructions)
        if instructions != computation.instructions:
            changed[name] = Computation(name, instructions)
    return dataclasses.replace(module, computations={**module.computations, **changed}) if changed else module


def _estimated(op: Instruction, estimates: Mapping[tuple[str, Any], KernelEstimate]) -> Instruction:
    if op.custom_call_target not in GPU_KERNELS or op.cost_estimate is not None:
        return op
    results = tuple(shape.dims for shape in op.shapes)
    keys = ((f"{frame.file}:{frame.line}", results) for frame in op.stack)
    estimate = next((estimates[key] for key in keys if key in estimates), None)
    if estimate is None:
        return op
    return dataclasses.replace(op, cost_estimate={name: getattr(estimate, name) for name in KERNEL_COSTS})
