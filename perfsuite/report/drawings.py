"""What a report draws: the ratios of a comparison, a line through sizes, and the same metric of many variants."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from perfsuite.measure.measurement import Interval
from perfsuite.measure.words import number
from perfsuite.report.pictures import ACCENT, FAIL, FAINT, INK, RULE, WIDTH, blank, plain, quiet, svg, themed
from perfsuite.session.plots import Distribution, Line

if TYPE_CHECKING:
    from perfsuite.report.model import Row

_GROUPS = 40
"""Most steps in time of a picture of ratios: each stands for as many pairs."""

_LEAST_OF_GROUP = 10

_MARGINS = (48, 6, 6, 34)
_LETTER = 6.0
"""Pixels that a letter of a label is wide, about."""

_TAILS = 2.5
"""How far the picture goes beyond the middle half of the ratios, in widths of that half."""

_FAR = 1.5
"""A limit or baseline that is farther from the ratios than so many times their width is left out, and said instead."""


@themed()
def distribution(made: Distribution, limits: Sequence[float], baseline: float | None) -> Markup:
    """The paired ratios in the order in which they were taken, and how they are spread."""
    ratios = np.asarray(made.ratios)
    low, high = _span(ratios, made.interval)
    near = [limit for limit in limits if _near(limit, low, high)]
    metric = blank(margins=_MARGINS)
    over_time, spread = metric.subplots(1, 2, sharey=True, width_ratios=(5, 2))
    _through_time(over_time, ratios, made.pairs)
    bins = np.linspace(low, high, 31)
    counts, _ = np.histogram(ratios, bins)
    spread.stairs(counts, bins, orientation="horizontal", fill=True, color=ACCENT, alpha=0.55, linewidth=0)
    ends = [low, high, *near]
    if baseline is not None and _near(baseline, low, high):
        ends.append(baseline)
    for axes in (over_time, spread):
        if made.interval is not None:
            axes.axhspan(made.interval.low, made.interval.high, color=INK, alpha=0.12, linewidth=0)
        axes.axhline(made.ratio, color=INK, linewidth=1)
        if baseline is not None and baseline in ends:
            axes.axhline(baseline, color=FAINT, linewidth=1.2, linestyle=(0, (1, 2)))
        for limit in near:
            axes.axhline(limit, color=FAIL, linewidth=1.2, linestyle=(0, (5, 3)))
    margin = 0.06 * (max(ends) - min(ends))
    over_time.set_ylim(min(ends) - margin, max(ends) + margin)
    over_time.set_xlabel("pairs, in the order taken")
    spread.set_xticks([])
    spread.tick_params(left=False)
    spread.spines[["left", "bottom"]].set_visible(False)
    quiet(over_time)
    return svg(metric, f"paired ratios of {plain(made.title)}: median {number(made.ratio)}")


def _span(ratios: np.ndarray, interval: Interval | None) -> tuple[float, float]:
    """Where nearly all ratios lie: single calls that stall would flatten the rest."""
    lower, upper = np.quantile(ratios, [0.25, 0.75])
    low = max(ratios.min(), lower - _TAILS * (upper - lower))
    high = min(ratios.max(), upper + _TAILS * (upper - lower))
    if interval is not None:
        low, high = min(low, interval.low), max(high, interval.high)
    if high - low < 1e-6 * high:
        low, high = low * 0.999, high * 1.001
    return float(low), float(high)


def outside(made: Distribution) -> int:
    """How many of the ratios are not in the picture."""
    ratios = np.asarray(made.ratios)
    low, high = _span(ratios, made.interval)
    return int(((ratios < low) | (ratios > high)).sum())


def _near(value: float, low: float, high: float) -> bool:
    return low - _FAR * (high - low) <= value <= high + _FAR * (high - low)


def shown(value: float, made: Distribution) -> bool:
    """Whether a limit or baseline is in the picture of a distribution."""
    return _near(value, *_span(np.asarray(made.ratios), made.interval))


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
def line(made: Line, slope: float | None = None, intercept: float | None = None) -> Markup:
    """The points and the line through them; dotted, that of the baseline, where slope and intercept are given."""
    metric = blank(margins=_MARGINS)
    axes = metric.subplots()
    ends = np.array([0.0, max(made.units) * 1.05])
    if slope is not None and intercept is not None:
        axes.plot(ends, intercept + slope * ends, color=FAINT, linewidth=1.2, linestyle=(0, (1, 2)))
    axes.plot(ends, made.intercept + made.per_unit * ends, color=ACCENT)
    axes.plot(made.units, made.values, "o", color=INK, markersize=4)
    axes.set_xlim(0, ends[1])
    axes.set_ylim(bottom=min(0.0, made.intercept, *made.values))
    axes.set_xlabel("units")
    axes.set_ylabel(made.unit)
    quiet(axes)
    return svg(metric, f"{plain(made.title)}: {number(made.per_unit)} {plain(made.unit)} a unit")


@themed()
def dots(what: str, named: Sequence[tuple[str, "Row"]]) -> Markup:
    """One metric of many variants, each a dot with its interval, from left (small) to right."""
    labels = [plain(name, 24) for name, _ in named]
    left = round(8 + _LETTER * max(map(len, labels)))
    metric = blank(WIDTH, 22 * len(named) + 38, margins=(left, 8, 4, 34))
    axes = metric.subplots()
    for place, (_, each) in enumerate(named):
        color = FAIL if each.verdict == "fail" else ACCENT
        if each.interval is not None and np.isfinite([each.interval.low, each.interval.high]).all():
            axes.plot([each.interval.low, each.interval.high], [place, place], color=color, linewidth=2, alpha=0.5)
        axes.plot(each.value, place, "o", color=color, markersize=5)
        if each.baseline is not None:
            axes.plot(each.baseline, place, "|", color=FAINT, markersize=11)
    values = [each.value for _, each in named]
    if min(values) > 0 and max(values) > 20 * min(values):
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
    return svg(metric, f"{plain(what)} of {len(named)} variants")
