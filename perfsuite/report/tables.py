"""What every page of the terminal shares: colors, names of a limited length, and the table of results."""

import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence

from perfsuite.gate.messages import change_in_words, evidence_lines, unit_of
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.metric import span
from perfsuite.measure.words import number

Paint = Callable[[str, str], str]
"""A text in a style: `uncolored` leaves it as it is, `colored` adds the codes of a terminal."""

_CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36", "faint": "2"}

LONGEST_NAME = 60

PAGE_WIDTH = 160
"""Characters of a line, where the terminal does not say how many it has."""


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


_NARROWEST_NAME = 24
"""Characters. Where less is left for the names, the table has no intervals."""

_GAP = 2
"""Characters between two columns, and before a name."""

_COLUMNS = ("metric", "value", "against", "change", "verdict")


def metric_table(results: Sequence[Result], width: int = PAGE_WIDTH) -> list[tuple[str, Result | None]]:
    """The lines of the table, each with its result; those of its head and of the tests' ids have none.

    No line is longer than `width` characters, where the values alone are not: a name that does not fit beside its
    values stands above them.
    """
    with_intervals, without = (
        [_COLUMNS, *(_cells(result, intervals=each) for result in results)] for each in (True, False)
    )
    head, *rows = with_intervals if _left(with_intervals, width) >= _NARROWEST_NAME else without
    longest = max(_left([head, *rows], width), len(_COLUMNS[0]))
    names = [result.metric.title for result in results]
    named = [
        (" " * _GAP + name if len(name) <= longest else "", *row[1:]) for name, row in zip(names, rows, strict=True)
    ]
    top, body = by_test(head, named, [result.test for result in results])
    lines: list[tuple[str, Result | None]] = [(top, None)]
    for line, index in body:
        result = None if index is None else results[index]
        above = line if index is None else " " * _GAP + names[index] if len(names[index]) > longest else ""
        lines += [(part, result) for part in textwrap.wrap(above, width, subsequent_indent=" " * _GAP)]
        lines += [] if index is None else [(line, result)]
    return lines


def _cells(result: Result, *, intervals: bool) -> tuple[str, ...]:
    """A row of the table, as yet without the name."""
    metric = result.metric
    value = f"{span(metric.value, metric.interval if intervals else None)} {unit_of(metric.value, metric)}"
    against = "" if result.baseline is None else number(result.baseline)
    if result.source == "budget" and result.limit is not None:
        against = f"{number(result.limit)} (budget)"
    missing = result.verdict == Verdict.MISSING
    return "", "" if missing else value, against, change_in_words(result), str(result.verdict)


def _left(rows: Sequence[Sequence[str]], width: int) -> int:
    """The characters that the other columns leave for the names."""
    return width - _GAP - sum(max(map(len, cells)) + _GAP for cells in list(zip(*rows, strict=True))[1:])


def result_lines(results: Sequence[Result], paint: Paint = uncolored) -> Iterator[str]:
    """The lines of the table in the colors of their verdicts, each with what explains it below."""
    for line, result in metric_table(results):
        yield paint(line, result.verdict.color if result else "")
        yield from (f"      {text}" for text in (evidence_lines(result) if result else ()))
