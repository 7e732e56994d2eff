"""Compiled HLO text, as XLA prints it for a CPU, a GPU or a TPU, read to objects.

The text is one header line (which may run on over tables of debug attributes), up to four tables that metadata refers
to, and the computations, one instruction a line. A TPU's text is tens of MB for a large training step, most of it
`backend_config`, so what is not asked for is stepped over, and what repeats is read once.
"""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Final

from perfsuite.measure.hlo.hlo_module import Alias, Computation, Instruction, Module, Shape, Source, bits_of
from perfsuite.measure.hlo.hlo_stacks import Frames, Stack
from perfsuite.measure.hlo.hlo_text import ATTRIBUTE, CLOSING, HloError, Scanner, unescaped

__all__ = ["Alias", "Computation", "HloError", "Instruction", "Module", "Shape", "Source", "parse"]

_NAME: Final = r'[^\s%"(),/=\[\]{}]++'
_ARRAY_TEXT: Final = r"[a-z]\w*+\[[^][]*+\](?:\{[^{}]*+\})?"
_NUMBER: Final = re.compile("[0-9]{1,9}")
_HEADER: Final = re.compile(rf"\s*HloModule ({_NAME})")
_TABLE: Final = re.compile(r"\s*(FileNames|FunctionNames|FileLocations|StackFrames)\n")
_ROW: Final = re.compile(r'([0-9]{1,9}) (?:"((?:[^"\\\n]|\\.)*+)"|\{([^{}\n]*+)\})\n')
_COMPUTATION: Final = re.compile(rf"\s*(ENTRY )?%?({_NAME}) (?=[({{])")
_INSTRUCTION: Final = re.compile(rf" *+(ROOT )?%?({_NAME}) = ")
# Most lines: an array, and operands without their types. Others are read bracket by bracket.
_COMMON: Final = re.compile(rf" *+(ROOT )?%?({_NAME}) = ({_ARRAY_TEXT}) ([a-z][a-z0-9-]*+)\(([^\"()\[\]{{}}\n]*+)\)")
_OPCODE: Final = re.compile(r" ([a-z][a-z0-9-]*+)\(")
_ARRAY: Final = re.compile(_ARRAY_TEXT, re.ASCII)
_LEAF: Final = re.compile(r"([a-z]\w*+)\[([^][]*+)\](?:\{[^{}]*+\})?", re.ASCII)
_SIZE: Final = re.compile(r"(?:<=)?([0-9]{1,18})")
_COMMENT: Final = re.compile(r"/\*.*?\*/")
_PERCENT_NAME: Final = re.compile(rf"%({_NAME})")
_METADATA: Final = re.compile(r'\s*+(\w++)=("(?:[^"\\]++|\\.)*+"|\{[^{}]*+\}|[^\s"{}]++)', re.DOTALL)
_CYCLES: Final = re.compile(r'"estimated_cycles":\s*+"?(-?[0-9]{1,18})')
_INDEX: Final = r"\{((?:[0-9]{1,9}+(?![0-9])[, ]*+)*+)\}"
_ALIAS: Final = re.compile(rf"{_INDEX}: \(([0-9]{{1,9}}), {_INDEX}(?:, (may-alias|must-alias))?\)")
_DONOR: Final = re.compile(rf"\(([0-9]{{1,9}}), {_INDEX}\)")

# Attributes whose values are computations.
_CALLS: Final = {
    "body",
    "branch_computations",
    "called_computations",
    "calls",
    "condition",
    "false_computation",
    "scatter",
    "select",
    "to_apply",
    "true_computation",
}


def parse(text: str, *, restored: Callable[[Stack], Stack] = lambda stack: stack) -> Module:
    """Read the text of one module, as `compiled.as_text()` gives it.

    `restored` gives the stack that an instruction gets for the one in the text, see `locations`.

    Raises `HloError` where the text is cut short or not of this form, or where it names an instruction or a
    computation that it does not have.
    """
    return _Reader(text, restored).module()


class _Reader(Scanner):
    """The text, and what was read before. A method that takes a position starts there, and gives one after it."""

    def __init__(self, text: str, restored: Callable[[Stack], Stack]):
        super().__init__(text)
        self.frames = Frames()
        self.restored = restored
        self.shapes: dict[str, tuple[Shape, ...]] = {}
        self.metadata: dict[str, tuple[str, Stack]] = {}
        self.values: dict[str, str] = {}
        # Computations that are called, and where.
        self.called: dict[str, int] = {}

    def module(self) -> Module:
        found = _HEADER.match(self.text)
        if not found:
            self.fail(0, "expected 'HloModule' and a name at the start")
        header = {}
        at = found.end()
        while attribute := ATTRIBUTE.match(self.text, at):
            key, value, start, at = self.attribute(attribute)
            header[key] = (value, start)
        self.line_end(at)
        aliases = self.entries(header, "input_output_alias", _ALIAS)
        donors = self.entries(header, "buffer_donor", _DONOR)
        partitions, where = header.get("num_partitions", ("1", 0))
        if not _NUMBER.fullmatch(partitions):
            self.unexpected(where, "a number of partitions")
        at = self.tables(at)
        computations, entry = self.computations(at)
        return Module(
            name=found[1],
            computations=computations,
            entry=entry,
            aliases=tuple(
                Alias(_index(output), int(parameter), _index(index), kind or "may-alias")
                for output, parameter, index, kind in (entry.groups() for entry in aliases)
            ),
            buffer_donors=tuple(int(entry[1]) for entry in donors),
            num_partitions=int(partitions),
        )

    def entries(self, header: dict[str, tuple[str, int]], key: str, entry: re.Pattern[str]) -> list[re.Match[str]]:
        """The entries of a header attribute `{ entry, entry }`."""
        raw, where = header.get(key, ("{}", 0))
        if entry.sub("", raw).strip("{}, "):
            self.unexpected(where, f"entries of {key}")
        return list(entry.finditer(raw))

    def tables(self, at: int) -> int:
        while table := _TABLE.match(self.text, at):
            at = table.end()
            while row := _ROW.match(self.text, at):
                self.frames.add(table[1], int(row[1]), row[2], row[3])
                at = row.end()
            self.line_end(at)
        return at

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
            found[name], at = self.computation(name, self.signature(head.end()))
        rest = self.text[at:].lstrip()
        if rest:
            self.unexpected(len(self.text) - len(rest), "a computation")
        if entry is None:
            self.fail(at, "cut short: it ends without an ENTRY computation")
        for name, where in self.called.items():
            if name not in found:
                self.fail(where, f"there is no computation {name!r}")
        return found, entry

    def signature(self, at: int) -> int:
        """Over `(x: f32[2]) -> f32[2] {`, or only the brace where the text is without signatures."""
        if self.text[at] == "(":
            at = self.closed(at)
            if not self.text.startswith(" -> ", at):
                self.unexpected(at, "' -> '")
            at = self.shape(at + 4)
            if self.text[at : at + 1] != " ":
                self.unexpected(at, "' {'")
            at += 1
        if not self.text.startswith("{\n", at):
            self.unexpected(at, "'{' and the end of the line")
        return at + 2

    def computation(self, name: str, at: int) -> tuple[Computation, int]:
        instructions: list[Instruction] = []
        names: set[str] = set()
        unknown: dict[str, int] = {}
        roots = 0
        while self.text[at : at + 1] != "}":
            instruction, end = self.instruction(at)
            if instruction.name in names:
                self.fail(at, f"a second instruction {instruction.name!r} in this computation")
            names.add(instruction.name)
            if not names.issuperset(instruction.operands):
                unknown.update((operand, at) for operand in instruction.operands if operand not in names)
            roots += instruction.is_root
            instructions.append(instruction)
            at = end
        for operand, where in unknown.items():
            if operand not in names:
                self.fail(where, f"there is no instruction {operand!r} in this computation")
        if roots != 1:
            self.fail(at, f"the computation {name!r} has {roots} ROOT instructions, not one")
        at += 1
        while attribute := ATTRIBUTE.match(self.text, at):
            *_, at = self.attribute(attribute)
        if at < len(self.text):
            self.line_end(at)
        return Computation(name, tuple(instructions)), at

    def instruction(self, at: int) -> tuple[Instruction, int]:
        text = self.text
        found = _COMMON.match(text, at)
        if found:
            root, name, shape, opcode, arguments = found.groups()
            end = found.end()
        else:
            root, name, shape, opcode, arguments, end = self.uncommon(at)
        shapes = self.shapes.get(shape)
        if shapes is None:
            shapes = self.shapes[shape] = self.leaves(shape, at)
        operands: tuple[str, ...] = ()
        parameter = None
        if opcode == "parameter":
            if not _NUMBER.fullmatch(arguments):
                self.fail(at, f"expected the number of a parameter, found {arguments[:40]!r}")
            parameter = int(arguments)
        elif opcode != "constant":
            operands = tuple(map(sys.intern, _PERCENT_NAME.findall(arguments)))
            if arguments and not operands:
                operands = tuple(map(sys.intern, _bare_operands(arguments)))

        calls: list[str] = []
        op_name = ""
        stack: Stack = ()
        kind = target = cycles = None
        is_host_transfer = False
        attributes: dict[str, str] = {}
        while attribute := ATTRIBUTE.match(text, end):
            key, value = attribute.groups()
            start, end = attribute.end(1) + 1, attribute.end()
            if key == "backend_config":
                end = end if value else self.braced(start) if text[start : start + 1] == "{" else self.value(start)
                cycles_at = text.find('"estimated_cycles":', start, end)
                if cycles_at >= 0 and (metric := _CYCLES.match(text, cycles_at, end)):
                    cycles = int(metric[1])
                continue
            if value is None:
                end = self.value(start)
                value = text[start:end]
            if key == "metadata":
                op_name, stack = self.metadata.get(value) or self.described(value)
            elif key in _CALLS:
                for callee in map(sys.intern, _callees(value)):
                    calls.append(callee)
                    self.called.setdefault(callee, start)
            elif key == "kind" and opcode == "fusion":
                kind = sys.intern(value)
            elif key == "custom_call_target":
                target = sys.intern(unescaped(value[1:-1]))
            elif key == "is_host_transfer":
                is_host_transfer = value == "true"
            else:
                attributes[sys.intern(key)] = self.values.setdefault(value, value)
        end = self.line_end(end)
        return Instruction(
            sys.intern(name),
            sys.intern(opcode),
            shapes,
            operands,
            tuple(calls),
            op_name,
            stack,
            kind,
            target,
            is_host_transfer,
            cycles,
            parameter,
            root is not None,
            attributes,
        ), end

    def uncommon(self, at: int) -> tuple[str | None, str, str, str, str, int]:
        """The parts of a line up to its operands, whatever its shape and operands are."""
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

    def leaves(self, shape: str, at: int) -> tuple[Shape, ...]:
        if _COMMENT.sub("", _LEAF.sub("", shape)).strip("b(), "):
            self.fail(at, f"expected a shape, found {shape[:40]!r}")
        found = []
        for dtype, sizes in _LEAF.findall(shape):
            dims = [_SIZE.fullmatch(size) for size in sizes.split(",")] if sizes else []
            if bits_of(dtype) is None or not all(dims):
                self.fail(at, f"expected an element type and sizes, found '{dtype}[{sizes[:40]}]'")
            found.append(Shape(sys.intern(dtype), tuple(int(size[1]) for size in dims if size)))
        return tuple(found)

    def described(self, raw: str) -> tuple[str, Stack]:
        """The op_name and stack of metadata."""
        fields = dict(_METADATA.findall(raw[1:-1]))
        stack = self.restored(self.frames.stack(_number(fields.get("stack_frame_id"))))
        if not stack and "source_file" in fields:
            file = unescaped(fields["source_file"][1:-1])
            stack = (Source(file, _number(fields.get("source_line")), ""),)
        found = self.metadata[raw] = unescaped(fields.get("op_name", "")[1:-1]), stack
        return found


def _index(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.replace(",", " ").split())


def _callees(value: str) -> list[str]:
    """The names in `%f` and `{%f, %g}`, or `f` and `{f, g}`."""
    names = (name.strip() for name in value.strip("{}").split(","))
    return [name.removeprefix("%") for name in names if name]


def _bare_operands(arguments: str) -> Iterator[str]:
    """The names in `a, f32[2,3]{1,0} b`: operands of a text without `%`, whose types may hold commas of their own."""
    depth = 0
    word = ""
    for token in re.findall(r"[()\[\]{}]|[^()\[\]{},\s]+|,", _COMMENT.sub("", arguments)):
        depth += (token in CLOSING) - (token in CLOSING.values())
        if token == "," and depth == 0:
            yield word
        word = token
    if word:
        yield word


def _number(text: str | None) -> int:
    return int(text) if text and _NUMBER.fullmatch(text) else 0
