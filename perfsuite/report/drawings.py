"""What a report draws: ratios of a comparison, a line through sizes, one metric of many variants."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from perfsuite.measure.metric import Interval
from perfsuite.measure.words import number
from perfsuite.report.model import Row
from perfsuite.report.pictures import (
    ACCENT,
    FAIL,
    FAINT,
    INK,
    RULE,
    blank,
    drawable,
    quiet,
    svg,
    themed,
)
from perfsuite.session.plots import Distribution, FittedLine

_GROUPS = 40
"""Most steps in time of a picture of ratios: each stands for the same number of pairs."""

_LEAST_OF_GROUP = 10

_MARGINS = (48, 6, 6, 34)
_LETTER = 6.0
"""The approximate width of a letter of a label, in pixels."""

_TAILS = 2.5
"""How far the picture extends beyond the middle half of the ratios, in widths of that half."""

_FAR = 1.5
"""A limit or baseline farther from the ratios, in their widths, is not drawn; the text beside the picture has it."""

_LOGARITHMIC = 20
"""The ratio of the largest value to the smallest from which an axis is logarithmic."""

_DASHED, _DOTTED = (0, (5, 3)), (0, (1, 2))


@themed()
def distribution(made: Distribution, limits: Sequence[float], baseline: float | None) -> Markup:
    """The paired ratios in the order in which they were taken, and how they are spread."""
    ratios = np.asarray(made.ratios)
    low, high = _span(ratios, made.interval)
    marks = [(limit, FAIL, _DASHED) for limit in limits if in_picture(limit, made)]
    if baseline is not None and in_picture(baseline, made):
        marks.append((baseline, FAINT, _DOTTED))
    figure = blank(_MARGINS)
    over_time, spread = figure.subplots(1, 2, sharey=True, width_ratios=(5, 2))
    _through_time(over_time, ratios, made.pairs)
    counts, bins = np.histogram(ratios, np.linspace(low, high, 31))
    spread.stairs(counts, bins, orientation="horizontal", fill=True, color=ACCENT, alpha=0.55, linewidth=0)
    for axes in (over_time, spread):
        if made.interval is not None:
            axes.axhspan(made.interval.low, made.interval.high, color=INK, alpha=0.12, linewidth=0)
        axes.axhline(made.ratio, color=INK, linewidth=1)
        for value, color, style in marks:
            axes.axhline(value, color=color, linewidth=1.2, linestyle=style)
    ends = [low, high, *(value for value, _, _ in marks)]
    margin = 0.06 * (max(ends) - min(ends))
    over_time.set_ylim(min(ends) - margin, max(ends) + margin)
    over_time.set_xlabel("pairs, in the order taken")
    spread.set_xticks([])
    spread.tick_params(left=False)
    spread.spines[["left", "bottom"]].set_visible(False)
    quiet(over_time)
    return svg(figure, f"paired ratios of {drawable(made.title)}: median {number(made.ratio)}")


def _span(ratios: np.ndarray, interval: Interval | None) -> tuple[float, float]:
    """Where nearly all ratios lie: single calls that stall would otherwise flatten the rest."""
    lower, upper = np.quantile(ratios, [0.25, 0.75])
    low = max(ratios.min(), lower - _TAILS * (upper - lower))
    high = min(ratios.max(), upper + _TAILS * (upper - lower))
    if interval is not None:
        low, high = min(low, interval.low), max(high, interval.high)
    if high - low < 1e-6 * high:
        low, high = low * 0.999, high * 1.001
    return float(low), float(high)


def in_picture(value: float, made: Distribution) -> bool:
    """Whether a limit or baseline is in the picture of a distribution."""
    low, high = _span(np.asarray(made.ratios), made.interval)
    return low - _FAR * (high - low) <= value <= high + _FAR * (high - low)


def _through_time(axes: Axes, ratios: np.ndarray, pairs: int) -> None:
    """Median and middle half of the ratios, group by group; single ones where they are few."""
    groups = min(_GROUPS, len(ratios) // _LEAST_OF_GROUP)
    if groups < 5:
        axes.plot(np.linspace(1, pairs, len(ratios)), ratios, ".", color=ACCENT, markersize=3)
    else:
        at = (np.arange(groups) + 0.5) * pairs / groups
        parts = np.array_split(ratios, groups)
        lower, middle, upper = np.array([np.quantile(part, [0.25, 0.5, 0.75]) for part in parts]).T
        axes.fill_between(at, lower, upper, color=ACCENT, alpha=0.25, linewidth=0)
        axes.plot(at, middle, color=ACCENT)
    axes.set_xlim(0, pairs + 1)


@themed()
def line(made: FittedLine, slope: float | None = None, intercept: float | None = None) -> Markup:
    """The points and the line through them; dotted, the line of the baseline with `slope` and `intercept`."""
    figure = blank(_MARGINS)
    axes = figure.subplots()
    ends = np.array([0.0, max(made.units) * 1.05])
    if slope is not None and intercept is not None:
        axes.plot(ends, intercept + slope * ends, color=FAINT, linewidth=1.2, linestyle=_DOTTED)
    axes.plot(ends, made.intercept + made.per_unit * ends, color=ACCENT)
    axes.plot(made.units, made.values, "o", color=INK, markersize=4)
    axes.set_xlim(0, ends[1])
    axes.set_ylim(bottom=min(0.0, made.intercept, *made.values))
    axes.set_xlabel("units")
    axes.set_ylabel(made.unit)
    quiet(axes)
    return svg(figure, f"{drawable(made.title)}: {number(made.per_unit)} {drawable(made.unit)} a unit")


@themed()
def dots(what: str, named: Sequence[tuple[str, Row]]) -> Markup:
    """One metric of many variants, each a dot with its interval, from left (small) to right."""
    labels = [drawable(name, 24) for name, _ in named]
    left = round(8 + _LETTER * max(map(len, labels)))
    figure = blank((left, 8, 4, 34), height=22 * len(named) + 38)
    axes = figure.subplots()
    for place, (_, each) in enumerate(named):
        color = FAIL if each.verdict == "fail" else ACCENT
        if each.interval is not None and np.isfinite([each.interval.low, each.interval.high]).all():
            axes.plot([each.interval.low, each.interval.high], [place, place], color=color, linewidth=2, alpha=0.5)
        axes.plot(each.value, place, "o", color=color, markersize=5)
        if each.baseline is not None:
            axes.plot(each.baseline, place, "|", color=FAINT, markersize=11)
    values = [each.value for _, each in named]
    if min(values) > 0 and max(values) > _LOGARITHMIC * min(values):
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=min(0.0, *values))
    axes.set_yticks(range(len(named)), labels)
    axes.set_ylim(len(named) - 0.4, -0.6)
    axes.tick_params(left=False, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(named[0][1].unit)
    return svg(figure, f"{drawable(what)} of {len(named)} variants")
