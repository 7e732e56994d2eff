"""JSON read strictly, each value with its line.

The standard library's reader says where a text stops being JSON, but not on which line a value stood that proved wrong
later; and it takes the last of two equal keys and NaN for granted. Both are what a half-done merge or a bad metric
leaves behind.
"""

import bisect
import dataclasses
import json
import re
from typing import Any, NoReturn

_SPACE = re.compile(r"[ \t\r\n]*")

# A baseline file nests five deep. The limit keeps a file of brackets from using up Python's stack.
_DEEPEST = 50


class LocatedError(ValueError):
    """What is wrong with a text, and the line (from 1) on which it is wrong."""

    def __init__(self, problem: str, line: int):
        super().__init__(f"line {line}: {problem}")
        self.problem = problem
        self.line = line


@dataclasses.dataclass(frozen=True, slots=True)
class Located:
    """A JSON value and the line on which it starts. The values in an object or array are located too."""

    value: Any
    line: int

    def plain(self) -> Any:
        """The value without lines."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value


def parse_located(text: str) -> Located:
    """Read one JSON value.

    Raises `LocatedError` when `text` is not JSON, ends too early, has something after the value, gives a key twice in
    one object, or has a number that JSON does not know (NaN, Infinity).
    """
    reader = _Reader(text)
    value, end = reader.value(0, 0)
    end = reader.skip(end)
    if end < len(text):
        reader.fail(end, "something follows the end of the file's content")
    return value


class _Reader:
    """The text, its line ends, and the grammar. Every method takes a position and returns the one after it."""

    def __init__(self, text: str):
        self.text = text
        self.line_ends = [match.start() for match in re.finditer("\n", text)]
        # Strings and numbers are left to the standard library; only what holds others is read here.
        self.decoder = json.JSONDecoder(parse_constant=_no_constant)

    def line(self, at: int) -> int:
        return bisect.bisect_left(self.line_ends, at) + 1

    def fail(self, at: int, problem: str) -> NoReturn:
        raise LocatedError(problem, self.line(at))

    def skip(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def value(self, at: int, depth: int) -> tuple[Located, int]:
        at = self.skip(at)
        first = self.text[at : at + 1]
        if depth > _DEEPEST:
            self.fail(at, f"nested more than {_DEEPEST} deep")
        if first == "{":
            return self.members(at, depth)
        if first == "[":
            return self.items(at, depth)
        scalar, end = self.scalar(at)
        return Located(scalar, self.line(at)), end

    def members(self, start: int, depth: int) -> tuple[Located, int]:
        found: dict[str, Located] = {}
        lines: dict[str, int] = {}
        at = self.skip(start + 1)
        while self.text[at : at + 1] != "}" or found:
            at = self.skip(at)
            if self.text[at : at + 1] != '"':
                self.unexpected(at, "a key in double quotes")
            key_at = at
            key, at = self.scalar(at)
            if key in found:
                self.fail(key_at, f"the key {key!r} is here a second time, after line {lines[key]}")
            at = self.skip(at)
            if self.text[at : at + 1] != ":":
                self.unexpected(at, f"':' after {key!r}")
            lines[key] = self.line(key_at)
            found[key], at = self.value(at + 1, depth + 1)
            at = self.skip(at)
            if self.text[at : at + 1] == "}":
                break
            if self.text[at : at + 1] != ",":
                self.unexpected(at, "',' or '}'")
            at += 1
        return Located(found, self.line(start)), at + 1

    def items(self, start: int, depth: int) -> tuple[Located, int]:
        found: list[Located] = []
        at = self.skip(start + 1)
        while self.text[at : at + 1] != "]" or found:
            item, at = self.value(at, depth + 1)
            found.append(item)
            at = self.skip(at)
            if self.text[at : at + 1] == "]":
                break
            if self.text[at : at + 1] != ",":
                self.unexpected(at, "',' or ']'")
            at += 1
        return Located(found, self.line(start)), at + 1

    def scalar(self, at: int) -> tuple[Any, int]:
        if at >= len(self.text):
            self.unexpected(at, "a value")
        try:
            return self.decoder.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated") or self.text[error.pos : error.pos + 1] == "\n":
                self.fail(at, "a text without its closing quote")
            if error.pos > at:
                problem = error.msg.removesuffix(" at")
                self.fail(error.pos, f"{problem[0].lower()}{problem[1:]} in a text")
            self.unexpected(at, "a value")
        except ValueError as error:
            # NaN and its like, or a whole number beyond Python's limit of digits.
            self.fail(at, str(error))

    def unexpected(self, at: int, wanted: str) -> NoReturn:
        rest = self.text[at : at + 20].split("\n")[0]
        self.fail(
            at, f"expected {wanted}, found {rest!r}" if at < len(self.text) else f"it ends where {wanted} should be"
        )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")
