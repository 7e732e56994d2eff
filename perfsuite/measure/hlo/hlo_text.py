"""Finds where the parts of an HLO text end: brackets, texts in quotes, attributes and their values."""

import re
from typing import Final, NoReturn

# What only the brackets of a value need looking at for: everything else, and texts in quotes, in one match.
_UNBRACKETED: Final = re.compile(r'(?:[^"()\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_UNBRACED: Final = re.compile(r'(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_QUOTED: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_BARE: Final = re.compile(r'[^,\n"()\[\]{}]*+')
CLOSING: Final = {"(": ")", "[": "]", "{": "}"}

# The name of an attribute, and its value where that is a word, a text in quotes or one pair of braces.
ATTRIBUTE: Final = re.compile(
    r',\s*+([A-Za-z_][\w.-]*+)=(?:([^,\n"()\[\]{}]++|"(?:[^"\\]++|\\.)*+"'
    r'|\{(?:[^"()\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+\})(?=[,\n]))?',
    re.ASCII | re.DOTALL,
)
_ESCAPE: Final = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class HloError(ValueError):
    """What is wrong with a text, and the line (from 1) on which it is wrong."""

    def __init__(self, problem: str, line: int):
        super().__init__(f"line {line} of the HLO text: {problem}")
        self.problem = problem
        self.line = line


class Scanner:
    """A text. A method that takes a position starts there, and gives one after it."""

    def __init__(self, text: str):
        self.text = text

    def fail(self, at: int, problem: str) -> NoReturn:
        raise HloError(problem, self.text.count("\n", 0, at) + 1)

    def unexpected(self, at: int, wanted: str) -> NoReturn:
        if at >= len(self.text):
            self.fail(at, f"cut short: it ends where {wanted} should be")
        self.fail(at, f"expected {wanted}, found {self.text[at : at + 40].splitlines()[0]!r}")

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
            elif first in CLOSING:
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
        open_brackets = [CLOSING[text[at]]]
        while True:
            at = skip(text, at + 1).end()  # type: ignore[union-attr]  # it matches the empty text too
            bracket = text[at : at + 1]
            if bracket == open_brackets[-1]:
                open_brackets.pop()
                if not open_brackets:
                    return at + 1
            elif bracket in CLOSING:
                open_brackets.append(CLOSING[bracket])
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


def unescaped(text: str) -> str:
    """A quoted text's content, in which XLA writes what is not ASCII as octal bytes of UTF-8."""
    if "\\" not in text:
        return text

    def character(escape: re.Match[bytes]) -> bytes:
        code = escape[1]
        return bytes([int(code, 8) & 255]) if len(code) == 3 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(character, text.encode("utf-8", "replace")).decode("utf-8", "replace")
