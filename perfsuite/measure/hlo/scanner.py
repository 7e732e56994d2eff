"""Finds where the parts of an HLO text end: brackets, texts in quotes, attributes and their values."""

import re
from typing import Final, NoReturn

_QUOTED_TEXT: Final = r'"(?:[^"\\]++|\\.)*+"'
# Everything up to the next bracket in one match, quoted texts included. Of JSON only the braces matter.
_UNBRACKETED: Final = re.compile(rf'(?:[^"()\[\]{{}}]++|{_QUOTED_TEXT})*+', re.DOTALL)
_UNBRACED: Final = re.compile(rf'(?:[^"{{}}]++|{_QUOTED_TEXT})*+', re.DOTALL)
_QUOTED: Final = re.compile(_QUOTED_TEXT, re.DOTALL)
_BARE: Final = re.compile(r'[^,\n"()\[\]{}]*+')
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}

# The name of an attribute, and its value where that is a word, a text in quotes or one pair of braces.
ATTRIBUTE: Final = re.compile(
    rf',\s*+([A-Za-z_][\w.-]*+)=(?:([^,\n"()\[\]{{}}]++|{_QUOTED_TEXT}'
    rf'|\{{(?:[^"()\[\]{{}}]++|{_QUOTED_TEXT})*+\}})(?=[,\n]))?',
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
    """A text. A method that takes a position starts there, and returns the position after what it read."""

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
        if value is not None:
            end = found.end()
        elif key == "backend_config" and self.text.startswith("{", start):
            end = self.closed(start, skip=_UNBRACED)
        else:
            end = self.value(start)
        return key, self.text[start:end], start, end

    def value(self, at: int) -> int:
        """The end of an attribute's value: the next comma or end of line that is in no brackets and no quotes."""
        text = self.text
        while True:
            at = _BARE.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty text too
            first = text[at : at + 1]
            if first == '"':
                quoted = _QUOTED.match(text, at)
                if not quoted:
                    self.fail(at, "cut short: a text without its closing quote")
                at = quoted.end()
            elif first in _CLOSING:
                at = self.closed(at)
            else:
                return at

    def closed(self, at: int, skip: re.Pattern[str] = _UNBRACKETED) -> int:
        """The position after the bracket that closes the one here; `skip` matches what lies between brackets."""
        text, start = self.text, at
        open_brackets = [_CLOSING[text[at]]]
        while open_brackets:
            at = skip.match(text, at + 1).end()  # type: ignore[union-attr]  # it matches the empty text too
            bracket = text[at : at + 1]
            if bracket == open_brackets[-1]:
                open_brackets.pop()
            elif bracket in _CLOSING:
                open_brackets.append(_CLOSING[bracket])
            else:
                # The line named is that of the opening bracket: the error is rarely as far away as where it shows.
                found = {"": "the end", '"': "a text without its closing quote"}.get(bracket, repr(bracket))
                self.fail(start, f"unbalanced brackets: after {text[start]!r} comes {found}")
        return at + 1

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
