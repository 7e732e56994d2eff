"""Samples kept for the report's pictures, with --perf-report alone. They are large."""

import dataclasses
from typing import TYPE_CHECKING

from perfsuite.measure.metric import Interval

if TYPE_CHECKING:  # what is kept are plain values, which sessions have that time nothing
    from perfsuite.measure.timing.comparison import Comparison
    from perfsuite.measure.timing.scaling import Scaling

MOST_RATIOS = 300
"""The most pairs that are kept of a comparison: evenly spaced, in the order in which they were taken."""


@dataclasses.dataclass(frozen=True)
class Distribution:
    """The paired ratios of one `perf.compare`, in the order in which they were taken.

    `title` is that of the metric of the ratio. `ratios` are candidate over reference, one a pair, of which there were
    `pairs`; the medians are those of each side alone.
    """

    title: str
    candidate: str
    reference: str
    ratios: tuple[float, ...]
    pairs: int
    ratio: float
    interval: Interval | None
    candidate_median_us: float
    reference_median_us: float


@dataclasses.dataclass(frozen=True)
class FittedLine:
    """The points of one `perf.scaling`, and the line through them: `values` in `unit`, over `units`.

    `title` is that of the metric of the slope, `per_unit`.
    """

    title: str
    unit: str
    units: tuple[float, ...]
    values: tuple[float, ...]
    per_unit: float
    intercept: float
    r_squared: float
    rounds: int


@dataclasses.dataclass(frozen=True)
class ProgramRecord:
    """One program that a test compiled: what its metrics are called, and how it differs from the baseline's.

    `titles` are those of its metrics. `differences` are lines; empty where nothing is different, or where the program
    of the baseline is not in the cache of this machine (`compared` is False). `at_least`, `at_most` and `unestimated`
    are the places of what `Program` calls so.
    """

    label: str
    target: str | None
    device_kind: str
    compiler: str
    partitions: int
    cached: bool
    titles: tuple[str, ...]
    compared: bool = False
    differences: tuple[str, ...] = ()
    at_least: tuple[str, ...] = ()
    at_most: tuple[str, ...] = ()
    unestimated: tuple[str, ...] = ()


def distribution_of(title: str, comparison: "Comparison") -> Distribution:
    """The distribution behind the metric `title`."""
    from perfsuite.measure.timing.block import COLUMNS  # see the top

    column = COLUMNS[comparison.until]
    ratios = comparison.candidate_us[:, column] / comparison.reference_us[:, column]
    pairs = len(ratios)
    kept = ratios if pairs <= MOST_RATIOS else ratios[[i * pairs // MOST_RATIOS for i in range(MOST_RATIOS)]]
    return Distribution(
        title,
        comparison.candidate,
        comparison.reference,
        tuple(_rounded(ratio) for ratio in kept),
        pairs,
        comparison.ratio.value,
        comparison.ratio.interval if comparison.bounded else None,
        _rounded(comparison.candidate_median_us),
        _rounded(comparison.reference_median_us),
    )


def line_of(title: str, scaling: "Scaling") -> FittedLine:
    """The line behind the metric `title`."""
    return FittedLine(
        title,
        "us" if scaling.largest is None else scaling.largest.unit,
        tuple(_rounded(unit) for unit in scaling.units),
        tuple(_rounded(value) for value in scaling.values),
        float(scaling.per_unit.value),
        float(scaling.intercept),
        float(scaling.r_squared),
        int(scaling.rounds),
    )


def _rounded(value: float) -> float:
    """Six significant digits: what is drawn needs no more, and every digit is sent and written."""
    return float(f"{float(value):.6g}")
