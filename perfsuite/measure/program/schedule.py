"""The instructions of a compiled program in the order in which they run: launches, and what goes on beside them."""

import collections
import dataclasses
import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from perfsuite.measure.hlo.costs import BOOKKEEPING, CONTROL, FREE, PRODUCTS
from perfsuite.measure.hlo.loops import Place
from perfsuite.measure.hlo.module import HloModule, Instruction, Shape, SourceFrame
from perfsuite.measure.program.program import Operation, source_of

RUNNING = CONTROL - {"async-start"}

NO_WORK = CONTROL | FREE

TRANSFERS = ("copy-start", "infeed", "outfeed", "recv", "send")
"""What moves data while the device does something else."""

_COLLECTIVES = {
    *("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute"),
    *("ragged-all-to-all", "reduce-scatter"),
}

_MEGASCALE = "xla_megascale_runtime"


class Placed(NamedTuple):
    """An instruction, the shapes of its operands, the computation that it is in, and how often that runs.

    `around` is the line of the loop, the branch or the kernel that it is in, `parts` is what it holds or runs.
    """

    op: Instruction
    operands: tuple[Shape, ...]
    within: str
    runs: int
    around: SourceFrame | None
    parts: Sequence[Instruction]

    @property
    def place(self) -> Place:
        return self.within, self.op.name

    @property
    def bytes(self) -> int:
        """The bytes of operands and results."""
        return bytes_of(self.op.shapes) + bytes_of(self.operands)

    @property
    def source(self) -> SourceFrame | None:
        """Its line; where the compiler has none for it, the line of what it holds, or of what it is in."""
        return next(filter(None, (source_of(op.stack) for op in (self.op, *self.parts))), self.around)

    def operation(self, what: str) -> Operation:
        return Operation(what, self.op.op_name, self.source, self.bytes, runs=self.runs)


def placed_in(module: HloModule, runs: Mapping[str, int], opcodes: Container[str] | None = None) -> Iterator[Placed]:
    """The instructions of the entry and of every computation that it reaches, each once.

    With `opcodes`, only those that instructions of these call.
    """
    reached: dict[str, SourceFrame | None] = {module.entry: None}
    waiting = [module.entry]
    for name in waiting:
        computation = module.computations[name]
        shapes = {op.name: op.shapes for op in computation.instructions}
        for op in computation.instructions:
            operands = tuple(shape for operand in op.operands for shape in shapes[operand])
            placed = Placed(op, operands, name, runs[name], reached[name], tuple(_inside(module, op)))
            calls = op.calls if opcodes is None or op.opcode in opcodes else ()
            if new := [called for called in calls if called not in reached]:
                reached |= dict.fromkeys(new, placed.source)
                waiting += new
            yield placed


def bytes_of(shapes: Iterable[Shape]) -> int:
    return sum(shape.bytes for shape in shapes)


def _inside(module: HloModule, op: Instruction) -> Iterator[Instruction]:
    """What a fusion holds, also in fusions inside it and in the small functions of its reductions."""
    for name in op.calls:
        for part in module.computations[name].instructions:
            yield part
            yield from _inside(module, part)


def is_launch(placed: Placed) -> bool:
    """Whether it is a launch: no name for memory, no bookkeeping of the compiler, no end of what was started before."""
    op = placed.op
    if op.opcode == "fusion":
        return not any(part.custom_call_target == "AsyncCollectiveDone" for part in placed.parts)
    return not (op.opcode in NO_WORK or op.opcode.endswith("-done") or op.custom_call_target in BOOKKEEPING)


def each_collective(everything: Iterable[Placed]) -> Iterator[tuple[Placed, Operation]]:
    """Each collective once: of an asynchronous one its start, or what that wraps."""
    first: dict[Any, Placed] = {}
    for placed in everything:
        kind = collective_kind(placed.op)
        if kind and first.setdefault(collective_identity(placed.op), placed) is placed:
            yield placed, dataclasses.replace(placed.operation(kind), bytes=moved_bytes(placed))


def collective_kind(op: Instruction) -> str:
    """The kind of a collective or of its start; empty for other instructions."""
    kind = op.opcode.removesuffix("-start")
    return kind if kind in _COLLECTIVES else ""


def collective_identity(collective: Instruction) -> Any:
    """What the parts of a collective share, which a TPU's compiler cuts into fusions: its chain, else its name."""
    chain = collective.frontend_attributes.get("chain_id")
    return (collective.opcode, chain, collective.channel) if chain else collective.name


class Span(NamedTuple):
    """What goes on beside other instructions of a computation, from the position of the first to that of the last.

    A collective's `identity` is that of `collective_identity`, another transfer's its start's name.
    """

    identity: Any
    first: int
    last: int


def spans_of(instructions: Sequence[Placed]) -> list[Span]:
    """The collectives and transfers of a computation, in the order of the schedule.

    A collective lasts from the first instruction that holds a part of it, such as its start, to the last or to its end.
    """
    held: dict[str, dict[Any, None]] = {}
    positions: dict[Any, list[int]] = collections.defaultdict(list)
    for position, placed in enumerate(instructions):
        op = placed.op
        parts = (op, *(() if op.opcode in RUNNING else placed.parts))
        held[op.name] = {collective_identity(part): None for part in parts if collective_kind(part)}
        if op.opcode.endswith(("-done", "-update")):
            held[op.name] |= held[op.operands[0]]
        elif not held[op.name] and (op.opcode in TRANSFERS or op.opcode == "async-start"):
            held[op.name] = {op.name: None}
        for identity in held[op.name]:
            positions[identity].append(position)
    return [Span(identity, among[0], among[-1]) for identity, among in positions.items()]


def hidden_collectives(kernels: Iterable[Placed]) -> Iterator[Any]:
    """The identities of what goes on while the device computes."""
    for _, computation in itertools.groupby(kernels, lambda placed: placed.within):
        instructions = list(computation)
        for span in spans_of(instructions):
            if any(map(computes, instructions[span.first : span.last + 1])):
                yield span.identity


def computes(placed: Placed) -> bool:
    """Whether the device computes with arrays; a kernel that holds a part of a collective does if it has a product."""
    op, parts = placed.op, placed.parts
    if op.opcode in RUNNING:
        return True
    if any(map(collective_kind, (op, *parts))):
        return any(part.opcode in PRODUCTS for part in parts)
    arrays = any(shape.elements > 1 for shape in (*op.shapes, *placed.operands))
    return arrays and is_launch(placed) and op.opcode not in TRANSFERS


def moved_bytes(placed: Placed) -> int:
    """The larger of what goes in and what comes out: the whole array for a gather and for a scatter."""
    op, into = placed.op, bytes_of(placed.operands)
    if not op.opcode.endswith("-start"):
        return max(into, bytes_of(op.shapes))
    # An asynchronous start gives back its operands beside its results, and scalars for its progress.
    out = sum(shape.bytes for shape in op.shapes if shape.dims or shape.dtype not in ("s32", "u32"))
    return max(into, out - into if out > into else out)


def crosses_network(op: Instruction, opcodes: Container[str] = ("send", "recv")) -> bool:
    """Whether it is a send or a receive between slices, and not with the host as its attributes say."""
    return op.opcode in opcodes and op.frontend_attributes.get("_xla_host_transfer_handler_name") == _MEGASCALE
