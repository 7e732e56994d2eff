"""How often the loops of a compiled program run: what the compiler says, else what the program itself says.

A TPU's text has no trip counts. There the loop's condition compares an integer of its state with a limit, the state's
first value is a constant, and the body adds a constant to it. The three may come through copies, fusions, and the
state of the loops around it, so the integers of a program are followed from its entry to the loop. Where the condition
asks for something else too (`i < n and not done`), the loop runs so often at most.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from perfsuite.measure.hlo.hlo_module import Instruction, Module

_LARGEST_INTEGER = 2**31 - 1

_FORWARD = frozenset(("bitcast", "bitcast-convert", "convert", "copy", "copy-done", "opt-barrier", "reshape"))


@dataclasses.dataclass(frozen=True, slots=True)
class Linear:
    """An integer: `offset`, or that much more than `factor` times what a loop's state has at its start as `element`."""

    element: int | None
    offset: int
    factor: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Whether `left` is less than `right`, and so on: `direction` is "LT", "LE", "GT", "GE", "NE" or "EQ"."""

    left: Linear
    direction: str
    right: Linear


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """Whether all of the comparisons are true and, if `more`, something that is not known."""

    comparisons: tuple[Comparison, ...]
    more: bool = False


Value: TypeAlias = "Linear | Condition | tuple[Value, ...] | None"
"""A value as far as it is known: None is any. A tuple of the program is a tuple."""

Place = tuple[str, str]
"""The names of a computation and of an instruction in it."""


@dataclasses.dataclass(frozen=True)
class TripCounts:
    """How often each loop's body runs each time that the loop is reached; None where the text does not say.

    The loops of `at_most` run so often or less.
    """

    counts: dict[Place, int | None] = dataclasses.field(default_factory=dict)
    at_most: set[Place] = dataclasses.field(default_factory=set)


def trip_counts(module: Module) -> TripCounts:
    """The trip counts of all loops that the program's entry reaches."""
    return _Reader(module).found


class _Reader:
    def __init__(self, module: Module):
        self.module = module
        self.found = TripCounts()
        self.constant: dict[str, list[bool]] = {}
        """By the body of a loop, which elements of its state never change."""
        self.enter(module.entry, ())

    def enter(self, name: str, arguments: Sequence[Value]) -> None:
        """Find the counts in a computation and in all that it calls, with what is known of its arguments."""
        values = self.values(name, arguments)
        for op in self.module.computations[name].instructions:
            if _is_loop(op):
                state = values[op.operands[0]]
                count, exact = self.count(op, state) if op.trip_count is None else (op.trip_count, True)
                place, counts = (name, op.name), self.found.counts
                # Reached from two places with different counts, it has none that is always true.
                counts[place] = count if counts.get(place, count) == count else None
                if counts[place] is None:
                    self.found.at_most.discard(place)
                elif not exact:
                    self.found.at_most.add(place)
                for called in op.calls:
                    self.enter(called, (self.unchanged(op, state),))
            elif op.opcode == "conditional":
                for called, operand in zip(op.calls, op.operands[1:], strict=False):
                    self.enter(called, (values[operand],))
            elif op.opcode in ("call", "async-start"):
                for called in op.calls:
                    self.enter(called, [values[operand] for operand in op.operands])

    def count(self, loop: Instruction, state: Value) -> tuple[int | None, bool]:
        """How often a loop runs, and whether it always does."""
        condition, body = loop.calls  # XLA prints `condition=` before `body=`
        # What never changes may be the step or the limit.
        start = tuple(
            Linear(number, 0) if value is None else value for number, value in enumerate(self.unchanged(loop, state))
        )
        asked, step = self.result(condition, (start,)), self.result(body, (start,))
        if not isinstance(asked, Condition):
            return None, True
        counts = [_iterations(comparison, state, step) for comparison in asked.comparisons]
        known = [count for count in counts if count is not None]
        least = min(known, default=None)
        if least in (None, 0) or (not asked.more and len(known) == len(counts)):
            return least, True
        # A limit of the largest integer is none.
        return (least, False) if least < _LARGEST_INTEGER else (None, True)

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
        if op.opcode == "and":
            return _both(operands)
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
        return Condition((Comparison(left, op.attributes["direction"], right),))
    if left.element is not None and right.element is not None:
        return None
    if op.opcode == "multiply":
        known, other = (left, right) if left.element is None else (right, left)
        return Linear(other.element, known.offset * other.offset, known.offset * other.factor)
    if op.opcode == "subtract":
        right = Linear(right.element, -right.offset, -right.factor)
    elif op.opcode != "add":
        return None
    return dataclasses.replace(right if left.element is None else left, offset=left.offset + right.offset)


def _both(operands: Sequence[Value]) -> Condition | None:
    known = [operand for operand in operands if isinstance(operand, Condition)]
    comparisons = tuple(comparison for operand in known for comparison in operand.comparisons)
    more = len(known) < len(operands) or any(operand.more for operand in known)
    return Condition(comparisons, more) if known else None


def _element(value: Value, number: int) -> Value:
    return value[number] if isinstance(value, tuple) and number < len(value) else None


def _iterations(condition: Comparison, state: Value, step: Value) -> int | None:
    """How often the comparison is true until it is not, of a state that changes by the same in each iteration."""
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
    if first.element is not None or (after.element, after.factor) != (value.element, 1):
        return None
    return value.factor * first.offset + value.offset, value.factor * after.offset
