"""Elements of tuples that a text names without an instruction: `%state#1` for `get-tuple-element(%state), index=1`.

XLA dumps texts in that form since jaxlib 0.12 (`xla_dump_compact_gte`). The reader adds the instructions that they
stand for, so that what follows a value through a program needs to know of one form only.
"""

import re
from collections.abc import Iterator
from typing import Final

_MARK: Final = "#"
_NUMBER: Final = re.compile("[0-9]{1,9}")
_COMMENT: Final = re.compile(r"/\*.*?\*/")
_OPENING: Final = "([{"
_CLOSING: Final = ")]}"


def named_elements(operand: str) -> Iterator[tuple[str, str, int]]:
    """Of `state#1#0`: ("state#1", "state", 1), then ("state#1#0", "state#1", 0). Nothing of a name without marks."""
    name, *numbers = operand.split(_MARK)
    for number in numbers:
        if not _NUMBER.fullmatch(number):
            return
        whole, name = name, f"{name}{_MARK}{number}"
        yield name, whole, int(number)


def elements_of(shape: str) -> list[str]:
    """The shapes in that of a tuple, as they stand: of `(s32[], (f32[2]{0}, f32[3]))` two. None of an array's."""
    text = _COMMENT.sub("", shape)
    if not text.startswith("("):
        return []
    found, depth, start = [], 0, 1
    for at, letter in enumerate(text):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if depth == 0 or (depth == 1 and letter == ","):
            found.append(text[start:at].strip())
            start = at + 1
    return list(filter(None, found))
