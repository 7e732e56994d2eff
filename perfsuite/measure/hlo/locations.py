"""Takes source locations out of a StableHLO text, and puts them back into the program that was compiled from it.

A line that moves, a checkout elsewhere or another caller would otherwise change the text of the same program, and so
compile it again. Every location becomes a number. The compiled program's metadata has these numbers, which lead to the
lines as they are now. Grammar: https://mlir.llvm.org/docs/Dialects/Builtin/#location-attributes
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping

from perfsuite.measure.hlo.module import SourceFrame, Stack

_DEFINITION = re.compile(r"^#(loc\d*) = loc\((.*)\)\n?", re.MULTILINE)
_STRING = r'"(?:[^"\\]|\\.)*"'
_FLAT = rf"(?:{_STRING}|[^()\"])*"
_NESTED = rf"(?:{_STRING}|[^()\"]|\((?:{_STRING}|[^()\"]|\((?:{_STRING}|[^()\"]|\({_FLAT}\))*\))*\))*"
_USE = re.compile(rf"\bloc\(({_NESTED})\)")
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"(?:\((.*)\))?\Z', re.DOTALL)
_CALL = re.compile(r"callsite\((#?\w+|.*?) at (#?\w+|.*)\)\Z", re.DOTALL)
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):')
_FUSED = re.compile(r"fused(?:<.*?>)?\[(.*?)(?:, .*)?\]\Z", re.DOTALL)

_FILE_OF_NUMBERS = "-"
_NUMBER = re.compile(rf'"{_FILE_OF_NUMBERS}":(\d+):0\b')


@dataclasses.dataclass(frozen=True)
class NumberedText:
    """`text` with numbers in place of locations, and the stack that each number stands for."""

    text: str
    stacks: Mapping[int, Stack]

    def named(self, op_name: str) -> tuple[Stack, ...]:
        """The stacks of the operations with this name, as the compiler has it in its messages."""
        start = f'loc("{op_name}"("{_FILE_OF_NUMBERS}"("{_FILE_OF_NUMBERS}":'
        numbers = re.findall(rf"{re.escape(start)}(\d+):0\)", self.text)
        return tuple(self.stacks[int(number)] for number in numbers)

    def lines(self) -> list[tuple[str, Stack]]:
        """Each line without its locations, and the stack of the last one of them."""
        lines = []
        for line in self.text.splitlines():
            numbers = _NUMBER.findall(line)
            stack = self.stacks[int(numbers[-1])] if numbers else ()
            lines.append((_USE.sub("", line).strip(), stack))
        return lines


def number_locations(text: str) -> NumberedText:
    """Take the locations out of what `Lowered.as_text(debug_info=True)` printed. Names of operations stay."""
    locations = _Locations(dict(_DEFINITION.findall(text)))
    stacks: list[Stack] = []

    def numbered(use: re.Match[str]) -> str:
        """A location whose frames, if it has any, are one frame with a number for a line."""
        expression = use[1]
        if "#" not in expression:  # the name of an argument, or unknown
            return use[0]
        stack = locations.stack(expression)
        if not stack:
            return f"loc({locations.plain(expression)})"
        # A number for each use, not for each stack: which operations share a line must not show in the text.
        stacks.append(stack)
        frame = f'"{_FILE_OF_NUMBERS}"("{_FILE_OF_NUMBERS}":{len(stacks)}:0)'
        # An alias leads to the name of the operation, which stays.
        named = _NAMED.match(locations.resolved(expression))
        return f'loc("{named[1]}"({frame}))' if named else f"loc({frame})"

    return NumberedText(_USE.sub(numbered, _DEFINITION.sub("", text)), dict(enumerate(stacks, start=1)))


def restoring(stacks: Mapping[int, Stack]) -> Callable[[Stack], Stack]:
    """A function that replaces the numbers in a stack of the compiled program by the stacks that they stand for."""

    @functools.cache
    def restored(stack: Stack) -> Stack:
        if not any(frame.file == _FILE_OF_NUMBERS for frame in stack):
            return stack
        frames: list[SourceFrame] = []
        for frame in stack:
            frames += stacks.get(frame.line, ()) if frame.file == _FILE_OF_NUMBERS else (frame,)
        # An inlined function brings the frames of its first caller, and the compiler adds those of this one.
        return tuple(dict.fromkeys(frames))

    return restored


class _Locations:
    """The locations that a text defines, by their aliases."""

    def __init__(self, definitions: Mapping[str, str]):
        self.definitions = definitions
        self.stack = functools.cache(self._stack)

    def resolved(self, expression: str) -> str:
        """The location that an alias stands for."""
        return self.definitions.get(expression[1:], "unknown") if expression.startswith("#") else expression

    def plain(self, expression: str) -> str:
        """The names of a location without files, with aliases resolved."""
        expression = self.resolved(expression)
        named = _NAMED.match(expression)
        return f'"{named[1]}"({self.plain(named[2])})' if named and named[2] else expression

    def _stack(self, expression: str) -> Stack:
        expression = self.resolved(expression)
        if call := _CALL.match(expression):
            return self.stack(call[1]) + self.stack(call[2])
        if fused := _FUSED.match(expression):
            return self.stack(fused[1])
        if file := _FILE.match(expression):
            return (SourceFrame(_unescaped(file[1]), int(file[2]), ""),)
        if (named := _NAMED.match(expression)) and named[2]:
            stack = self.stack(named[2])
            # A name directly around a file is that of the function; one around calls is the operation's.
            if len(stack) == 1 and not stack[0].function:
                return (dataclasses.replace(stack[0], function=_unescaped(named[1])),)
            return stack
        return ()


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
