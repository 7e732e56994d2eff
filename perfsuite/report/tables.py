"""What every page of the terminal shares: colors, names of a limited length, and tables of tests."""

import itertools
import os
import sys
from collections.abc import Callable, Sequence

Paint = Callable[[str, str], str]
"""A text in a style: `uncolored` leaves it as it is, `colored` adds the codes of a terminal."""

_CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36", "faint": "2"}

LONGEST_NAME = 60


def uncolored(text: str, style: str) -> str:
    """The text alone."""
    return text


def colored(text: str, style: str) -> str:
    """The text with the codes of a terminal; as it is for the style ""."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if text and style else text


def style() -> Paint:
    """Colors on a terminal that has them, unless NO_COLOR (https://no-color.org) is set; else the text alone.

    From here on the standard output writes a question mark for a letter that it cannot encode.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    on_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return colored if on_terminal and not os.environ.get("NO_COLOR") else uncolored


def clipped(name: str, most: int = LONGEST_NAME) -> str:
    """A name, cut in the middle where it would push the other columns off the screen."""
    half = (most - 3) // 2
    return name if len(name) <= most else f"{name[: most - 3 - half]}...{name[-half:]}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, one for each row, with two spaces between columns."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def by_test(
    columns: Sequence[str], rows: Sequence[Sequence[str]], tests: Sequence[str]
) -> tuple[str, list[tuple[str, int | None]]]:
    """A table in which each test's id stands above its rows: the head, then (line, index of the row, None for an id).

    A row of the test "" belongs to no test.
    """
    head, *body = aligned([columns, *rows])
    lines: list[tuple[str, int | None]] = []
    above = ""
    for index, (test, line) in enumerate(zip(tests, body, strict=True)):
        if test and test != above:
            lines.append((test, None))
            above = test
        lines.append((line, index))
    return head, lines
