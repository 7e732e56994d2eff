"""The arrays of a compiled program that are alive when its memory is highest.

An array lives from the instruction that makes it to the last one that uses it, in the order of the schedule. Arguments
and outputs live all the time. A name for memory, such as an element of a tuple, takes none. Nor does a result in the
place of an operand: the state of a loop, an update in place, a kernel that goes element by element over an array that
nothing uses later, and an output in the place of a donated argument.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from perfsuite.measure.hlo.costs import CONTROL, ELEMENTWISE, TRANSCENDENTAL, UPDATES
from perfsuite.measure.hlo.module import HloModule, Instruction, Shape

_FORWARDS: Final = {"add-dependency", "async-update", "bitcast", "domain", "opt-barrier", "while"}
"""Their results are their operands."""
_POINTWISE: Final = ELEMENTWISE | TRANSCENDENTAL | {"all-reduce", "bitcast", "copy", "sort"}
"""They may write into an operand that nothing uses later."""


@dataclasses.dataclass(eq=False, slots=True)
class Buffer:
    """The memory of an array, and the instruction that makes it, or what is written into it."""

    shape: Shape
    op: Instruction

    @property
    def bytes(self) -> int:
        """Of the device's memory: 0 for what is in another one, such as that on a TPU's chip."""
        return 0 if self.shape.space else self.shape.allocated_bytes


Buffers = tuple[Buffer, ...]


class Lives(NamedTuple):
    """The buffers of a computation: `highest` are those alive where they take most, which is `bytes`.

    Only in the program's entry do arguments and result count.
    """

    arguments: Buffers
    result: Buffers
    highest: Buffers
    bytes: int


class Liveness:
    """The lives of a module's computations, by name."""

    def __init__(self, module: HloModule):
        self.module = module
        self.lives = functools.cache(self._lives)
        self.pointwise = functools.cache(self._pointwise)

    def _lives(self, name: str) -> Lives:
        computation = self.module.computations[name]
        instructions, last = computation.instructions, len(computation.instructions)
        values: dict[str, Buffers] = {}
        start: dict[Buffer, int] = {}
        end: dict[Buffer, int] = {}
        for position, op in enumerate(instructions):
            operands = [values[operand] for operand in op.operands]
            values[op.name] = self.results(op, operands)
            for buffer in itertools.chain(*operands, values[op.name]):
                start.setdefault(buffer, position)
                end[buffer] = position
        parameters = sorted((op.parameter, op.name) for op in instructions if op.parameter is not None)
        arguments = tuple(itertools.chain.from_iterable(values[parameter] for _, parameter in parameters))
        result = values[computation.root.name]
        ends = {*arguments, *result}
        outside, outputs = ends, set[Buffer]()
        end |= dict.fromkeys(ends, last)
        if name == self.module.entry:
            start |= dict.fromkeys(ends, 0)
            reused = {result[number] for number in self.module.reused}
            outside, outputs = reused - {*arguments}, {*result} - reused
        outside |= {buffer for op in instructions if op.opcode == "constant" for buffer in values[op.name]}
        for position, buffer, heir in self.heirs(instructions, values, end):
            if heir in outputs:  # it is in the output's place from its start
                outputs.add(buffer)
                outside.add(buffer)
            elif heir not in outside and start[heir] == position:
                end[buffer] = position - 1
        counted = [buffer for buffer in start if buffer.bytes and buffer not in outside]
        changes = [0] * (last + 2)
        for buffer in counted:
            changes[start[buffer]] += buffer.bytes
            changes[end[buffer] + 1] -= buffer.bytes
        heights, inside = [*itertools.accumulate(changes)], dict[int, Lives]()
        for position, op in enumerate(instructions):
            if op.opcode in CONTROL:
                inside[position] = max(map(self.lives, op.calls), key=lambda each: each.bytes)
                heights[position] += inside[position].bytes
        peak, height = max(enumerate(heights), key=lambda each: each[1])
        highest = [buffer for buffer in counted if start[buffer] <= peak <= end[buffer]]
        return Lives(arguments, result, (*highest, *(inside[peak].highest if peak in inside else ())), height)

    def results(self, op: Instruction, operands: Sequence[Buffers]) -> Buffers:
        """The buffers of an instruction's results: an operand's where it makes none."""
        flat = tuple(itertools.chain(*operands))
        if op.opcode == "tuple":
            return flat
        if op.opcode == "get-tuple-element" and len(flat) >= op.index + len(op.shapes):
            return flat[op.index : op.index + len(op.shapes)]
        if op.opcode == "while":
            for buffer, result in zip(flat, self.lives(op.calls[1]).result, strict=False):
                buffer.op = next((each for each in (result.op, buffer.op) if each.op_name), op)
        if op.opcode in _FORWARDS and operands:
            return operands[0]
        if op.opcode.endswith("-done"):  # what was started has its operands first, but a copy
            matches = tuple(buffer for buffer in flat if buffer.shape in op.shapes)
            return matches[:1] if op.opcode == "copy-done" else matches[-len(op.shapes) :]
        results = {number: Buffer(shape, op) for number, shape in enumerate(op.shapes)}
        results |= self.in_place(op, operands, [*results.values()])
        for buffer in results.values():
            if not buffer.op.op_name:  # the compiler's own copy, of what the code makes
                buffer.op = max(flat, key=lambda each: each.shape.bytes, default=buffer).op
        return tuple(results.values())

    def in_place(
        self, op: Instruction, operands: Sequence[Buffers], results: Sequence[Buffer]
    ) -> Iterator[tuple[int, Buffer]]:
        """The numbers of the results that are in the place of an operand, each with that."""
        flat = [*itertools.chain(*operands)]
        if op.opcode in UPDATES:
            for number in range(len(results)):
                flat[number].op = op if op.opcode == "scatter" else flat[1].op
                yield number, flat[number]
        elif op.opcode in ("call", "conditional", "fusion"):
            each = [[operand] for operand in operands[1:]] if op.opcode == "conditional" else [operands]
            yield from _called(results, [*zip(map(self.lives, op.calls), each, strict=False)])
        elif op.opcode.endswith("-start"):
            if op.opcode == "copy-start":  # it has the copy before the original
                flat.insert(0, results[0])
            pairs = enumerate(zip(results, flat, strict=False))
            yield from ((number, operand) for number, (result, operand) in pairs if result.shape == operand.shape)

    def heirs(
        self, instructions: Sequence[Instruction], values: Mapping[str, Buffers], end: Mapping[Buffer, int]
    ) -> Iterator[tuple[int, Buffer, Buffer]]:
        """The buffers whose memory a result takes over, and at which position, the last first."""
        for position, op in reversed([*enumerate(instructions)]):
            numbers: Sequence[int] = range(len(op.operands)) if op.opcode in _POINTWISE else ()
            if op.opcode == "fusion":
                numbers = self.pointwise(op.calls[0])
            operands = itertools.chain.from_iterable(values[op.operands[number]] for number in numbers)
            dying = [buffer for buffer in operands if end[buffer] == position]
            for heir in values[op.name]:
                if buffer := next((each for each in dying if each.bytes == heir.bytes), None):
                    dying.remove(buffer)
                    yield position, buffer, heir

    def _pointwise(self, name: str) -> Sequence[int]:
        """The parameters of a kernel that it goes over element by element."""
        reaching: dict[str, set[int]] = {}
        otherwise: set[int] = set()
        for op in self.module.computations[name].instructions:
            reaching[op.name] = {number for operand in op.operands for number in reaching[operand]}
            if op.parameter is not None:
                reaching[op.name] = {op.parameter}
            elif op.opcode not in (*_POINTWISE, "tuple"):
                otherwise |= reaching[op.name]
        return sorted(set[int]().union(*reaching.values()) - otherwise)


def _called(
    results: Sequence[Buffer], calls: Sequence[tuple[Lives, Sequence[Buffers]]]
) -> Iterator[tuple[int, Buffer]]:
    """The numbers of the results that all called computations leave in the place of one operand, each with that."""
    for number, result in enumerate(results):
        places = set()
        for called, operands in calls:
            inner, pairs = called.result[number], zip(called.arguments, itertools.chain(*operands), strict=False)
            places.add(place := dict(pairs).get(inner, result))
            if inner.op.parameter is None:
                place.op = inner.op
            elif len(inner.op.shapes) == 1:  # a copy is made by what makes the original
                place.op = operands[inner.op.parameter][0].op
        if len(places) == 1:
            yield number, places.pop()
