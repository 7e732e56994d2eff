"""`report.html`: one page with everything in a report, and pictures of the comparisons and the lines.

The page is complete in itself. Its content security policy lets a browser load nothing, and run only the script whose
hash it names. Pictures are inline SVG in the page's colors, which its style sheet sets for light and dark.
"""

import base64
import dataclasses
import hashlib
import importlib.resources
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

import jinja2
import numpy as np
from markupsafe import Markup

from perfsuite.gate import messages
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.metric import Interval, span
from perfsuite.measure.words import number, percent, plural, printable
from perfsuite.report.model import Report, verdict_counts_of, why
from perfsuite.report.perfetto import TIMELINES
from perfsuite.session.records import Block, Distribution, FittedLine, ProgramRecord, TestRecord

_EXPLAINED = (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE, Verdict.IMPROVED)
"""The page lists the reasons of these verdicts."""

_TEMPLATES = importlib.resources.files("perfsuite.report").joinpath("templates")


def html(report: Report) -> str:
    """The page. Every text of the report is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": breakable,
        "css": lambda verdict: str(verdict).replace(" ", "-"),
        "number": lambda value: "" if value is None else number(value),
        "time": lambda blocks, name: "unknown" if math.isinf(us := _total(blocks, name)) else number(us),
        "path": quote,
        "percent": percent,
        "plural": plural,
    }
    script = _source("page.js")
    return environment.get_template("report.html").render(
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(_source("style.css")),
        report=report,
        anchors={test.test: f"t{place}" for place, test in enumerate(report.tests, 1)},
        results=[each for verdict in reversed(Verdict) for each in report.of_verdict(verdict)],
        explained={
            verdict: [each for each in report.of_verdict(verdict) if messages.reason(each)] for verdict in _EXPLAINED
        },
        counts_of=verdict_counts_of,
        pictures_of=pictures_of,
        parts_of=parts_of,
        trace_file=TIMELINES,
        span=span,
        messages=messages,
        why=why,
    )


def breakable(name: str) -> Markup:
    """A test's id that may be broken between its words."""
    return Markup("<wbr>").join(re.split(r"(?<=[/_:])(?![/_:])", name))  # it escapes the parts


def _source(name: str) -> str:
    # With the line ends that the hash of the script was taken with, whatever the checkout made of them.
    return "\n".join(_TEMPLATES.joinpath(name).read_text(encoding="utf-8").splitlines()) + "\n"


WIDTH, HEIGHT = 360, 160
"""In CSS pixels: a phone shows a picture at its full size, and two stand side by side elsewhere."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 6, 8, 36
"""Around the axes, for their labels."""

_TAILS = 2.5
"""How far the picture extends beyond the middle half of the ratios, in widths of that half: single calls that stall
would otherwise flatten the rest."""

_FAR = 1.5
"""A limit or baseline farther from the ratios, in their widths, is in the lines beside the picture alone."""

_DASHED, _DOTTED = "5 3", "1 2"

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawing with its title, and lines about it."""

    title: str
    drawn: Markup
    lines: Sequence[str]


def pictures_of(test: TestRecord) -> Iterator[Picture]:
    """The pictures of a test, with the limits and baselines of its metrics."""
    for each in test.distributions:
        if each.ratios:
            yield ratios(each, [result for result in test.results if result.metric.title == each.title])
    baselines = {result.metric.title: result.baseline for result in test.results}
    for line in test.lines:
        intercept = f"{line.title.removesuffix(' per unit')} intercept"
        yield fit(line, baselines.get(line.title), baselines.get(intercept))


def ratios(sampled: Distribution, results: Sequence[Result] = ()) -> Picture:
    """The paired ratios in the order in which they were taken, with their median and its interval."""
    marks = [("limit (dashed)", each.limit, "fail", _DASHED) for each in results if each.limit is not None]
    marks += [("baseline (dotted)", each.baseline, "faint", _DOTTED) for each in results if each.baseline is not None]
    low, high = _ends(sampled)
    far = _FAR * (high - low)
    near = [mark for mark in dict.fromkeys(marks) if low - far <= mark[1] <= high + far]
    low, high = min([low, *(mark[1] for mark in near)]), max([high, *(mark[1] for mark in near)])
    right, margin = sampled.pairs + 1, 0.06 * (high - low)
    plot = _Plot((0, right), (low - margin, high + margin))
    if sampled.interval is not None:
        plot.band(sampled.interval)
    plot.dots(zip(np.linspace(1, sampled.pairs, len(sampled.ratios)), sampled.ratios, strict=True), "accent", 1.5)
    plot.line([(0, sampled.ratio), (right, sampled.ratio)], "ink")
    lines = [
        f"{sampled.candidate}: median {number(sampled.candidate_median_us)} us",
        f"{sampled.reference}: median {number(sampled.reference_median_us)} us",
        plural(sampled.pairs, "pair"),
        *(f"{what}: {number(value)}" for what, value, _, _ in dict.fromkeys(marks)),
    ]
    for _, value, color, dashes in near:
        plot.line([(0, value), (right, value)], color, dashes)
    label = f"paired ratios of {sampled.title}: median {number(sampled.ratio)}"
    return Picture(sampled.title, plot.svg(label, "pairs, in the order taken"), lines)


def fit(line: FittedLine, slope: float | None = None, intercept: float | None = None) -> Picture:
    """The points and the line through them; dotted, the line of the baseline with `slope` and `intercept`."""
    right = max(line.units) * 1.05
    fitted = [(0, line.intercept), (right, line.intercept + line.per_unit * right)]
    heights = [*line.values, *(height for _, height in fitted)]
    plot = _Plot((0, right), (min(0, *heights), max(heights)))
    rounds = f", {line.rounds} rounds" if line.rounds > 1 else ""
    lines = [
        f"{number(line.per_unit)} {line.unit} a unit, and {number(line.intercept)} {line.unit}",
        f"R\N{SUPERSCRIPT TWO} {line.r_squared:.4f}, {plural(len(line.units), 'size')}{rounds}",
    ]
    if slope is not None and intercept is not None:
        plot.line([(0, intercept), (right, intercept + slope * right)], "faint", _DOTTED)
        lines.append(f"baseline (dotted): {number(slope)} {line.unit} a unit")
    plot.line(fitted, "accent")
    plot.dots(zip(line.units, line.values, strict=True), "ink", 2)
    label = f"{line.title}: {number(line.per_unit)} {line.unit} a unit"
    return Picture(line.title, plot.svg(label, f"{line.unit} (up) over units (right)"), lines)


def parts_of(program: ProgramRecord) -> list[tuple[list[Block], list[Block]]]:
    """The operations of a program and of its baseline, by part: those first that add most, and the longest of each."""
    parts: dict[str, tuple[list[Block], list[Block]]] = {}
    for place, timeline in enumerate((program.timeline, program.timeline_before)):
        for block in sorted(timeline.blocks if timeline else (), key=lambda block: -(block.own_us or 0.0)):
            if block.lane != "loops":
                parts.setdefault(block.part, ([], []))[place].append(block)
    return sorted(parts.values(), key=lambda part: -_total(part[0], "added_us"))


def _total(blocks: Iterable[Block], name: str) -> float:
    """Microseconds of several blocks; infinite where that of one is not known."""
    amounts = [getattr(block, name) for block in blocks]
    return math.inf if None in amounts else math.fsum(amounts)


def _ends(sampled: Distribution) -> Point:
    """Where nearly all ratios and the interval of their median lie."""
    lower, upper = np.quantile(sampled.ratios, [0.25, 0.75])
    low = max(min(sampled.ratios), lower - _TAILS * (upper - lower))
    high = min(max(sampled.ratios), upper + _TAILS * (upper - lower))
    interval = sampled.interval or Interval(low, high)
    low, high = min(low, interval.low), max(high, interval.high)
    return (low, high) if high - low >= 1e-6 * high else (low * 0.999, high * 1.001)


class _Plot:
    """Shapes over two axes: what lies outside them is drawn at their edge."""

    def __init__(self, x: Point, y: Point):
        self._x, self._y = x, y
        self._shapes: list[Markup] = []

    def line(self, points: Iterable[Point], color: str, dashes: str = "none") -> None:
        shape = Markup('<polyline points="{}" fill="none" stroke="var(--{})" stroke-dasharray="{}"/>')
        self._shapes.append(
            shape.format(" ".join("{},{}".format(*self._place(*point)) for point in points), color, dashes)
        )

    def dots(self, points: Iterable[Point], color: str, radius: float) -> None:
        shape = Markup('<circle cx="{}" cy="{}" r="{}" fill="var(--{})"/>')
        self._shapes += [shape.format(*self._place(*point), radius, color) for point in points]

    def band(self, heights: Interval) -> None:
        """Shade what lies between two heights."""
        (left, bottom), (right, top) = self._place(self._x[0], heights.low), self._place(self._x[1], heights.high)
        shape = Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="var(--ink)" fill-opacity="0.15"/>')
        self._shapes.append(shape.format(left, top, right - left, round(bottom - top, 2)))

    def svg(self, label: str, below: str) -> Markup:
        """The picture. `label` describes it for those who do not see it; `below` is that of the horizontal axis."""
        texts: list[tuple[float, float, str, str]] = [(WIDTH / 2, HEIGHT - 4, "middle", below)]
        texts += [(self._place(value, 0)[0], HEIGHT - 20, "middle", number(value)) for value in _ticks(*self._x)]
        texts += [(_LEFT - 6, self._place(0, value)[1] + 3, "end", number(value)) for value in _ticks(*self._y)]
        shape = Markup('<text x="{}" y="{}" text-anchor="{}" font-size="10" fill="var(--faint)">{}</text>')
        return Markup(
            '<svg class="picture" viewBox="0 0 {} {}" style="width: {}px" role="img" aria-label="{}">'
            '<path d="{}" fill="none" stroke="var(--rule)"/>{}{}</svg>'
        ).format(
            *(WIDTH, HEIGHT, WIDTH, printable(label, "?")),
            f"M{_LEFT} {_TOP}V{HEIGHT - _BOTTOM}H{WIDTH - _RIGHT}",
            Markup().join(self._shapes),
            Markup().join(shape.format(*text) for text in texts),
        )

    def _place(self, x: float, y: float) -> Point:
        width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
        return (
            round(_LEFT + width * _share(x, self._x), 2),
            round(HEIGHT - _BOTTOM - height * _share(y, self._y), 2),
        )


def _share(value: float, ends: Point) -> float:
    """Where a value lies between two ends: from 0 to 1."""
    low, high = ends
    return min(max((value - low) / (high - low), 0), 1) if high > low else 0.5


def _ticks(low: float, high: float) -> list[float]:
    """Two to five round numbers."""
    if not high > low:
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / 2))
    step = next(size * factor for factor in (1, 2, 5, 10) if (high - low) / (size * factor) <= 4)
    return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
