"""Pictures as inline SVG: the paired ratios of a comparison, and the line through the sizes of a scaling.

Their colours and letters are the page's, which its style sheet sets for light and dark.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup

from perfsuite.measure.metric import Interval
from perfsuite.measure.words import number, printable
from perfsuite.session.plots import Distribution, FittedLine

WIDTH, HEIGHT = 360, 160
"""In CSS pixels: a phone shows a picture at its full size, and two stand side by side elsewhere."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 6, 8, 36
"""Around the axes, for their labels."""

_GROUPS = 40
"""Most steps in time of a picture of ratios: each stands for the same number of pairs, and for ten or more."""

_TAILS = 2.5
"""How far the picture extends beyond the middle half of the ratios, in widths of that half."""

_FAR = 1.5
"""A limit or baseline farther from the ratios, in their widths, is not drawn; the text beside the picture has it."""

_DASHED, _DOTTED = "5 3", "1 2"

Point = tuple[float, float]


class _Plot:
    """Shapes over two axes: what lies outside them is drawn at their edge."""

    def __init__(self, x: Point, y: Point):
        self._x, self._y = x, y
        self._shapes: list[Markup] = []

    def line(self, points: Iterable[Point], color: str, dashes: str = "none", width: float = 1.2) -> None:
        shape = '<polyline points="{}" fill="none" stroke="var(--{})" stroke-width="{}" stroke-dasharray="{}"/>'
        self._shapes.append(Markup(shape).format(self._placed(points), color, width, dashes))

    def across(self, height: float, color: str, dashes: str = "none") -> None:
        self.line([(x, height) for x in self._x], color, dashes)

    def area(self, points: Iterable[Point], color: str) -> None:
        shape = '<polygon points="{}" fill="var(--{})" fill-opacity="0.2"/>'
        self._shapes.append(Markup(shape).format(self._placed(points), color))

    def dots(self, points: Iterable[Point], color: str) -> None:
        for x, y in map(self._place, points):
            self._shapes.append(Markup('<circle cx="{}" cy="{}" r="2" fill="var(--{})"/>').format(x, y, color))

    def svg(self, label: str, below: str) -> Markup:
        """The picture. `label` describes it for those who do not see it; `below` is that of the horizontal axis."""
        texts: list[tuple[float, float, str, str]] = [(WIDTH / 2, HEIGHT - 4, "middle", below)]
        for value in _ticks(*self._x):
            texts.append((self._place((value, 0))[0], HEIGHT - 20, "middle", number(value)))
        for value in _ticks(*self._y):
            texts.append((_LEFT - 6, self._place((0, value))[1] + 3, "end", number(value)))
        shape = Markup('<text x="{}" y="{}" text-anchor="{}" font-size="10" fill="var(--faint)">{}</text>')
        axes = f"M{_LEFT} {_TOP}V{HEIGHT - _BOTTOM}H{WIDTH - _RIGHT}"
        return Markup(
            '<svg class="picture" viewBox="0 0 {} {}" style="width: {}px" role="img" aria-label="{}">'
            '<path d="{}" fill="none" stroke="var(--rule)"/>{}{}</svg>'
        ).format(
            *(WIDTH, HEIGHT, WIDTH, printable(label, "?"), axes),
            Markup().join(self._shapes),
            Markup().join(shape.format(*text) for text in texts),
        )

    def _placed(self, points: Iterable[Point]) -> str:
        return " ".join(f"{x},{y}" for x, y in map(self._place, points))

    def _place(self, point: Point) -> Point:
        width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
        return (
            round(_LEFT + width * _share(point[0], self._x), 2),
            round(HEIGHT - _BOTTOM - height * _share(point[1], self._y), 2),
        )


def ratios(made: Distribution, limits: Sequence[float], baseline: float | None) -> Markup:
    """The paired ratios in the order in which they were taken: median and middle half, group by group."""
    low, high = _span(made)
    marks = [(limit, "fail", _DASHED) for limit in limits if in_picture(limit, made)]
    if baseline is not None and in_picture(baseline, made):
        marks.append((baseline, "faint", _DOTTED))
    ends = [low, high, *(value for value, _, _ in marks)]
    margin = 0.06 * (max(ends) - min(ends))
    right = made.pairs + 1
    plot = _Plot((0, right), (min(ends) - margin, max(ends) + margin))
    if made.interval is not None:
        bottom, top = made.interval.low, made.interval.high
        plot.area([(0, bottom), (right, bottom), (right, top), (0, top)], "ink")
    plot.across(made.ratio, "ink")
    groups = min(_GROUPS, len(made.ratios) // 10)
    if groups < 5:
        plot.dots(zip(np.linspace(1, made.pairs, len(made.ratios)), made.ratios, strict=True), "accent")
    else:
        at = (np.arange(groups) + 0.5) * made.pairs / groups
        parts = np.array_split(np.asarray(made.ratios), groups)
        lower, middle, upper = np.array([np.quantile(part, [0.25, 0.5, 0.75]) for part in parts]).T
        plot.area([*zip(at, lower, strict=True), *zip(at[::-1], upper[::-1], strict=True)], "accent")
        plot.line(zip(at, middle, strict=True), "accent", width=1.5)
    for mark in marks:
        plot.across(*mark)
    return plot.svg(f"paired ratios of {made.title}: median {number(made.ratio)}", "pairs, in the order taken")


def in_picture(value: float, made: Distribution) -> bool:
    """Whether a limit or baseline is in the picture of a distribution."""
    low, high = _span(made)
    return low - _FAR * (high - low) <= value <= high + _FAR * (high - low)


def _span(made: Distribution) -> Point:
    """Where nearly all ratios lie: single calls that stall would otherwise flatten the rest."""
    lower, upper = np.quantile(made.ratios, [0.25, 0.75])
    low = max(min(made.ratios), lower - _TAILS * (upper - lower))
    high = min(max(made.ratios), upper + _TAILS * (upper - lower))
    interval = made.interval or Interval(low, high)
    low, high = min(low, interval.low), max(high, interval.high)
    return (low, high) if high - low >= 1e-6 * high else (low * 0.999, high * 1.001)


def line(made: FittedLine, slope: float | None = None, intercept: float | None = None) -> Markup:
    """The points and the line through them; dotted, the line of the baseline with `slope` and `intercept`."""
    right = max(made.units) * 1.05
    fitted = [(0, made.intercept), (right, made.intercept + made.per_unit * right)]
    heights = [*made.values, *(height for _, height in fitted)]
    plot = _Plot((0, right), (min(0, *heights), max(heights)))
    if slope is not None and intercept is not None:
        plot.line([(0, intercept), (right, intercept + slope * right)], "faint", _DOTTED)
    plot.line(fitted, "accent", width=1.5)
    plot.dots(zip(made.units, made.values, strict=True), "ink")
    label = f"{made.title}: {number(made.per_unit)} {made.unit} a unit"
    return plot.svg(label, f"{made.unit} (up) over units (right)")


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
