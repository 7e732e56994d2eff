"""Source locations taken out of a StableHLO text, and put back into the program that was compiled from it.

A line that moves, a checkout elsewhere or another caller would otherwise make a new text of the same program, and so
compile it again. Every location becomes a number; the numbers come back in the compiled program's metadata, and lead to
the lines as they are now. Grammar: https://mlir.llvm.org/docs/Dialects/Builtin/#location-attributes
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping

from perfsuite.measure.hlo.hlo_module import Source
from perfsuite.measure.hlo.hlo_stacks import Stack

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


@dataclasses.dataclass(frozen=True)
class Located:
    """`text` with numbers for locations, and the stack, innermost frame first, that each number stands for."""

    text: str
    stacks: Mapping[int, Stack]


def number_locations(text: str) -> Located:
    """Take the locations out of what `Lowered.as_text(debug_info=True)` printed. Names of operations stay."""
    definitions = dict(_DEFINITION.findall(text))
    stacks: list[Stack] = []

    def stack_of(expression: str) -> Stack:
        return reference(expression[1:]) if expression.startswith("#") else _stack(expression, reference)

    @functools.cache
    def reference(alias: str) -> Stack:
        return stack_of(definitions.get(alias, "unknown"))

    def plain(expression: str) -> str:
        """The names of a location without files, as it stands."""
        if expression.startswith("#"):
            return plain(definitions.get(expression[1:], "unknown"))
        named = _NAMED.match(expression)
        return f'"{named[1]}"({plain(named[2])})' if named and named[2] else expression

    def numbered(use: re.Match[str]) -> str:
        """A location whose frames, if it has any, are one frame with a number for a line."""
        expression = use[1]
        if "#" not in expression:  # the name of an argument, or unknown
            return use[0]
        stack = stack_of(expression)
        if not stack:
            return f"loc({plain(expression)})"
        # A number for each use, not for each stack: which operations share a line must not show in the text.
        stacks.append(stack)
        frame = f'"{_FILE_OF_NUMBERS}"("{_FILE_OF_NUMBERS}":{len(stacks)}:0)'
        # An alias leads to the name of the operation, which stays.
        named = _NAMED.match(definitions.get(expression[1:], "") if expression.startswith("#") else expression)
        return f'loc("{named[1]}"({frame}))' if named else f"loc({frame})"

    located = _USE.sub(numbered, _DEFINITION.sub("", text))
    return Located(located, dict(enumerate(stacks, start=1)))


def restoring(stacks: Mapping[int, Stack]) -> Callable[[Stack], Stack]:
    """What makes of the stacks in a compiled program's metadata those that their numbers stand for."""

    @functools.cache
    def restored(stack: Stack) -> Stack:
        if not any(frame.file == _FILE_OF_NUMBERS for frame in stack):
            return stack
        frames: list[Source] = []
        for frame in stack:
            frames += stacks.get(frame.line, ()) if frame.file == _FILE_OF_NUMBERS else (frame,)
        # An inlined function brings the frames of its first caller, and the compiler adds those of this one.
        return tuple(dict.fromkeys(frames))

    return restored


def _stack(expression: str, reference) -> Stack:
    """The frames of a location that is not an alias."""

    def of(inner: str) -> Stack:
        return reference(inner[1:]) if inner.startswith("#") else _stack(inner, reference)

    if call := _CALL.match(expression):
        return of(call[1]) + of(call[2])
    if fused := _FUSED.match(expression):
        return of(fused[1])
    if file := _FILE.match(expression):
        return (Source(_unescaped(file[1]), int(file[2]), ""),)
    if (named := _NAMED.match(expression)) and named[2]:
        stack = of(named[2])
        # A name directly around a file is that of the function; one around calls is the operation's.
        if len(stack) == 1 and not stack[0].function:
            return (dataclasses.replace(stack[0], function=_unescaped(named[1])),)
        return stack
    return ()


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
