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
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK = "#010101"
FAINT = "#020202"
RULE = "#030303"
ACCENT = "#040404"
FAIL = "#050505"
WARN = "#060606"
GOOD = "#070707"
_VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    RULE: "var(--rule)",
    ACCENT: "var(--accent)",
    FAIL: "var(--fail)",
    WARN: "var(--warn)",
    GOOD: "var(--good)",
}

WIDTH, HEIGHT = 360, 160
"""In CSS pixels: a phone shows a picture at its full size, and two stand side by side elsewhere."""

_POINTS = 72
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's own letters
    "svg.hashsalt": "perfsuite",  # the same picture is the same text
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

_numbers = itertools.count(1)
_REFERENCE = re.compile(r"#([\w.-]+)")
_NUMBER = re.compile(r"-?\d+\.\d+")
_COLOR = re.compile("|".join(_VARIABLES))
_FONT_FAMILY = re.compile(r"font-family: [^;]*;? ?")

themed = functools.partial(matplotlib.rc_context, _SETTINGS)
"""A context manager, or a decorator, for drawing."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawing with its title, and lines about it: (class of the style sheet, text)."""

    drawn: Markup
    title: str
    lines: tuple[tuple[str, str], ...]
    test: str = ""

    @classmethod
    def of(cls, drawn: Markup, title: str, lines: Sequence[str]) -> "Picture":
        """A picture with faint lines."""
        return cls(drawn, title, tuple(("faint", line) for line in lines))


def blank(width: int = WIDTH, height: int = HEIGHT, margins: tuple[int, int, int, int] | None = None) -> Figure:
    """An empty figure of so many CSS pixels, with margins (left, right, top, bottom) around its axes.

    Without margins it fits its axes in by itself, which takes twice as long.
    """
    size = (width / _POINTS, height / _POINTS)
    if margins is None:
        return Figure(figsize=size, layout="constrained")
    figure = Figure(figsize=size)
    left, right, top, bottom = margins
    figure.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height, wspace=0.04)
    return figure


def drawable(text: str, most: int = 200) -> str:
    """A name as a picture can show it: in characters that XML knows, and at most `most` of them."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def quiet(axes: Axes, *, ticks: int = 4) -> None:
    """Few ticks, so that labels do not touch on a small picture."""
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "linear":
            axis.set_major_locator(MaxNLocator(ticks))


def svg(figure: Figure, label: str) -> Markup:
    """The figure as an element for a page. `label` says in words what it shows, for those who do not see it."""
    written = io.StringIO()
    with themed(), warnings.catch_warnings():
        # Its own font lacks a letter of a name; the page's has it.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())
    # The number keeps the ids of one picture apart from those of all others in the page.
    _clean(root, prefix=f"p{next(_numbers)}-")
    width = round(float(figure.get_figwidth()) * _POINTS)
    root.attrib = {
        "class": "picture",
        "viewBox": root.attrib["viewBox"],
        "style": f"width: {width}px",
        "role": "img",
        "aria-label": label,
    }
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # it escapes text and attributes


def _clean(root: ElementTree.Element, prefix: str) -> None:
    """Leave what is drawn, without namespaces and metadata, in the page's colours, with ids of its own."""
    used = {name for each in root.iter() for value in each.attrib.values() for name in _REFERENCE.findall(value)}
    for element in root.iter():
        element.tag = _local(element.tag)
        element[:] = [
            child
            for child in element
            if _local(child.tag) not in ("metadata", "style") and (len(child) or child.attrib or child.text)
        ]
        element.tail = None
        if element.tag != "text" and element.text and not element.text.strip():
            element.text = None
        kept = {}
        for name, value in element.attrib.items():
            name = _local(name)
            if name == "id":
                if value not in used:
                    continue
                value = prefix + value
            elif name in ("href", "clip-path"):
                value = value.replace("#", f"#{prefix}")
            elif name in ("d", "points", "transform", "x", "y", "width", "height"):
                value = _NUMBER.sub(lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), value)
                value = " ".join(value.split())
            elif name == "style":
                value = _COLOR.sub(lambda match: _VARIABLES[match[0]], _FONT_FAMILY.sub("", value))
            kept[name] = value
        element.attrib = kept


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
