"""How often the loops of a compiled program run: what the compiler says, else what the program itself says.

A TPU's text has no trip counts. There the loop's condition compares an integer of its state with a limit, the state's
first value is a constant, and the body adds a constant to it. The three may come through copies, fusions, and the
state of the loops around it, so the integers of a program are followed from its entry to the loop.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from perfsuite.measure.hlo.hlo_module import Instruction, Module

_FORWARD = frozenset(("bitcast", "bitcast-convert", "convert", "copy", "copy-done", "opt-barrier", "reshape"))


@dataclasses.dataclass(frozen=True, slots=True)
class Linear:
    """An integer: `offset`, or that much more than the element `element` of a loop's state has at its start."""

    element: int | None
    offset: int


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Whether `left` is less than `right`, and so on: `direction` is "LT", "LE", "GT", "GE", "NE" or "EQ"."""

    left: Linear
    direction: str
    right: Linear


Value: TypeAlias = "Linear | Comparison | tuple[Value, ...] | None"
"""A value as far as it is known: None is any. A tuple of the program is a tuple."""

Place = tuple[str, str]
"""The names of a computation and of an instruction in it."""


def trip_counts(module: Module) -> dict[Place, int | None]:
    """How often each loop's body runs each time that the loop is reached; None where the text does not say."""
    return _TripCounts(module).counts


class _TripCounts:
    def __init__(self, module: Module):
        self.module = module
        self.counts: dict[Place, int | None] = {}
        self.constant: dict[str, list[bool]] = {}
        """By the body of a loop, which elements of its state never change."""
        self.enter(module.entry, ())

    def enter(self, name: str, arguments: Sequence[Value]) -> None:
        """Find the counts in a computation and in all that it calls, with what is known of its arguments."""
        values = self.values(name, arguments)
        for op in self.module.computations[name].instructions:
            if _is_loop(op):
                state = values[op.operands[0]]
                count = self.count(op, state) if op.trip_count is None else op.trip_count
                place = name, op.name
                # Reached from two places with different counts, it has none that is always true.
                self.counts[place] = count if self.counts.get(place, count) == count else None
                for called in op.calls:
                    self.enter(called, (self.unchanged(op, state),))
            elif op.opcode == "conditional":
                for called, operand in zip(op.calls, op.operands[1:], strict=False):
                    self.enter(called, (values[operand],))
            elif op.opcode in ("call", "async-start"):
                for called in op.calls:
                    self.enter(called, [values[operand] for operand in op.operands])

    def count(self, loop: Instruction, state: Value) -> int | None:
        condition, body = loop.calls  # XLA prints `condition=` before `body=`
        # What never changes may be the step or the limit.
        start = tuple(
            Linear(number, 0) if value is None else value for number, value in enumerate(self.unchanged(loop, state))
        )
        return _iterations(self.result(condition, (start,)), state, self.result(body, (start,)))

    def unchanged(self, loop: Instruction, state: Value) -> tuple[Value, ...]:
        """The elements of the state, those that an iteration may change as None."""
        body = loop.calls[-1]
        if body not in self.constant:
            symbols = tuple(Linear(number, 0) for number in range(len(loop.shapes)))
            after = self.result(body, (symbols,))
            self.constant[body] = [_element(after, number) == symbol for number, symbol in enumerate(symbols)]
        return tuple(_element(state, i) if constant else None for i, constant in enumerate(self.constant[body]))

    def result(self, name: str, arguments: Sequence[Value]) -> Value:
        return self.values(name, arguments)[self.module.computations[name].root.name]

    def values(self, name: str, arguments: Sequence[Value]) -> Mapping[str, Value]:
        """The value of each instruction of a computation."""
        values: dict[str, Value] = {}
        for op in self.module.computations[name].instructions:
            values[op.name] = self.value(op, [values.get(operand) for operand in op.operands], arguments)
        return values

    def value(self, op: Instruction, operands: Sequence[Value], arguments: Sequence[Value]) -> Value:
        if op.opcode == "parameter":
            return arguments[op.parameter] if op.parameter is not None and op.parameter < len(arguments) else None
        if op.opcode == "constant":
            return None if op.literal is None else Linear(None, op.literal)
        if op.opcode == "tuple":
            return tuple(operands)
        if op.opcode == "get-tuple-element":
            return _element(operands[0], int(op.attributes["index"])) if "index" in op.attributes else None
        if not operands:
            return None
        if op.opcode == "copy-start":
            return operands[0], operands[0], None
        if op.opcode in _FORWARD:
            return operands[0]
        if _is_loop(op):
            return self.unchanged(op, operands[0])
        if op.opcode in ("fusion", "call") and op.calls and any(value is not None for value in operands):
            return self.result(op.calls[0], operands)
        return _arithmetic(op, operands)


def _is_loop(op: Instruction) -> bool:
    return op.opcode == "while" and len(op.calls) == 2 and len(op.operands) == 1


def _arithmetic(op: Instruction, operands: Sequence[Value]) -> Value:
    if len(operands) != 2:
        return None
    left, right = operands
    if not isinstance(left, Linear) or not isinstance(right, Linear):
        return None
    if op.opcode == "compare":
        return Comparison(left, op.attributes["direction"], right)
    if op.opcode == "add" and None in (left.element, right.element):
        return Linear(right.element if left.element is None else left.element, left.offset + right.offset)
    if op.opcode == "subtract" and right.element is None:
        return Linear(left.element, left.offset - right.offset)
    if op.opcode == "multiply" and left.element is right.element is None:
        return Linear(None, left.offset * right.offset)
    return None


def _element(value: Value, number: int) -> Value:
    return value[number] if isinstance(value, tuple) and number < len(value) else None


def _iterations(condition: Value, state: Value, step: Value) -> int | None:
    """How often the condition is true, of a state that changes by the same in each iteration."""
    if not isinstance(condition, Comparison):
        return None
    sides = [_course(side, state, step) for side in (condition.left, condition.right)]
    if sides[0] is None or sides[1] is None:
        return None
    # The condition is about `start + slope * iteration`, the left side less the right one.
    start, slope = (left - right for left, right in zip(*sides, strict=True))
    if condition.direction in ("GT", "GE"):
        start, slope = -start, -slope
    if condition.direction in ("LE", "GE"):
        start -= 1
    if condition.direction in ("LT", "GT", "LE", "GE"):
        if start >= 0:
            return 0
        return -(start // slope) if slope > 0 else None
    if condition.direction == "NE":
        if start == 0:
            return 0
        return -start // slope if slope and start % slope == 0 and -start // slope > 0 else None
    return None


def _course(value: Linear, state: Value, step: Value) -> tuple[int, int] | None:
    """The integer before the first iteration, and what each iteration adds to it."""
    if value.element is None:
        return value.offset, 0
    first, after = _element(state, value.element), _element(step, value.element)
    if not isinstance(first, Linear) or not isinstance(after, Linear):
        return None
    if first.element is not None or after.element != value.element:
        return None
    return first.offset + value.offset, after.offset
