"""Compiled HLO text, as XLA prints it for a CPU, a GPU or a TPU, read to objects.

The text is one header line (which may run on over tables of debug attributes), up to four tables that metadata refers
to, and the computations, one instruction a line. A TPU's text is tens of MB for a large training step, most of it
`backend_config`, so what is not asked for is stepped over, and what repeats is read once.
"""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from perfsuite.measure.hlo.elements import elements_of, named_elements
from perfsuite.measure.hlo.hlo_module import Computation, Frame, Instruction, Module, Shape, Stack, bits_of
from perfsuite.measure.hlo.scanner import ATTRIBUTE, Scanner, unescaped
from perfsuite.measure.hlo.stacks import StackTables

_NAME: Final = r'[^\s%"(),/=\[\]{}]++'
_ARRAY_TEXT: Final = r"[a-z]\w*+\[[^][]*+\](?:\{[^{}]*+\})?"
_NUMBER: Final = re.compile("[0-9]{1,9}")
_HEADER: Final = re.compile(rf"\s*HloModule ({_NAME})")
_TABLE: Final = re.compile(r"\s*(FileNames|FunctionNames|FileLocations|StackFrames)\n")
_ROW: Final = re.compile(r'([0-9]{1,9}) (?:"((?:[^"\\\n]|\\.)*+)"|\{([^{}\n]*+)\})\n')
# `%f (x: f32[2]) -> f32[2] {`, or `f {` in a text without signatures.
_COMPUTATION: Final = re.compile(rf"\s*(ENTRY )?%?({_NAME}) (?:\(.*\) -> .* )?\{{\n")
_INSTRUCTION: Final = re.compile(rf" *+(ROOT )?%?({_NAME}) = ")
# Most lines: an array, and operands without their types. Others are read bracket by bracket.
_COMMON: Final = re.compile(rf" *+(ROOT )?%?({_NAME}) = ({_ARRAY_TEXT}) ([a-z][a-z0-9-]*+)\(([^\"()\[\]{{}}\n]*+)\)")
_OPCODE: Final = re.compile(r" ([a-z][a-z0-9-]*+)\(")
_ARRAY: Final = re.compile(_ARRAY_TEXT, re.ASCII)
_LEAF: Final = re.compile(r"([a-z]\w*+)\[([^][]*+)\](\{[^{}]*+\})?", re.ASCII)
_SIZE: Final = re.compile(r"(?:<=)?([0-9]{1,18})")
_COMMENT: Final = re.compile(r"/\*.*?\*/")
_INNERMOST_BRACKETS: Final = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
_PERCENT_NAME: Final = re.compile(rf"%({_NAME})")
_METADATA: Final = re.compile(r'\s*+(\w++)=("(?:[^"\\]++|\\.)*+"|\{[^{}]*+\}|[^\s"{}]++)', re.DOTALL)
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_TRIPS: Final = re.compile(r'"known_trip_count":\s*+\{"n":\s*+"?([0-9]{1,18})')
_ESTIMATE: Final = re.compile(r'"cost_estimate":\s*+\{([^{}]*+)\}')
_COST: Final = re.compile(r'"(flops|transcendentals|bytes_accessed)":\s*+"?([0-9]{1,30})')
_CYCLES: Final = re.compile(r'"estimated_cycles":\s*+"?(-?[0-9]{1,18})')
_SCOPED: Final = {
    "vmem_bytes": re.compile(r'"used_scoped_memory_configs":\s*+\[([^][]*+)\]'),
    "vmem_limit_bytes": re.compile(r'"scoped_memory_configs":\s*+\[([^][]*+)\]'),
}
_IN_VMEM: Final = re.compile(r'"memory_space":\s*+"1"[^{}]*?"size":\s*+"([0-9]{1,18})"')
_KERNEL: Final = re.compile(r'"fusion_backend_config":\s*+\{"kind":\s*+"([^"]*+)"')
_DIMENSIONS: Final = re.compile(r'"lhs_contracting_dimensions":\s*+\[([^][]*+)\]')
_PRECISION: Final = re.compile(r'"operand_precision":\s*+\[([^][]*+)\]')
_INDEX: Final = r"(?:[0-9]{1,9}+(?![0-9])[, ]*+)*+"
_ALIAS: Final = re.compile(rf"\{{{_INDEX}\}}: \(([0-9]{{1,9}}), \{{({_INDEX})\}}(?:, (?:may|must)-alias)?\)")

# Attributes whose values are computations.
_CALLS: Final = {
    *("body", "branch_computations", "called_computations", "calls", "condition", "false_computation"),
    *("scatter", "select", "to_apply", "true_computation"),
}


def parse_hlo(text: str, *, restored: Callable[[Stack], Stack] = lambda stack: stack) -> Module:
    """Read the text of one module, as `compiled.as_text()` gives it.

    `restored` maps the stacks in the text to those that the instructions get, see `locations`.

    Raises `HloError` where the text is cut short or not of this form, or where it names an instruction or a
    computation that it does not have.
    """
    return _ModuleReader(text, restored).module()


class _ModuleReader(Scanner):
    """The text, and what was read before. A method that takes a position starts there, and returns one after it."""

    def __init__(self, text: str, restored: Callable[[Stack], Stack]):
        super().__init__(text)
        self.tables = StackTables()
        self.restored = restored
        self.shapes: dict[str, tuple[Shape, ...]] = {}
        self.tuples: dict[str, str] = {}
        """The shapes of this computation's tuples, as they stand, by the names of the instructions."""
        self.metadata: dict[str, tuple[str, Stack]] = {}
        self.values: dict[str, str] = {}
        self.called: dict[str, int] = {}
        """The computations that are called, and where."""

    def module(self) -> Module:
        found = _HEADER.match(self.text)
        if not found:
            self.fail(0, "expected 'HloModule' and a name at the start")
        at = found.end()
        reused: set[int] = set()
        while attribute := ATTRIBUTE.match(self.text, at):
            key, value, start, at = self.attribute(attribute)
            if key == "input_output_alias":
                reused |= self.reused(value, start)
        self.line_end(at)
        while table := _TABLE.match(self.text, at):
            at = table.end()
            while row := _ROW.match(self.text, at):
                self.tables.add(table[1], int(row[1]), row[2], row[3])
                at = row.end()
            self.line_end(at)
        computations, entry = self.computations(at)
        return Module(found[1], computations, entry, frozenset(reused))

    def reused(self, value: str, at: int) -> set[int]:
        """The arguments in `{ {0}: (1, {}, may-alias), {1}: (2, {}) }`: 1 and 2."""
        if _ALIAS.sub("", value).strip("{}, "):
            self.unexpected(at, "entries of input_output_alias")
        # A TPU's program with more than 2000 arguments has one parameter, a tuple of them all: `{0}: (0, {7})` is 7.
        return {int(re.split("[, ]", index or parameter)[0]) for parameter, index in _ALIAS.findall(value)}

    def computations(self, at: int) -> tuple[dict[str, Computation], str]:
        found: dict[str, Computation] = {}
        entry = None
        while head := _COMPUTATION.match(self.text, at):
            name = sys.intern(head[2])
            if name in found:
                self.fail(head.start(2), f"a second computation {name!r}")
            if head[1] and entry is not None:
                self.fail(head.start(2), f"a second entry, after {entry!r}")
            entry = name if head[1] else entry
            found[name], at = self.computation(name, head.end())
        rest = self.text[at:].lstrip()
        if rest:
            self.unexpected(len(self.text) - len(rest), "a computation")
        if entry is None:
            self.fail(at, "cut short: it ends without an ENTRY computation")
        for name, where in self.called.items():
            if name not in found:
                self.fail(where, f"there is no computation {name!r}")
        return found, entry

    def computation(self, name: str, at: int) -> tuple[Computation, int]:
        instructions: dict[str, Instruction] = {}
        later: dict[str, int] = {}
        roots = 0
        self.tuples.clear()
        while self.text[at : at + 1] != "}":
            instruction, end = self.instruction(at)
            if instruction.name in instructions:
                self.fail(at, f"a second instruction {instruction.name!r} in this computation")
            for operand in instruction.operands:
                if "#" in operand and operand not in instructions:
                    instructions.update(self.elements(operand, at))
            instructions[instruction.name] = instruction
            later.update((operand, at) for operand in instruction.operands if operand not in instructions)
            roots += instruction.is_root
            at = end
        for operand, where in later.items():
            if operand not in instructions:
                self.fail(where, f"there is no instruction {operand!r} in this computation")
        if roots != 1:
            self.fail(at, f"the computation {name!r} has {roots} ROOT instructions, not one")
        at += 1
        while attribute := ATTRIBUTE.match(self.text, at):
            *_, at = self.attribute(attribute)
        if at < len(self.text):
            self.line_end(at)
        return Computation(name, tuple(instructions.values())), at

    def elements(self, operand: str, at: int) -> Iterator[tuple[str, Instruction]]:
        """The instructions that `operand` stands for, by their names; see `elements`."""
        for name, whole, index in named_elements(operand):
            shapes = elements_of(self.tuples.get(whole, ""))
            if index >= len(shapes):
                return
            self.tuples[name] = shapes[index]
            attributes = {"index": str(index)}
            element = self.leaves_of(shapes[index], at)
            yield name, Instruction(name, "get-tuple-element", element, (whole,), attributes=attributes)

    def instruction(self, at: int) -> tuple[Instruction, int]:
        root, name, shape, opcode, arguments, end = self.head(at)
        shapes = self.leaves_of(shape, at)
        if shape.startswith("("):
            self.tuples[name] = shape
        fields, end = self.attributes(opcode, end)
        if opcode == "parameter":
            if not _NUMBER.fullmatch(arguments):
                self.fail(at, f"expected the number of a parameter, found {arguments[:40]!r}")
            fields["parameter"] = int(arguments)
        elif opcode == "constant":
            fields["literal"] = int(arguments) if _INTEGER.fullmatch(arguments) else None
        else:
            names = _PERCENT_NAME.findall(arguments) or _bare_operands(arguments)
            fields["operands"] = tuple(map(sys.intern, names))
        end = self.line_end(end)
        return Instruction(sys.intern(name), sys.intern(opcode), shapes, is_root=root is not None, **fields), end

    def head(self, at: int) -> tuple[str | None, str, str, str, str, int]:
        """The parts of a line up to its operands, and the position after them."""
        if common := _COMMON.match(self.text, at):
            root, name, shape_text, opcode_name, arguments = common.groups()
            return root, name, shape_text, opcode_name, arguments, common.end()
        found = _INSTRUCTION.match(self.text, at)
        if not found:
            self.unexpected(at, "an instruction or '}'")
        shape_at = found.end()
        shape_end = self.shape(shape_at)
        opcode = _OPCODE.match(self.text, shape_end)
        if not opcode:
            self.unexpected(shape_end, "an operation")
        start = opcode.end()
        end = self.closed(start - 1)
        return found[1], found[2], self.text[shape_at:shape_end], opcode[1], self.text[start : end - 1], end

    def shape(self, at: int) -> int:
        """The end of a shape: an array with or without a layout, a tuple, or a buffer `b(f32[2])`."""
        if self.text.startswith("b(", at):
            at += 1
        if self.text[at : at + 1] == "(":
            return self.closed(at)
        found = _ARRAY.match(self.text, at)
        if not found:
            self.unexpected(at, "a shape")
        return found.end()

    def leaves_of(self, shape: str, at: int) -> tuple[Shape, ...]:
        found = self.shapes.get(shape)
        if found is None:
            found = self.shapes[shape] = tuple(self.leaves(shape, at))
        return found

    def leaves(self, shape: str, at: int) -> Iterator[Shape]:
        if _COMMENT.sub("", _LEAF.sub("", shape)).strip("b(), "):
            self.fail(at, f"expected a shape, found {shape[:40]!r}")
        for dtype, sizes, layout in _LEAF.findall(shape):
            dims = [_SIZE.fullmatch(size) for size in sizes.split(",")] if sizes else []
            if bits_of(dtype) is None or not all(dims):
                self.fail(at, f"expected an element type and sizes, found '{dtype}[{sizes[:40]}]'")
            yield Shape(sys.intern(dtype), tuple(int(size[1]) for size in dims if size), sys.intern(layout))

    def attributes(self, opcode: str, at: int) -> tuple[dict[str, Any], int]:
        """What the attributes from here on say, by the fields of `Instruction`."""
        others: dict[str, str] = {}
        fields: dict[str, Any] = {"attributes": others}
        while attribute := ATTRIBUTE.match(self.text, at):
            key, value, start, at = self.attribute(attribute)
            if key == "backend_config":
                fields |= _configured(value)
                if opcode == "custom-call":
                    fields |= _vmem(value)
                    others |= _gemm(value)
            elif key == "metadata":
                fields["op_name"], fields["stack"] = self.metadata.get(value) or self.described(value)
            elif key in _CALLS:
                called = tuple(map(sys.intern, _callees(value)))
                fields["calls"] = fields.get("calls", ()) + called
                self.called |= {name: start for name in called if name not in self.called}
            elif key == "kind" and opcode == "fusion":
                fields["fusion_kind"] = sys.intern(value)
            elif key == "custom_call_target":
                fields["custom_call_target"] = sys.intern(unescaped(value[1:-1]))
            elif key == "is_host_transfer":
                fields["is_host_transfer"] = value == "true"
            else:
                others[sys.intern(key)] = self.values.setdefault(value, value)
        return fields, at

    def described(self, raw: str) -> tuple[str, Stack]:
        """The op_name and stack of metadata."""
        fields = dict(_METADATA.findall(raw[1:-1]))
        stack = self.restored(self.tables.stack(_number(fields.get("stack_frame_id"))))
        if not stack and "source_file" in fields:
            file = unescaped(fields["source_file"][1:-1])
            stack = (Frame(file, _number(fields.get("source_line")), ""),)
        found = self.metadata[raw] = unescaped(fields.get("op_name", "")[1:-1]), stack
        return found


def _configured(value: str) -> dict[str, Any]:
    """What `backend_config` says, by the fields of `Instruction`."""
    fields: dict[str, Any] = {}
    # Found by their names first: the text of a kernel is megabytes, in which an expression would search for long.
    for field, name, pattern in (
        ("estimated_cycles", '"estimated_cycles":', _CYCLES),
        ("trip_count", '"known_trip_count":', _TRIPS),
        ("cost_estimate", '"cost_estimate":', _ESTIMATE),
    ):
        at = value.find(name)
        if at >= 0 and (found := pattern.match(value, at)):
            costs = {key: int(amount) for key, amount in _COST.findall(found[1])}
            fields[field] = costs if field == "cost_estimate" else int(found[1])
    at = value.find('"fusion_backend_config":')
    if at >= 0 and (found := _KERNEL.match(value, at)):
        fields["kernel"] = sys.intern(found[1])
    return fields


def _vmem(value: str) -> dict[str, int]:
    """What `backend_config` says of the memory on a TPU's chip, by the fields of `Instruction`."""
    fields: dict[str, int] = {}
    for field, pattern in _SCOPED.items():
        at = value.find(pattern.pattern.partition(":")[0])
        if at >= 0 and (found := pattern.match(value, at)):
            sizes = _IN_VMEM.findall(found[1])
            if sizes or field == "vmem_bytes":
                fields[field] = sum(map(int, sizes))
    return fields


def _gemm(value: str) -> dict[str, str]:
    """What the configuration of a product by cuBLAS says, as the attributes of a `dot`."""
    if '"gemm_backend_config":' not in value:
        return {}
    dimensions, precision = _DIMENSIONS.search(value), _PRECISION.search(value)
    found = {"lhs_contracting_dims": dimensions, "operand_precision": precision}
    return {name: f"{{{match[1].lower()}}}" for name, match in found.items() if match}


def _callees(value: str) -> list[str]:
    """The names in `%f` and `{%f, %g}`, or `f` and `{f, g}`."""
    names = (name.strip() for name in value.strip("{}").split(","))
    return [name.removeprefix("%") for name in names if name]


def _bare_operands(arguments: str) -> list[str]:
    """The names in `a, f32[2,3]{1,0} b`: operands of a text without `%`, whose types may hold commas of their own."""
    text, outer = "", _COMMENT.sub("", arguments)
    while text != outer:
        text, outer = outer, _INNERMOST_BRACKETS.sub("", outer)
    return [part.split()[-1] for part in text.split(",") if part.strip()]


def _number(text: str | None) -> int:
    return int(text) if text and _NUMBER.fullmatch(text) else 0
