"""Where a metric moved, over the versions of its file, and which library versions moved with it.

A save keeps an entry when the new metric agrees with it, so equal entries in a row are one observation. Observations
that are not comparable (another device, processor or unit) are separate runs: no step is searched across them.

A count or a size is exact: any other value is a step. A ratio, a time or an info metric is sampled:
- In a run of `LEAST` or more observations, steps are change points: the best segmentation by squares of the logarithms,
  found by PELT (R. Killick, P. Fearnhead and I. A. Eckley, Journal of the American Statistical Association 107, 2012).
- That cannot segment a shorter run, nor the last one or two observations. There each observation is compared with the
  level before it by the gate's own rule: its interval lies wholly beyond the tolerance of its kind. An info metric has
  no tolerance and takes that of a time.
- In a short run a drift looks like noise. Where every value of the later half lies beyond those of the earlier half,
  the halves are compared by the gate's rule.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal

from perfsuite.gate.baseline import Entry
from perfsuite.gate.environment import version_changes
from perfsuite.gate.verdict import TOLERANCES
from perfsuite.history.comparing import amount, judged, relative_change, why_incomparable
from perfsuite.history.reading import Series

By = Literal["exact", "change point", "gate", "drift"]

LEAST = 6
"""The fewest observations with a change point: two of the smallest segments."""

SMALLEST_SEGMENT = 3
"""In a segment of two, one outlier would be half."""

PENALTY = 18.0
"""What one more change point has to gain, in squares of the noise.

From simulated series without a step: from 6 to 200 observations, the best single split gained more than 16 in one
series of a hundred, whether the noise was normal, of Student's distribution with 4 degrees of freedom, or normal with
one value in twenty five times as far off (1500 series of each). `tests/history/test_steps.py` checks it. A step of 8 %
in 20 observations with 2 % of noise was found in 198 of 200 series: in 183 at its very place, in 14 one beside.
"""

CLIP = 2.0
"""An observation is clipped where it differs by more than this, in noise, from the median of the five around it.

So a single bad save moves no segment. Without it the 99th percentile of the gain above was 50 for noise with outliers.
"""

_WINDOW = 5
_LEAST_NOISE = 1e-3
"""Of logarithms: 0.1 %. The files have six digits, and entries that differ in versions alone have the same value."""

_LAST = 2
_BEYOND = 4.0
"""How far in noise the last observations have to be off, besides what the gate's rule asks."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A metric that moved at `version`, an index into the versions of its history.

    `before` and `after` are the levels on both sides, in `entry.unit`: values of an exact metric, medians of a sampled
    one. `previous` is the last entry of the old level, `entry` the first of the new one. `by` says what found the step;
    a "drift" is placed in its middle, for want of a place.
    """

    test: str
    name: str
    version: int
    before: float
    after: float
    previous: Entry
    entry: Entry
    by: By

    @property
    def change(self) -> float:
        """Relative: 0.02 is 2 % more; infinite from 0."""
        return relative_change(self.before, self.after)

    @property
    def amount(self) -> float:
        """By how much to sort it."""
        return amount(self.change)

    @property
    def worse(self) -> bool:
        """Whether it moved to the bad side."""
        return (self.after > self.before) == (self.entry.better == "lower")

    @property
    def versions(self) -> list[str]:
        """The versions that differ between the two entries: `["jax 0.10.2 -> 0.11.0"]`."""
        return version_changes(self.previous.environment, self.entry.environment)


@dataclasses.dataclass(frozen=True)
class Break:
    """A metric is not comparable with its values before `version`, and why."""

    version: int
    why: str


@dataclasses.dataclass(frozen=True)
class Observation:
    """An entry, and the version that recorded it first."""

    version: int
    entry: Entry


def runs_of(series: Series) -> tuple[list[list[Observation]], list[Break]]:
    """The observations of a metric in runs that are comparable, and what separates the runs."""
    runs: list[list[Observation]] = []
    breaks = []
    last: Entry | None = None
    for version, entry in enumerate(series.entries):
        if entry is None or entry == last:
            continue
        if last is None:
            runs.append([])
        elif why := why_incomparable(last, entry):
            breaks.append(Break(version, why))
            runs.append([])
        runs[-1].append(Observation(version, entry))
        last = entry
    return runs, breaks


def steps_of(series: Series) -> list[Step]:
    """Where the metric moved, oldest first. Needs `ruptures` for a sampled metric of `LEAST` observations or more."""
    return [step for run in runs_of(series)[0] if len(run) > 1 for step in _steps(series, run)]


def version_marks(series: Series) -> list[tuple[int, list[str]]]:
    """Where the library versions of a metric changed: (version, `["jax 0.10.2 -> 0.11.0"]`)."""
    known = [(version, entry) for version, entry in enumerate(series.entries) if entry is not None]
    return [
        (version, changes)
        for (_, last), (version, entry) in itertools.pairwise(known)
        if (changes := version_changes(last.environment, entry.environment))
    ]


def change_points(values: Sequence[float]) -> list[int]:
    """Where the level of a noisy series changes: the index of the first value of each new level.

    `values` are logarithms, or vary by far less than their size. Fewer than `LEAST` values have no change point.
    """
    if len(values) < LEAST:
        return []
    # Here, not above: reading the history of exact metrics must start fast.
    import numpy as np
    import ruptures

    noise = _noise(values)
    clipped = np.array(_clipped(values, CLIP * noise))
    signal = (clipped - statistics.median(values)) / noise
    # The linear kernel's cost is that of squares, and this is PELT in C.
    found = ruptures.KernelCPD(kernel="linear", min_size=SMALLEST_SEGMENT).fit(signal[:, None]).predict(pen=PENALTY)
    return [int(place) for place in found[:-1]]


def _steps(series: Series, run: Sequence[Observation]) -> list[Step]:
    if run[0].entry.kind in ("count", "size"):
        return [
            _step(series, [before], [after], "exact")
            for before, after in itertools.pairwise(run)
            if before.entry.value != after.entry.value
        ]
    if len(run) < LEAST:
        return _by_the_gate(series, run)
    levels = _levels(run)
    edges = [0, *change_points(levels), len(run)]
    parts = [run[start:end] for start, end in itertools.pairwise(edges)]
    steps = [_step(series, old, new, "change point") for old, new in itertools.pairwise(parts)]
    return steps + _at_the_end(series, parts[-1], levels) or _drift(series, run)


def _by_the_gate(series: Series, run: Sequence[Observation]) -> list[Step]:
    """Compare each observation with the first one of the level before it."""
    steps = []
    level = [run[0]]
    for observation in run[1:]:
        if _moved(level[0].entry, observation.entry):
            steps.append(_step(series, level, [observation], "gate"))
            level = []
        level.append(observation)
    return steps


def _at_the_end(series: Series, part: Sequence[Observation], values: Sequence[float]) -> list[Step]:
    """A step at the last one or two observations, which are too few for a segment."""
    body = part[:-_LAST]
    if len(body) < SMALLEST_SEGMENT:
        return []
    far = _BEYOND * _noise(values)
    values_of_part = values[len(values) - len(part) :]
    middle = statistics.median(values_of_part[: len(body)])
    level = _level_entry(body)
    for count in (_LAST, 1):
        last = values_of_part[-count:]
        alike = min(last) > middle + far or max(last) < middle - far
        if alike and all(_moved(level, each.entry) for each in part[-count:]):
            return [_step(series, part[:-count], part[-count:], "gate")]
    return []


def _drift(series: Series, run: Sequence[Observation]) -> list[Step]:
    """A metric that moved little by little: every value of one half lies beyond the other half."""
    halves = run[: len(run) // 2], run[len(run) // 2 :]
    old, new = ([each.entry.value for each in half] for half in halves)
    apart = max(old) < min(new) or max(new) < min(old)
    return [_step(series, *halves, "drift")] if apart and _moved(*map(_level_entry, halves)) else []


def _moved(level: Entry, entry: Entry) -> bool:
    if entry.kind != "info":
        return judged(level, entry)[0] in ("worse", "better")
    return abs(relative_change(*sorted((level.value, entry.value), key=abs))) > TOLERANCES["time"]


def _level_entry(part: Sequence[Observation]) -> Entry:
    """The median of a level, as an entry without an interval."""
    return dataclasses.replace(part[-1].entry, value=_median(part), interval=None)


def _step(series: Series, old: Sequence[Observation], new: Sequence[Observation], by: By) -> Step:
    version, entry = new[0].version, new[0].entry
    return Step(series.test, series.name, version, _median(old), _median(new), old[-1].entry, entry, by)


def _median(part: Sequence[Observation]) -> float:
    return statistics.median(each.entry.value for each in part)


def _levels(run: Sequence[Observation]) -> list[float]:
    """Logarithms; where a value is not above 0, the values relative to the largest."""
    values = [each.entry.value for each in run]
    if min(values) > 0:
        return [math.log(value) for value in values]
    largest = max(map(abs, values)) or 1.0
    return [value / largest for value in values]


def _noise(values: Sequence[float]) -> float:
    """From the differences between neighbours, and between theirs, which a step hardly moves."""
    differences = [later - value for value, later in itertools.pairwise(values)]
    differences += [later - value for value, later in zip(values, values[2:], strict=False)]
    # 1.4826: from the median of absolute values to a normal distribution's standard deviation.
    return max(statistics.median(map(abs, differences)) * 1.4826 / math.sqrt(2), _LEAST_NOISE)


def _clipped(values: Sequence[float], by: float) -> list[float]:
    """Each value at most `by` away from the median of the window around it."""
    starts = [min(max(place - _WINDOW // 2, 0), len(values) - _WINDOW) for place in range(len(values))]
    middles = [statistics.median(values[start : start + _WINDOW]) for start in starts]
    return [min(max(value, middle - by), middle + by) for value, middle in zip(values, middles, strict=True)]
