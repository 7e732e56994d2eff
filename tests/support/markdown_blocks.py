"""Reads the documentation as its tests do: code blocks, what stands above them, links, and output compared with what was
printed.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADED_BY_FILE = re.compile(r"(?:^|\n)`([\w./-]+)`:\n\n?$")
_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)*(?:e[-+]?\d+)?"
_MEASURED = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)*|\d+(?:\.\d+)+)(?:e[-+]?\d+)?")
_LINE_OF_FILE = re.compile(r"(?<=\.py):\d+")
_RULE = re.compile(r"([=_-])\1{2,}")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: `language`, `text`, the file that a line such as "`steps.py`:" above it names, and its line."""

    language: str
    text: str
    file: str | None
    line: int


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = []
    for match in _FENCE.finditer(text):
        headed = _HEADED_BY_FILE.search(text, 0, match.start())
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(match[1], match[2], headed[1] if headed else None, line))
    return found


def pages() -> list[Path]:
    """The pages at the top, and every page of the documentation."""
    return [*sorted(ROOT.glob("[A-Z]*.md")), *sorted(DOCS.rglob("*.md"))]


def difference(expected: str, printed: str) -> str | None:
    """What of `expected` was not printed, in words; None where all of it was.

    The lines of `expected` stand one after another in what was printed. `...` stands for any text of a line, and alone
    on a line for any lines. A number with a decimal point or a thousands separator was measured: it stands for any
    number. Other numbers are exact, but for the line after `.py:`. Blanks count as one, and so do the signs of a rule.
    Lines that were printed before the first and after the last need not be shown.
    """
    said = "".join(f"{each}\n" for line in printed.splitlines() if (each := _squeezed(line)))
    pattern = "^"
    for line in expected.splitlines():
        if wanted := _squeezed(line):
            pattern += r"(?:.*\n)*?" if wanted == "..." else f"{_pattern(wanted)}\n"
            if not re.search(pattern, said, re.MULTILINE):
                return f"was not printed there: {line}"
    return None


def links(text: str) -> Iterator[str]:
    """The targets of a page's links and pictures."""
    yield from re.findall(r"\]\(([^()\s]+)\)", _FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#{1,6} +(.*?) *$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _squeezed(line: str) -> str:
    return _RULE.sub(r"\1\1\1", re.sub(r"\s+", " ", line)).strip()


def _pattern(line: str) -> str:
    parts = []
    for part in re.split(r"(\.\.\.)", line):
        if part == "...":
            parts.append(".*")
            continue
        position = 0
        for match in re.finditer(f"{_LINE_OF_FILE.pattern}|{_MEASURED.pattern}", part):
            parts.append(re.escape(part[position : match.start()]))
            parts.append(r":\d+" if match[0].startswith(":") else _NUMBER)
            position = match.end()
        parts.append(re.escape(part[position:]))
    return "".join(parts)
