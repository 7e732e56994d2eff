"""The one way in which numbers, intervals, counts and tables are written, in messages and in reports."""

import itertools
import math
import re
from collections.abc import Iterable, Sequence


def number(value: float) -> str:
    """Four significant digits, but whole numbers in full: 1.062, 586,900, 12,345,678."""
    if not math.isfinite(value):  # a limit of more than a float can hold
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if 1e4 <= abs(rounded) < 1e15 else f"{rounded:,.4g}"


def printable(text: str, instead: str = "") -> str:
    r"""The text without what would control a terminal, or begin a line of its own.

    `instead` takes the place of each such character; the way Python writes it (`\x1b`) where nothing is given, so that
    two names do not become one.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else instead or each.encode("unicode_escape").decode() for each in text)


def plural(count: int, what: str, several: str = "") -> str:
    """`1 metric`, `1,021 metrics`; `several` is the plural where an s does not make it."""
    return f"{count:,} {what if count == 1 else several or what + 's'}"


def in_a_line(error: Exception) -> str:
    """`ValueError: what it says`, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


FOLDED_FROM = 3
"""So many places of which the same is said are counted, not listed."""


def leaf_lines(lines: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of a place and what is said of it, with repeats folded: `14 leaves of args[0]` is then the place.

    A place is the path of an argument's leaf, such as "args[0]['kernel']".
    """
    places: dict[str, list[str]] = {}
    for place, what in lines:
        places.setdefault(what, []).append(place)
    pairs = []
    for what, paths in places.items():
        counted = [f"{len(paths):,} leaves of {_trunk(paths)}"]
        pairs += [(place, what) for place in (counted if len(paths) >= FOLDED_FROM else paths)]
    return pairs


def _trunk(paths: Sequence[str]) -> str:
    """The longest path that all of these are below."""
    parts = [re.findall(r"^[^.\[]+|\.[^.\[]+|\[[^\]]*\]", path) for path in paths]
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))
    return "".join(level[0] for level in shared) or "the arguments"


def percent(share: float, digits: int = 3) -> str:
    """`+2.35 %`, `-50 %`, `+12,300 %`, `0 %`: with the sign, and so many significant digits."""
    rounded = float(f"{100 * share:.{digits}g}")
    return f"{rounded:+,{'.0f' if abs(rounded) >= 1e6 else 'g'}} %" if rounded else "0 %"


def change(share: float | None, digits: int = 2) -> str:
    """A relative change: `+7 %`; `x 12` from ten times on, `x -12` too; `-99.9 %`; `from 0`; empty for None."""
    if share is None:
        return ""
    if math.isinf(share):
        return "from 0"
    if share >= 9 or share <= -11:
        return f"x {number(share + 1)}"
    # Near -100 % two digits would not show what is left.
    return percent(share, 4 if share < -0.985 else digits)
