"""The collectives of a compiled program: those that stay inside a slice, and those that go from slice to slice.

The TPU's compiler splits a collective over several slices into a part inside the slices and one between them. The part
between them is a send and a receive of Megascale. It has the name of the collective, but no source line: that is in the
program as it was before the split.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

from perfsuite.measure.hlo.hlo_module import Instruction
from perfsuite.measure.program.placed import Placed, bytes_of, source_of
from perfsuite.measure.program.program import Operation

_COLLECTIVES = {
    *("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute"),
    *("ragged-all-to-all", "reduce-scatter"),
}
_CHAIN = re.compile(r'chain_id="?(\d+)')
_HANDLER = "xla_megascale_runtime"
_NAME = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)_\d+"')
_KIND = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_KINDS = {"ONE_TO_ONE": "collective-permute"}


def collectives_in(everything: Iterable[Placed]) -> Iterator[tuple[str, Operation]]:
    """Each collective once, with its name: of an asynchronous one its start, or what that wraps."""
    chains = set()
    for op, operands, _, runs in everything:
        kind = op.opcode.removesuffix("-start")
        if kind not in _COLLECTIVES:
            continue
        # The TPU's compiler cuts one collective into the parts of a chain, each in a fusion of its own.
        if chain := _CHAIN.search(op.attributes.get("frontend_attributes", "")):
            part = op.opcode, chain[1], op.attributes.get("channel_id")
            if part in chains:
                continue
            chains.add(part)
        yield op.name, Operation(kind, op.op_name, source_of(op.stack), _moved_bytes(op, bytes_of(operands)), runs=runs)


def sends_between_slices(everything: Iterable[Placed]) -> Iterator[tuple[Instruction, Operation]]:
    """What is sent from slice to slice."""
    for placed in everything:
        if placed.op.opcode == "send" and crosses_network(placed.op):
            yield placed.op, Operation("send", placed.op.op_name, None, bytes_of(placed.operands), runs=placed.runs)


def _moved_bytes(op: Instruction, into: int) -> int:
    """The larger of what goes in and what comes out: the whole array for a gather and for a scatter."""
    if not op.opcode.endswith("-start"):
        return max(into, bytes_of(op.shapes))
    # An asynchronous start gives back its operands beside its results, and scalars for its progress.
    out = sum(shape.bytes for shape in op.shapes if shape.dims or shape.dtype not in ("s32", "u32"))
    return max(into, out - into if out > into else out)


def crosses_network(op: Instruction) -> bool:
    """Whether a send or receive is between slices, and not with the host as its attributes say."""
    return _HANDLER in op.attributes.get("frontend_attributes", "")


def ends_sum(gather: Operation, across: Iterable[Operation]) -> bool:
    """Whether a collective is the last part of a sum over several slices.

    The compiler scatters the sum inside each slice, sends the parts to the other slices, and gathers the result.
    """
    sums = (each for each in across if each.what == "all-reduce")
    return any((each.op_name, each.source) == (gather.op_name, gather.source) for each in sums)


def across_slices(
    sends: Iterable[tuple[Instruction, Operation]], unsplit: Mapping[str, Operation]
) -> dict[str, Operation]:
    """The collectives that leave their slice, by name, with the bytes that one device sends to other slices.

    `unsplit` are the collectives before the split, by name.
    """
    found: dict[str, Operation] = {}
    for op, send in sends:
        attributes = op.attributes["frontend_attributes"]
        name, kind = (match[1] if (match := pattern.search(attributes)) else "" for pattern in (_NAME, _KIND))
        if name in found:  # a collective of several arrays
            found[name] = dataclasses.replace(found[name], bytes=found[name].bytes + send.bytes)
        else:
            unknown = Operation(_KINDS.get(kind, kind.lower().replace("_", "-")), name, None, 0)
            found[name] = dataclasses.replace(unsplit.get(name, unknown), bytes=send.bytes, runs=send.runs)
    return found
