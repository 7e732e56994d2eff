"""Pictures as SVG inside a page: matplotlib draws them in the page's own colours and letters, light or dark.

Draw inside `themed()`, and only in the colours below: they stand for the page's, which the style sheet sets for light
and dark.
"""

import dataclasses
import functools
import io
import itertools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from perfsuite.measure.words import printable

INK = "#010101"
FAINT = "#020202"
RULE = "#030303"
ACCENT = "#040404"
FAIL = "#050505"
_VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    RULE: "var(--rule)",
    ACCENT: "var(--accent)",
    FAIL: "var(--fail)",
}

WIDTH, HEIGHT = 360, 160
"""In CSS pixels: a phone shows a picture at its full size, and two stand side by side elsewhere."""

_POINTS = 72
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's own letters
    "text.parse_math": False,  # a name may hold dollars
    "font.size": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": FAINT,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "lines.linewidth": 1.5,
}

_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

_numbers = itertools.count(1)


themed = functools.partial(matplotlib.rc_context, _SETTINGS)
"""A context manager, or a decorator, for drawing."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawing with its title, and lines about it."""

    drawn: Markup
    title: str
    lines: Sequence[str]


def blank(margins: tuple[int, int, int, int], width: int = WIDTH, height: int = HEIGHT) -> Figure:
    """An empty figure, in CSS pixels, with margins (left, right, top, bottom) around its axes.

    Constrained layout would fit the axes in by itself, and takes twice as long.
    """
    figure = Figure(figsize=(width / _POINTS, height / _POINTS))
    left, right, top, bottom = margins
    figure.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height, wspace=0.04)
    return figure


def drawable(text: str, most: int = 200) -> str:
    """A name as a picture can show it: in characters that XML knows, and at most `most` of them."""
    shown = printable(text, "?")
    return shown if len(shown) <= most else f"{shown[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def quiet(axes: Axes) -> None:
    """Few ticks, so that labels do not touch on a small picture."""
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "linear":
            axis.set_major_locator(MaxNLocator(4))


def svg(figure: Figure, label: str) -> Markup:
    """The figure as an element for a page, in the page's colours. `label` describes it for those who do not see it."""
    written = io.StringIO()
    # A salt of its own keeps the ids of one picture apart from those of all others in the page.
    salt = matplotlib.rc_context({"svg.hashsalt": f"perfsuite-{next(_numbers)}"})
    with themed(), salt, warnings.catch_warnings():
        # Matplotlib's own font may lack a letter of a name; the page's has it.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(written, format="svg", transparent=True, metadata=_NO_METADATA)
    attributes, _, content = written.getvalue().partition("<svg ")[2].partition(">")
    view = re.findall(r'viewBox="[^"]*"', attributes)[0]
    for pattern, replacement in _CLEANED:
        content = re.sub(pattern, replacement, content, flags=re.DOTALL)
    width = round(float(figure.get_figwidth()) * _POINTS)
    start = f'<svg class="picture" {view} style="width: {width}px" role="img" aria-label="{escape(label)}">'
    return Markup(start + content)  # matplotlib escapes text and attributes


def _rounded(attribute: re.Match[str]) -> str:
    """Numbers with two decimals: a hundredth of a pixel."""
    text = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), attribute[0])
    return " ".join(text.split())


_CLEANED: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"<defs>\s*<style.*?</defs>|<!--.*?-->|<metadata>.*?</metadata>", ""),
    (r'<g id="[^"]*"', "<g"),
    (r'xlink:href="', 'href="'),
    (r"font-family: [^;\"]*;? ?", ""),
    ("|".join(_VARIABLES), lambda found: _VARIABLES[found[0]]),
    (r'(?<=\s)(?:d|points|transform|x|y|width|height)="[^"]*"', _rounded),
    (r">\s+<", "><"),
    (r"<g></g>", ""),
]
"""What is replaced in matplotlib's text of a picture: its styles, metadata, ids of groups, colours and long numbers."""
