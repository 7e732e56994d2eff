"""Reads a `Program` off what a compiler gives: the optimised program, its cost analysis, its memory statistics."""

import dataclasses
import re
import site
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from perfsuite.measure.hlo.hlo_module import Computation, Frame, Instruction, Module, Shape
from perfsuite.measure.hlo.product_flops import product_flops
from perfsuite.measure.program.lowering import Donation
from perfsuite.measure.program.program import NAME, Fusion, LostDonation, Operation, Origin, Product, Program

_CONTROL = frozenset(("while", "conditional", "call", "async-start"))
"""What runs the computations that it calls, instruction by instruction."""

_NO_WORK = _CONTROL | {
    *("after-all", "async-update", "bitcast", "constant", "get-tuple-element", "parameter", "tuple"),
}

_PRODUCTS = ("dot", "convolution")
_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_RESHARDS = ("all-gather", "all-to-all", "collective-permute")
_ASKED_FOR = {
    *("all_gather", "all_to_all", "ppermute", "psum_scatter", "reduce_scatter"),
    *("reshard", "shard_map", "sharding_constraint"),
}
"""Primitives with which a program asks for data to move; the partitioner puts in the rest by itself."""

_MOVES = ("MoveToHost", "MoveToDevice")
_BOOKKEEPING = {
    *("AllocateBuffer", "AssumeGatherIndicesInBound", "AsyncCollectiveDone", "AsyncCollectiveStart", "ConcatBitcast"),
    *("GatherScatterIndicesBitpacked", "X64Combine", "X64SplitHigh", "X64SplitLow"),
}
"""Custom calls by which the TPU's compiler tells itself something."""

_CHAIN = re.compile(r'chain_id="?(\d+)')
_LIBRARIES = tuple(
    {*site.getsitepackages(), site.getusersitepackages()}
    | {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def read_program(
    origin: Origin,
    module: Module,
    cost: Mapping[str, float],
    memory: Mapping[str, int],
    donations: Sequence[Donation],
) -> Program:
    """The facts of a compiled program.

    `cost` is XLA's cost analysis ("flops", "bytes accessed", "transcendentals"), `memory` its memory statistics
    (`argument_size_in_bytes` and so on).
    """
    kernels = list(_kernels(module))
    everything = [(computation, op) for computation in _reachable(module) for op in computation.instructions]
    shapes = {name: {op.name: op.shapes for op in of.instructions} for name, of in module.computations.items()}

    def operation(computation: Computation, op: Instruction, what: str, bytes_: int | None = None) -> Operation:
        size = _bytes(op.shapes) + _operand_bytes(op, shapes[computation.name]) if bytes_ is None else bytes_
        return Operation(what, op.op_name, source_of(op.stack), size)

    fusions = [_fusion(module, computation, op, shapes) for computation, op in kernels if op.opcode == "fusion"]
    collectives = [
        operation(computation, op, op.opcode.removesuffix("-start"), _moved_bytes(op, shapes[computation.name]))
        for computation, op in _collectives(everything)
    ]
    return Program(
        **{field.name: getattr(origin, field.name) for field in dataclasses.fields(origin)},
        flops=max(cost.get("flops", 0.0), 0.0),
        bytes_accessed=max(cost.get("bytes accessed", 0.0), 0.0),
        transcendentals=max(cost.get("transcendentals", 0.0), 0.0),
        argument_bytes=memory["argument_size_in_bytes"],
        output_bytes=memory["output_size_in_bytes"],
        temp_bytes=memory["temp_size_in_bytes"],
        alias_bytes=memory["alias_size_in_bytes"],
        code_bytes=memory["generated_code_size_in_bytes"],
        donations_asked=len(donations),
        lost_donations=tuple(_lost(donations, _reused(module))),
        fusions=tuple(fusions),
        operations=tuple(
            operation(computation, op, op.opcode)
            for computation, op in kernels
            if op.opcode not in _NO_WORK and not op.opcode.endswith("-done")
        ),
        products=tuple(
            _product(op, operation(computation, op, op.opcode), shapes[computation.name])
            for computation, op in everything
            if op.opcode in _PRODUCTS
        ),
        collectives=tuple(collectives),
        resharding=tuple(made for made in collectives if made.what in _RESHARDS and not _asked_for(made.op_name)),
        custom_calls=tuple(
            operation(computation, op, op.custom_call_target or "custom call")
            for computation, op in everything
            if op.opcode == "custom-call" and op.custom_call_target not in _BOOKKEEPING
        ),
        copies=tuple(operation(computation, op, "copy") for computation, op in kernels if _only_copies(module, op)),
        transposes=tuple(
            operation(computation, op, "transpose") for computation, op in everything if op.opcode == "transpose"
        ),
        host_transfers=tuple(
            operation(computation, op, kind) for computation, op in everything if (kind := _host_transfer(op))
        ),
        estimated_cycles=sum(op.estimated_cycles or 0 for _, op in kernels),
    )


def _reachable(module: Module) -> list[Computation]:
    """The entry and every computation called from it, also those inside kernels, each once."""
    return _walk(module, lambda op: op.calls)


def _kernels(module: Module) -> Iterator[tuple[Computation, Instruction]]:
    """The instructions that run by themselves: in the entry, in loops and in branches, not inside fusions."""
    for computation in _walk(module, lambda op: op.calls if op.opcode in _CONTROL else ()):
        for op in computation.instructions:
            yield computation, op


def _walk(module: Module, calls: Callable[[Instruction], Iterable[str]]) -> list[Computation]:
    found = {module.entry: module.computations[module.entry]}
    waiting = [module.entry]
    while waiting:
        for op in module.computations[waiting.pop()].instructions:
            for name in calls(op):
                if name not in found:
                    found[name] = module.computations[name]
                    waiting.append(name)
    return list(found.values())


def _fusion(
    module: Module, computation: Computation, op: Instruction, shapes: Mapping[str, Mapping[str, tuple[Shape, ...]]]
) -> Fusion:
    parts = [part for part in _inside(module, op) if part.opcode not in ("parameter", "constant")]
    op_names = frozenset(part.op_name for part in parts if part.op_name)
    names = {name for op_name in op_names for name in NAME.findall(op_name)} | {part.opcode for part in parts}
    sources = dict.fromkeys(source for part in parts if (source := source_of(part.stack)))
    return Fusion(
        f"{op.fusion_kind or 'fusion'} fusion",
        op.op_name,
        source_of(op.stack) or next(iter(sources), None),
        _bytes(op.shapes) + _operand_bytes(op, shapes[computation.name]),
        frozenset(names),
        op_names,
        len(parts),
        tuple(sources),
        op.estimated_cycles,
    )


def _inside(module: Module, op: Instruction) -> Iterator[Instruction]:
    """What a fusion holds, also in fusions inside it and in the small functions of its reductions."""
    for name in op.calls:
        for part in module.computations[name].instructions:
            yield part
            yield from _inside(module, part)


def _only_copies(module: Module, op: Instruction) -> bool:
    """A kernel that does nothing but copy: XLA's CPU compiler wraps most operations that are alone in a fusion."""
    if op.opcode != "fusion":
        return op.opcode == "copy"
    work = {part.opcode for part in _inside(module, op)} - _NO_WORK - {"fusion"}
    return work == {"copy"}


def _product(op: Instruction, operation: Operation, shapes: Mapping[str, tuple[Shape, ...]]) -> Product:
    left, right = (shapes[operand][0] for operand in op.operands[:2])
    fields = {field.name: getattr(operation, field.name) for field in dataclasses.fields(operation)}
    precision = max(re.findall(r"high\w*", op.attributes.get("operand_precision", "")), key=len, default="default")
    what = f"{left.dtype} x {right.dtype} {op.opcode}{'' if precision == 'default' else f' at {precision} precision'}"
    return Product(
        **{**fields, "what": what},
        dtypes=(left.dtype, right.dtype),
        precision=precision,
        flops=product_flops(op, left, right),
    )


def _collectives(
    everything: Iterable[tuple[Computation, Instruction]],
) -> Iterator[tuple[Computation, Instruction]]:
    """Each collective once: of an asynchronous one its start, or what that wraps."""
    chains = set()
    for computation, op in everything:
        if op.opcode.removesuffix("-start") not in _COLLECTIVES:
            continue
        # The TPU's compiler cuts one collective into the parts of a chain, each in a fusion of its own.
        if chain := _CHAIN.search(op.attributes.get("frontend_attributes", "")):
            part = op.opcode, chain[1], op.attributes.get("channel_id")
            if part in chains:
                continue
            chains.add(part)
        yield computation, op


def _moved_bytes(op: Instruction, shapes: Mapping[str, tuple[Shape, ...]]) -> int:
    """The larger of what goes in and what comes out: the whole array for a gather and for a scatter."""
    into = _operand_bytes(op, shapes)
    if not op.opcode.endswith("-start"):
        return max(into, _bytes(op.shapes))
    # An asynchronous start gives back its operands beside its results, and scalars that tell how far it is.
    out = sum(shape.bytes for shape in op.shapes if shape.dims or shape.dtype not in ("s32", "u32"))
    return max(into, out - into if out > into else out)


def _asked_for(op_name: str) -> bool:
    return not _ASKED_FOR.isdisjoint(NAME.findall(op_name))


def _host_transfer(op: Instruction) -> str | None:
    if op.opcode in ("infeed", "outfeed") or (op.opcode in ("send", "recv") and op.is_host_transfer):
        return op.opcode
    target = op.custom_call_target or ""
    if "callback" in target.lower():
        return "callback"
    return target if target in _MOVES else None


def _reused(module: Module) -> set[int]:
    """The numbers of the arguments whose memory an output takes."""
    # A TPU's program with many arguments has one parameter, a tuple of them all.
    return {alias.parameter_index[0] if alias.parameter_index else alias.parameter for alias in module.aliases}


def _lost(donations: Sequence[Donation], reused: set[int]) -> Iterator[LostDonation]:
    for donation in donations:
        if donation.parameter is None:
            yield _lost_donation(donation, "the program does not use it")
        elif donation.parameter not in reused:
            shape = f"{donation.dtype}[{','.join(map(str, donation.shape))}]"
            yield _lost_donation(donation, f"{shape}: no output took its memory")


def _lost_donation(donation: Donation, reason: str) -> LostDonation:
    return LostDonation(donation.path, donation.bytes, reason, donation.function)


def _bytes(shapes: Iterable[Shape]) -> int:
    return sum(shape.bytes for shape in shapes)


def _operand_bytes(op: Instruction, shapes: Mapping[str, tuple[Shape, ...]]) -> int:
    return sum(_bytes(shapes[name]) for name in op.operands)


def source_of(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame outside installed libraries; failing that, the innermost."""
    for frame in stack:
        if not frame.file.startswith(_LIBRARIES):
            return frame
    return stack[0] if stack else None
