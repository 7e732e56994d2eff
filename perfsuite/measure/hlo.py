"""Compiled HLO text, as XLA prints it for a CPU, a GPU or a TPU, read to objects.

The text is one header line (which may run on over tables of debug attributes), up to four tables that metadata refers
to, and the computations, one instruction a line. A TPU's text is tens of MB for a large training step, most of it
`backend_config`, so what is not asked for is stepped over, and what repeats is read once.
"""

import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn


class HloError(ValueError):
    """What is wrong with a text, and the line (from 1) on which it is wrong."""

    def __init__(self, problem: str, line: int):
        super().__init__(f"line {line} of the HLO text: {problem}")
        self.problem = problem
        self.line = line


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """One frame of the Python stack that traced an operation. `function` is empty where the text does not say."""

    file: str
    line: int
    function: str


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Element type and sizes of one array; a size that varies (`<=10`) counts as its bound. The layout is left out."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Without padding and tiling; elements below a byte are packed, and a token or opaque value takes none."""
        bits = _bits(self.dtype) or 0
        for size in self.dims:
            bits *= size
        return (bits + 7) // 8


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. Names are without their `%`.

    `shapes` are the arrays of the result, a tuple's in order with nested ones flattened. `calls` are the computations
    that it refers to, in the order of the text. `stack` has the innermost frame first. `estimated_cycles` is the TPU
    compiler's own figure from `backend_config`, of which nothing else is kept. `attributes` are those without a field
    here, by name, as the text has them; `metadata` and `backend_config` are not among them.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    calls: tuple[str, ...]
    op_name: str
    stack: tuple[Source, ...]
    fusion_kind: str | None
    custom_call_target: str | None
    is_host_transfer: bool
    estimated_cycles: int | None
    parameter: int | None
    is_root: bool
    attributes: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation, its instructions in the order of the text: that of the schedule, where there is one."""

    name: str
    instructions: tuple[Instruction, ...]


@dataclasses.dataclass(frozen=True)
class Alias:
    """An output (the path to a leaf of the result) that shares the buffer of a parameter, or of a part of one.

    `kind` is "may-alias" or "must-alias".
    """

    output: tuple[int, ...]
    parameter: int
    parameter_index: tuple[int, ...]
    kind: str


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program. `buffer_donors` are parameters given away without an output to share their buffer with."""

    name: str
    computations: Mapping[str, Computation]
    entry: str
    aliases: tuple[Alias, ...]
    buffer_donors: tuple[int, ...]
    num_partitions: int


def parse(text: str) -> Module:
    """Read the text of one module, as `compiled.as_text()` gives it.

    Raises `HloError` where the text is cut short or not of this form, or where it names an instruction or a
    computation that it does not have.
    """
    return _Reader(text).module()


# What only the brackets of a value need looking at for: everything else, and texts in quotes, in one match.
_UNBRACKETED: Final = re.compile(r'(?:[^"()\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_UNBRACED: Final = re.compile(r'(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_QUOTED: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_BARE: Final = re.compile(r'[^,\n"()\[\]{}]*+')
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}

_NAME: Final = r'[^\s%"(),/=\[\]{}]++'
_ARRAY_TEXT: Final = r"[a-z]\w*+\[[^][]*+\](?:\{[^{}]*+\})?"
_HEADER: Final = re.compile(rf"\s*HloModule ({_NAME})")
# The name of an attribute, and its value where that is a word, a text in quotes or one pair of braces.
_ATTRIBUTE: Final = re.compile(
    r',\s*+([A-Za-z_][\w.-]*+)=(?:([^,\n"()\[\]{}]++|"(?:[^"\\]++|\\.)*+"'
    r'|\{(?:[^"()\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+\})(?=[,\n]))?',
    re.ASCII | re.DOTALL,
)
_TABLE: Final = re.compile(r"\s*(FileNames|FunctionNames|FileLocations|StackFrames)\n")
_ROW: Final = re.compile(r'([0-9]{1,9}) (?:"((?:[^"\\\n]|\\.)*+)"|\{([^{}\n]*+)\})\n')
_PAIR: Final = re.compile(r"(\w+)=([0-9]{1,9})(?![0-9])")
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
_NUMBER: Final = re.compile("[0-9]{1,9}")
_ESCAPE: Final = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_NUMBERED: Final = re.compile(r"(?:bf|[cfsu])([0-9]{1,3})", re.ASCII)
_WITHOUT_BYTES: Final = ("token", "opaque")

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

_Stack = tuple[Source, ...]


def _bits(dtype: str) -> int | None:
    """Bits of one element: 16 for "bf16", 8 for "f8e4m3fn" and "pred", 4 for "s4"; `None` for an unknown type."""
    if dtype == "pred":
        return 8
    if dtype in _WITHOUT_BYTES:
        return 0
    found = _NUMBERED.match(dtype)
    return int(found[1]) if found else None


class _Reader:
    """The text, and what was read before. A method that takes a position starts there, and gives one after it."""

    def __init__(self, text: str):
        self.text = text
        self.frames = _Frames()
        self.shapes: dict[str, tuple[Shape, ...]] = {}
        self.metadata: dict[str, tuple[str, _Stack]] = {}
        self.values: dict[str, str] = {}
        # Computations that are called, and where.
        self.called: dict[str, int] = {}

    def fail(self, at: int, problem: str) -> NoReturn:
        raise HloError(problem, self.text.count("\n", 0, at) + 1)

    def unexpected(self, at: int, wanted: str) -> NoReturn:
        if at >= len(self.text):
            self.fail(at, f"cut short: it ends where {wanted} should be")
        self.fail(at, f"expected {wanted}, found {self.text[at : at + 40].splitlines()[0]!r}")

    def module(self) -> Module:
        found = _HEADER.match(self.text)
        if not found:
            self.fail(0, "expected 'HloModule' and a name at the start")
        header = {}
        at = found.end()
        while attribute := _ATTRIBUTE.match(self.text, at):
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
        while attribute := _ATTRIBUTE.match(self.text, at):
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
        stack: _Stack = ()
        kind = target = cycles = None
        is_host_transfer = False
        attributes: dict[str, str] = {}
        while attribute := _ATTRIBUTE.match(text, end):
            key, value = attribute.groups()
            start, end = attribute.end(1) + 1, attribute.end()
            if key == "backend_config":
                end = end if value else self.braced(start) if text[start : start + 1] == "{" else self.value(start)
                cycles_at = text.find('"estimated_cycles":', start, end)
                if cycles_at >= 0 and (figure := _CYCLES.match(text, cycles_at, end)):
                    cycles = int(figure[1])
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
                target = sys.intern(_unescaped(value[1:-1]))
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
            if _bits(dtype) is None or not all(dims):
                self.fail(at, f"expected an element type and sizes, found '{dtype}[{sizes[:40]}]'")
            found.append(Shape(sys.intern(dtype), tuple(int(size[1]) for size in dims if size)))
        return tuple(found)

    def described(self, raw: str) -> tuple[str, _Stack]:
        """The op_name and stack of metadata."""
        fields = dict(_METADATA.findall(raw[1:-1]))
        stack = self.frames.stack(_number(fields.get("stack_frame_id")))
        if not stack and "source_file" in fields:
            file = _unescaped(fields["source_file"][1:-1])
            stack = (Source(file, _number(fields.get("source_line")), ""),)
        found = self.metadata[raw] = _unescaped(fields.get("op_name", "")[1:-1]), stack
        return found

    def attribute(self, found: re.Match[str]) -> tuple[str, str, int, int]:
        """Its name and value, and the value's start and end."""
        key, value = found.groups()
        start = found.end(1) + 1
        end = self.value(start) if value is None else found.end()
        return key, self.text[start:end], start, end

    def value(self, at: int) -> int:
        """The end of an attribute's value: the next comma or end of line that is in no brackets and no quotes."""
        text = self.text
        while True:
            at = _BARE.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty text too
            first = text[at : at + 1]
            if first == '"':
                at = self.quoted(at)
            elif first in _CLOSING:
                at = self.closed(at)
            else:
                return at

    def quoted(self, at: int) -> int:
        found = _QUOTED.match(self.text, at)
        if not found:
            self.fail(at, "cut short: a text without its closing quote")
        return found.end()

    def closed(self, at: int) -> int:
        """The position after the bracket that closes the one here."""
        text, skip = self.text, _UNBRACKETED.match
        start = at
        open_brackets = [_CLOSING[text[at]]]
        while True:
            at = skip(text, at + 1).end()  # type: ignore[union-attr]  # it matches the empty text too
            bracket = text[at : at + 1]
            if bracket == open_brackets[-1]:
                open_brackets.pop()
                if not open_brackets:
                    return at + 1
            elif bracket in _CLOSING:
                open_brackets.append(_CLOSING[bracket])
            else:
                self.unclosed(start, at)

    def braced(self, at: int) -> int:
        """As `closed`, of braces alone, which is all that large JSON needs."""
        text, skip = self.text, _UNBRACED.match
        start, depth = at, 1
        while depth:
            at = skip(text, at + 1).end()  # type: ignore[union-attr]  # it matches the empty text too
            bracket = text[at : at + 1]
            if bracket == "}":
                depth -= 1
            elif bracket == "{":
                depth += 1
            else:
                self.unclosed(start, at)
        return at + 1

    def unclosed(self, start: int, at: int) -> NoReturn:
        """Fails where the bracket was opened: what is wrong is rarely as far away as where that showed."""
        found = {"": "the end", '"': "a text without its closing quote"}
        what = self.text[at : at + 1]
        self.fail(start, f"unbalanced brackets: after {self.text[start]!r} comes {found.get(what, repr(what))}")

    def line_end(self, at: int) -> int:
        if self.text[at : at + 1] != "\n":
            self.unexpected(at, "the end of the line")
        return at + 1


class _Frames:
    """The tables of stack frames, by their numbers in the text, and the stacks read from them, each built once."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[int, str]] = {"FileNames": {}, "FunctionNames": {}}
        self.rows: dict[str, dict[int, dict[str, int]]] = {"FileLocations": {}, "StackFrames": {}}
        self.stacks: dict[int, _Stack] = {}
        self.shared: dict[_Stack, _Stack] = {}
        self.shift: int | None = None

    def add(self, table: str, number: int, text: str | None, fields: str | None) -> None:
        if table in self.texts:
            self.texts[table][number] = _unescaped(text or "")
        else:
            self.rows[table][number] = {key: int(value) for key, value in _PAIR.findall(fields or "")}

    def parent_shift(self) -> int:
        """How much too high the text gives the parents of frames.

        XLA of jaxlib 0.10 prints the number after the parent's, so that a frame without a parent has 1, and the first
        frame is its own parent. A text with the parents' own numbers has 0 or none for a frame without one.
        """
        parents = [(number, fields.get("parent_frame_id", 0)) for number, fields in self.rows["StackFrames"].items()]
        itself = any(number == parent for number, parent in parents)
        return int(itself and all(parent for _, parent in parents))

    def stack(self, frame: int) -> _Stack:
        """The frame and those around it, innermost first. What the tables do not have is left out."""
        if self.shift is None:
            self.shift = self.parent_shift()
        chain: list[int] = []
        rows = self.rows["StackFrames"]
        while frame in rows and frame not in self.stacks and frame not in chain:
            chain.append(frame)
            frame = rows[frame].get("parent_frame_id", 0) - self.shift
        stack = self.stacks.get(frame, ())
        for number in reversed(chain):
            # Frames that differ in their columns alone are one.
            stack = (*self.source(rows[number]), *stack)
            stack = self.stacks[number] = self.shared.setdefault(stack, stack)
        return stack

    def source(self, row: dict[str, int]) -> Iterator[Source]:
        place = self.rows["FileLocations"].get(row.get("file_location_id", 0))
        if place is not None:
            file = self.texts["FileNames"].get(place.get("file_name_id", 0), "")
            function = self.texts["FunctionNames"].get(place.get("function_name_id", 0), "")
            yield Source(file, place.get("line", 0), function)


def _index(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.replace(",", " ").split())


def _number(text: str | None) -> int:
    return int(text) if text and _NUMBER.fullmatch(text) else 0


def _callees(value: str) -> list[str]:
    """The names in `%f` and `{%f, %g}`, or `f` and `{f, g}`."""
    names = (name.strip() for name in value.strip("{}").split(","))
    return [name.removeprefix("%") for name in names if name]


def _bare_operands(arguments: str) -> Iterator[str]:
    """The names in `a, f32[2,3]{1,0} b`: operands of a text without `%`, whose types may hold commas of their own."""
    depth = 0
    word = ""
    for token in re.findall(r"[()\[\]{}]|[^()\[\]{},\s]+|,", _COMMENT.sub("", arguments)):
        depth += (token in _CLOSING) - (token in _CLOSING.values())
        if token == "," and depth == 0:
            yield word
        word = token
    if word:
        yield word


def _unescaped(text: str) -> str:
    """A quoted text's content, in which XLA writes what is not ASCII as octal bytes of UTF-8."""
    if "\\" not in text:
        return text

    def character(escape: re.Match[bytes]) -> bytes:
        code = escape[1]
        return bytes([int(code, 8) & 255]) if len(code) == 3 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(character, text.encode("utf-8", "replace")).decode("utf-8", "replace")
