"""The arrays of a compiled program that are alive when its memory is highest.

An array lives from the instruction that makes it to the last one that uses it, in the order of the schedule. Arguments
and outputs live all the time. What the body of a loop makes lives inside the loop; the loop's state stays in one place.
A name for memory, such as an element of a tuple, takes none. Nor does a result in the place of an operand: that of an
update in place, of a kernel that goes element by element over an array that nothing uses later, and an output in the
place of a donated argument.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from perfsuite.measure.hlo.costs import ELEMENTWISE, TRANSCENDENTAL
from perfsuite.measure.hlo.module import HloModule, Instruction, Shape

_FORWARDS: Final = {"add-dependency", "async-update", "bitcast", "domain", "opt-barrier", "while"}
"""Their results are their operands."""
_UPDATES: Final = ("dynamic-update-slice", "scatter")
"""They write into their first operands."""
_POINTWISE: Final = ELEMENTWISE | TRANSCENDENTAL | {"all-reduce", "bitcast", "copy", "sort", "tuple"}
"""They may write into an operand that nothing uses later."""
_CONTROL: Final = ("while", "conditional", "call", "async-start")
"""They run what they call, instruction by instruction."""


@dataclasses.dataclass(eq=False, slots=True)
class Buffer:
    """The memory of an array, and the instruction that makes it, or what is written into it, in a computation."""

    shape: Shape
    op: Instruction
    within: str

    @property
    def bytes(self) -> int:
        """Of the device's memory: 0 for what is in another one, such as that on a TPU's chip."""
        return 0 if self.shape.space else self.shape.allocated_bytes

    def made_like(self, other: "Buffer") -> None:
        """Take over what makes another buffer."""
        self.op, self.within = other.op, other.within


Buffers = tuple[Buffer, ...]
"""Those of a tuple in its order."""


@dataclasses.dataclass(frozen=True)
class Lives:
    """The buffers of a computation.

    `highest` are those alive where they take most: of the program's entry all, else without arguments and result.
    """

    arguments: Buffers
    result: Buffers
    highest: Buffers

    @property
    def bytes(self) -> int:
        return sum(buffer.bytes for buffer in self.highest)


class Liveness:
    """`lives(module.entry)` are those of the program."""

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
            values[op.name] = self.results(op, operands, name)
            for buffer in itertools.chain(*operands, values[op.name]):
                start.setdefault(buffer, position)
                end[buffer] = position
        parameters = sorted((op.parameter, op.name) for op in instructions if op.parameter is not None)
        arguments = tuple(itertools.chain.from_iterable(values[parameter] for _, parameter in parameters))
        result = values[computation.root.name]
        constants = {buffer for op in instructions if op.opcode == "constant" for buffer in values[op.name]}
        outside, outputs = constants | {*arguments, *result}, set[Buffer]()
        end |= dict.fromkeys((*arguments, *result), last)
        if name == self.module.entry:
            start |= dict.fromkeys((*arguments, *result), 0)
            reused = {result[number] for number in self.module.reused}
            outside, outputs = constants | (reused - {*arguments}), {*result} - reused
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
            if op.opcode in _CONTROL:
                inside[position] = max(map(self.lives, op.calls), key=lambda each: each.bytes)
                heights[position] += inside[position].bytes
        peak = heights.index(max(heights))
        highest = [buffer for buffer in counted if start[buffer] <= peak <= end[buffer]]
        return Lives(arguments, result, (*highest, *(inside[peak].highest if peak in inside else ())))

    def results(self, op: Instruction, operands: Sequence[Buffers], within: str) -> Buffers:
        """The buffers of an instruction's results: an operand's where it makes none."""
        flat = tuple(itertools.chain(*operands))
        if op.opcode == "tuple":
            return flat
        if op.opcode == "get-tuple-element" and len(flat) >= op.index + len(op.shapes):
            return flat[op.index : op.index + len(op.shapes)]
        if op.opcode == "while":
            for buffer, result in zip(flat, self.lives(op.calls[1]).result, strict=False):
                if result.op.op_name and result.op.opcode != "parameter":
                    buffer.made_like(result)
        if op.opcode in _FORWARDS and operands:
            return operands[0]
        if op.opcode.endswith("-done"):  # what was started has its operands first, but a copy
            matches = tuple(buffer for buffer in flat if buffer.shape in op.shapes)
            return matches[:1] if op.opcode == "copy-done" else matches[-len(op.shapes) :]
        results = {number: Buffer(shape, op, within) for number, shape in enumerate(op.shapes)}
        results |= self.in_place(op, operands, [*results.values()])
        for buffer in results.values():
            if not buffer.op.op_name:  # the compiler's own copy, of what the code makes
                buffer.made_like(max(flat, key=lambda each: each.shape.bytes, default=buffer))
        return tuple(results.values())

    def in_place(
        self, op: Instruction, operands: Sequence[Buffers], results: Sequence[Buffer]
    ) -> Iterator[tuple[int, Buffer]]:
        """The numbers of the results that are in the place of an operand, each with that."""
        flat = [*itertools.chain(*operands)]
        if op.opcode in _UPDATES:
            for number, result in enumerate(results):
                flat[number].made_like(result if op.opcode == "scatter" else flat[1])
                yield number, flat[number]
        elif op.opcode in ("call", "fusion"):
            yield from _called(results, [(self.lives(op.calls[0]), flat)])
        elif op.opcode == "conditional":
            yield from _called(results, [*zip(map(self.lives, op.calls), operands[1:], strict=False)])
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
            elif op.opcode not in _POINTWISE:
                otherwise |= reaching[op.name]
        return sorted(set[int]().union(*reaching.values()) - otherwise)


def _called(results: Sequence[Buffer], calls: Sequence[tuple[Lives, Sequence[Buffer]]]) -> Iterator[tuple[int, Buffer]]:
    """The numbers of the results that all called computations leave in the place of one operand, each with that."""
    for number, result in enumerate(results):
        places = set()
        for called, operands in calls:
            inner, outer = called.result[number], dict(zip(called.arguments, operands, strict=False))
            originals = {argument.op.name: operand for argument, operand in outer.items()}
            place = outer.get(inner, result)
            if inner.op.opcode != "parameter":
                place.made_like(inner)
            elif inner.op.name in originals and (place is not result or not result.op.op_name):
                place.made_like(originals[inner.op.name])
            places.add(place)
        if len(places) == 1:
            yield number, places.pop()
