"""How often the loops of a compiled program run, and its computations.

The CPU's compiler says it of its loops. A TPU's does not. There the loop's condition compares an integer of its state
with a limit, the state's first value is a constant, and the body adds a constant to it. The three may come through
copies, fusions, and the state of the loops around it, so the integers of a program are followed from its entry to the
loop. Where the condition asks for something else too (`i < n and not done`), the loop runs so often at most.
"""

import dataclasses
import functools
import graphlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from perfsuite.measure.hlo.module import HloModule, Instruction

_LARGEST_INTEGER = 2**31 - 1

_FORWARD = frozenset(("bitcast", "bitcast-convert", "convert", "copy", "copy-done", "opt-barrier", "reshape"))


@dataclasses.dataclass(frozen=True, slots=True)
class _Linear:
    """An integer: `offset`, or that much more than `factor` times what a loop's state has at its start as `element`."""

    element: int | None
    offset: int
    factor: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Comparison:
    """Whether `left` is less than `right`, and so on: `direction` is "LT", "LE", "GT", "GE", "NE" or "EQ"."""

    left: _Linear
    direction: str
    right: _Linear


@dataclasses.dataclass(frozen=True, slots=True)
class _Condition:
    """Whether all of the comparisons are true and, if `more`, something that is not known."""

    comparisons: tuple[_Comparison, ...]
    more: bool = False


_Value: TypeAlias = "_Linear | _Condition | tuple[_Value, ...] | None"
"""A value as far as it is known: None is any. A tuple of the program is a tuple."""

Place = tuple[str, str]
"""The names of a computation and of an instruction in it."""


@dataclasses.dataclass(frozen=True)
class TripCounts:
    """How often each loop's body runs each time that the loop is reached; None where it is not known.

    The loops of `at_most` run so often or less.
    """

    counts: dict[Place, int | None] = dataclasses.field(default_factory=dict)
    at_most: set[Place] = dataclasses.field(default_factory=set)


def trip_counts(module: HloModule) -> TripCounts:
    """The trip counts of all loops that the program's entry reaches."""
    return _Counter(module).counted


class _Counter:
    def __init__(self, module: HloModule):
        self.module = module
        self.counted = TripCounts()
        self.constant: dict[str, list[bool]] = {}
        """By the body of a loop, which elements of its state never change."""
        self.enter(module.entry, ())

    def enter(self, name: str, arguments: Sequence[_Value]) -> None:
        """Find the counts in a computation and in all that it calls, with what is known of its arguments."""
        values = self.values(name, arguments)
        for op in self.module.computations[name].instructions:
            if _is_loop(op):
                state = values[op.operands[0]]
                count, exact = self.count(op, state) if op.trip_count is None else (op.trip_count, True)
                place, counts = (name, op.name), self.counted.counts
                # Reached from two places with different counts, it has none that is always true.
                counts[place] = count if counts.get(place, count) == count else None
                if counts[place] is None:
                    self.counted.at_most.discard(place)
                elif not exact:
                    self.counted.at_most.add(place)
                for called in op.calls:
                    self.enter(called, (self.unchanged(op, state),))
            elif op.opcode == "conditional":
                for called, operand in zip(op.calls, op.operands[1:], strict=False):
                    self.enter(called, (values[operand],))
            elif op.opcode in ("call", "async-start"):
                for called in op.calls:
                    self.enter(called, [values[operand] for operand in op.operands])

    def count(self, loop: Instruction, state: _Value) -> tuple[int | None, bool]:
        """How often a loop runs, and whether it always does."""
        condition, body = loop.calls
        # What never changes may be the step or the limit.
        start = tuple(
            _Linear(number, 0) if value is None else value for number, value in enumerate(self.unchanged(loop, state))
        )
        going, step = self.result(condition, (start,)), self.result(body, (start,))
        if not isinstance(going, _Condition):
            return None, True
        counts = [_iterations(comparison, state, step) for comparison in going.comparisons]
        certain = [count for count in counts if count is not None]
        least = min(certain, default=None)
        if least in (None, 0) or (not going.more and len(certain) == len(counts)):
            return least, True
        # A limit of the largest integer is none.
        return (least, False) if least < _LARGEST_INTEGER else (None, True)

    def unchanged(self, loop: Instruction, state: _Value) -> tuple[_Value, ...]:
        """The elements of the state, those that an iteration may change as None."""
        body = loop.calls[1]
        if body not in self.constant:
            symbols = tuple(_Linear(number, 0) for number in range(len(loop.shapes)))
            after = self.result(body, (symbols,))
            self.constant[body] = [_element(after, number) == symbol for number, symbol in enumerate(symbols)]
        return tuple(_element(state, i) if constant else None for i, constant in enumerate(self.constant[body]))

    def result(self, name: str, arguments: Sequence[_Value]) -> _Value:
        return self.values(name, arguments)[self.module.computations[name].root.name]

    def values(self, name: str, arguments: Sequence[_Value]) -> Mapping[str, _Value]:
        """The value of each instruction of a computation."""
        values: dict[str, _Value] = {}
        for op in self.module.computations[name].instructions:
            values[op.name] = self.value(op, [values.get(operand) for operand in op.operands], arguments)
        return values

    def value(self, op: Instruction, operands: Sequence[_Value], arguments: Sequence[_Value]) -> _Value:
        if op.opcode == "parameter":
            return arguments[op.parameter] if op.parameter is not None and op.parameter < len(arguments) else None
        if op.opcode == "constant":
            return None if op.literal is None else _Linear(None, op.literal)
        if op.opcode == "tuple":
            return tuple(operands)
        if op.opcode == "get-tuple-element":
            return _element(operands[0], op.index)
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


def _arithmetic(op: Instruction, operands: Sequence[_Value]) -> _Value:
    if len(operands) != 2:
        return None
    left, right = operands
    if not isinstance(left, _Linear) or not isinstance(right, _Linear):
        return None
    if op.opcode == "compare":
        return _Condition((_Comparison(left, op.direction, right),))
    if left.element is not None and right.element is not None:
        return None
    if op.opcode == "multiply":
        constant, other = (left, right) if left.element is None else (right, left)
        return _Linear(other.element, constant.offset * other.offset, constant.offset * other.factor)
    if op.opcode == "subtract":
        right = _Linear(right.element, -right.offset, -right.factor)
    elif op.opcode != "add":
        return None
    return dataclasses.replace(right if left.element is None else left, offset=left.offset + right.offset)


def _both(operands: Sequence[_Value]) -> _Condition | None:
    conditions = [operand for operand in operands if isinstance(operand, _Condition)]
    comparisons = tuple(comparison for operand in conditions for comparison in operand.comparisons)
    more = len(conditions) < len(operands) or any(operand.more for operand in conditions)
    return _Condition(comparisons, more) if conditions else None


def _element(value: _Value, number: int) -> _Value:
    return value[number] if isinstance(value, tuple) and number < len(value) else None


def _iterations(condition: _Comparison, state: _Value, step: _Value) -> int | None:
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


def _course(value: _Linear, state: _Value, step: _Value) -> tuple[int, int] | None:
    """The integer before the first iteration, and what each iteration adds to it."""
    if value.element is None:
        return value.offset, 0
    first, after = _element(state, value.element), _element(step, value.element)
    if not isinstance(first, _Linear) or not isinstance(after, _Linear):
        return None
    if first.element is not None or (after.element, after.factor) != (value.element, 1):
        return None
    return value.factor * first.offset + value.offset, value.factor * after.offset


def run_counts(module: HloModule, counts: Mapping[Place, int | None]) -> dict[str, int]:
    """How often each computation runs, all branches of a conditional alike; a loop of unknown count iterates once."""
    calls = {
        name: {called for op in computation.instructions for called in op.calls}
        for name, computation in module.computations.items()
    }
    times = dict.fromkeys(module.computations, 0) | {module.entry: 1}
    # Callers first.
    for name in reversed([*graphlib.TopologicalSorter(calls).static_order()]):
        for op in module.computations[name].instructions:
            count = counts.get((name, op.name)) if op.opcode == "while" else None
            for called in op.calls:
                times[called] += times[name] * (1 if count is None else count)
    return times


def total_of(module: HloModule, counts: Mapping[Place, int | None], amounts: Mapping[Place, float]) -> float:
    """The sum of amounts over one run: of a loop for each iteration, of a conditional that of its largest branch."""

    @functools.cache
    def of(name: str) -> float:
        total = 0.0
        for op in module.computations[name].instructions:
            place, called = (name, op.name), [of(each) for each in op.calls]
            count = counts.get(place) if op.opcode == "while" else None
            inside = max(called, default=0.0) if op.opcode == "conditional" else sum(called)
            total += amounts.get(place, 0.0) + inside * (1 if count is None else count)
        return total

    return of(module.entry)
