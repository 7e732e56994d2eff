"""Where a metric moved, over the versions of its file, and which versions of the libraries moved with it.

A save leaves an entry as it is where the new metric agrees with it, so equal entries in a row are one observation, and
not as many that agree. Observations that cannot be compared (another device, processor, unit) are apart: no step is
sought across them.

A count or a size is exact: any other value is a step. A ratio, a time or an info metric is sampled, and then
- from `LEAST` observations on, steps are change points: the best segmentation by squares of the logarithms, found by
  PELT (R. Killick, P. Fearnhead and I. A. Eckley, Journal of the American Statistical Association 107, 2012);
- in a short series a drift may hide in what then looks like noise: where every value of the later half lies beyond
  those of the earlier, the halves are held against each other by the gate's rule;
- of fewer, and of the last one or two, that segmentation can say nothing. Then each is held against the level before it
  by the gate's own rule: its interval lies wholly beyond the tolerance of its kind (info metrics have none, and are
  held to that of a time).
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from perfsuite.gate.baseline import Entry
from perfsuite.gate.environment import version_changes
from perfsuite.gate.verdict import TOLERANCES
from perfsuite.history.comparing import amount, judged, relative_change, why_incomparable
from perfsuite.history.reading import Series

if TYPE_CHECKING:
    import numpy as np

By = Literal["exact", "change point", "gate", "drift"]

LEAST = 6
"""Observations from which on change points are sought: two segments of the least size."""

SMALLEST_SEGMENT = 3
"""Of two, one outlier would be half."""

PENALTY = 18.0
"""What one more change point has to gain, in squares of the noise.

Chosen by simulation of series without a step: from 6 to 200 observations the best single split gained more than 16 in
one series of a hundred, whether the noise was normal, of Student's distribution with 4 degrees of freedom, or normal
with one value in twenty five times as far off (1500 series of each). `tests/history/test_history.py` holds it to that.
A step of 8 % in 20 observations with 2 % of noise was found in 198 of 200 series, in 183 at its very place, in 14 one
beside.
"""

CLIP = 2.0
"""By how much of the noise an observation may differ from the median of the five around it; more is cut off there.

So a single bad save moves no segment. Without it the 99th percentile of the gain above was 50 for noise with outliers.
"""

_WINDOW = 2
_LEAST_NOISE = 1e-3
"""Of logarithms: 0.1 %. The files have six digits, and entries that differ in versions alone have the same value."""

_LAST = 2
_BEYOND = 4.0
"""How far in noise the last observations have to be off, besides what the gate's rule asks."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A metric that moved at `version`, an index into the versions of its history.

    `before` and `after` are the levels on both sides, in `entry.unit`: the values of an exact metric, medians of a
    sampled one. `entry` is the first of the new level, `previous` the last of the old one. `by` says how it was
    found; of a "drift" the place is the middle, and says no more.
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
    """A metric that cannot be held against what it was before `version`, and why."""

    version: int
    why: str


@dataclasses.dataclass(frozen=True)
class Observation:
    """An entry as it was first recorded, in `version`."""

    version: int
    entry: Entry


def runs_of(series: Series) -> tuple[list[list[Observation]], list[Break]]:
    """The observations of a metric, split where they cannot be compared, and what splits them."""
    runs: list[list[Observation]] = []
    breaks = []
    last: Entry | None = None
    for version, entry in enumerate(series.entries):
        if entry is None or entry == last:
            continue
        if last is None or (why := why_incomparable(last, entry)):
            if last is not None:
                breaks.append(Break(version, why))
            runs.append([])
        runs[-1].append(Observation(version, entry))
        last = entry
    return runs, breaks


def steps_of(series: Series) -> list[Step]:
    """Where the metric moved, oldest first. Needs `ruptures` for a sampled metric of `LEAST` observations or more."""
    return [step for run in runs_of(series)[0] for step in _steps(series, run)]


def version_marks(series: Series) -> list[tuple[int, list[str]]]:
    """Where the versions that a metric was made with changed: (version, `["jax 0.10.2 -> 0.11.0"]`)."""
    marks = []
    last: Entry | None = None
    for version, entry in enumerate(series.entries):
        if entry is None:
            continue
        if last is not None and (changes := version_changes(last.environment, entry.environment)):
            marks.append((version, changes))
        last = entry
    return marks


def change_points(values: Sequence[float]) -> list[int]:
    """Where the level of a noisy series changes: the index of the first value of each new level.

    `values` are logarithms, or differ by far less than they are. Nothing is found in fewer than `LEAST`. The noise is
    from the median of the differences between neighbours, and between theirs, which a step hardly moves.
    """
    if len(values) < LEAST:
        return []
    import numpy as np
    import ruptures

    array = np.asarray(values, dtype=np.float64)
    scale = _noise(array)
    signal = (_clipped(array, CLIP * scale) - np.median(array)) / scale
    # The linear kernel's cost is that of squares, and this is PELT in C.
    found = ruptures.KernelCPD(kernel="linear", min_size=SMALLEST_SEGMENT).fit(signal[:, None]).predict(pen=PENALTY)
    return [int(place) for place in found[:-1]]


def _steps(series: Series, run: Sequence[Observation]) -> list[Step]:
    if len(run) < 2:
        return []
    if run[0].entry.kind in ("count", "size"):
        return [
            _step(series, [before], [after], "exact")
            for before, after in itertools.pairwise(run)
            if before.entry.value != after.entry.value
        ]
    if len(run) < LEAST:
        return _by_the_gate(series, run)
    places = change_points(_levels(run))
    edges = [0, *places, len(run)]
    parts = [run[start:end] for start, end in itertools.pairwise(edges)]
    steps = [_step(series, old, new, "change point") for old, new in itertools.pairwise(parts)]
    return steps + _at_the_end(series, parts[-1], _levels(run)) or _drift(series, run)


def _by_the_gate(series: Series, run: Sequence[Observation]) -> list[Step]:
    """Each observation against the first of the level that it would belong to."""
    steps = []
    level = [run[0]]
    for observation in run[1:]:
        if _moved(level[0].entry, observation.entry):
            steps.append(_step(series, level, [observation], "gate"))
            level = [observation]
        else:
            level.append(observation)
    return steps


def _at_the_end(series: Series, part: Sequence[Observation], values: Sequence[float]) -> list[Step]:
    """A step at the last one or two observations, which are too few for a segment of their own."""
    import numpy as np

    body = part[:-_LAST]
    if len(body) < SMALLEST_SEGMENT:
        return []
    scale = _noise(np.asarray(values))
    levels = values[len(values) - len(part) :]
    middle = float(np.median(levels[: len(body)]))
    level = dataclasses.replace(body[-1].entry, value=_median(body), interval=None)
    for count in (_LAST, 1):
        off = levels[-count:]
        alike = min(off) > middle + _BEYOND * scale or max(off) < middle - _BEYOND * scale
        if alike and all(_moved(level, each.entry) for each in part[-count:]):
            return [_step(series, part[:-count], part[-count:], "gate")]
    return []


def _drift(series: Series, run: Sequence[Observation]) -> list[Step]:
    """What moved little by little, which to a short series is noise: every value of one half lies beyond the other."""
    halves = run[: len(run) // 2], run[len(run) // 2 :]
    old, new = ([each.entry.value for each in half] for half in halves)
    levels = [dataclasses.replace(half[-1].entry, value=_median(half), interval=None) for half in halves]
    if (max(old) < min(new) or max(new) < min(old)) and _moved(*levels):
        return [_step(series, *halves, "drift")]
    return []


def _moved(level: Entry, entry: Entry) -> bool:
    if entry.kind != "info":
        return judged(level, entry)[0] in ("worse", "better")
    return abs(relative_change(*sorted((level.value, entry.value), key=abs))) > TOLERANCES["time"]


def _step(series: Series, old: Sequence[Observation], new: Sequence[Observation], by: By) -> Step:
    first = new[0]
    return Step(
        series.test, series.name, first.version, _median(old), _median(new), old[-1].entry, first.entry, by
    )  # fmt: skip


def _median(part: Sequence[Observation]) -> float:
    values = sorted(each.entry.value for each in part)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def _levels(run: Sequence[Observation]) -> list[float]:
    """Logarithms; the values themselves, relative to the largest, where one is not above 0."""
    values = [each.entry.value for each in run]
    if min(values) > 0:
        return [math.log(value) for value in values]
    largest = max(map(abs, values)) or 1.0
    return [value / largest for value in values]


def _noise(array: "np.ndarray") -> float:
    import numpy as np

    differences = np.concatenate([np.diff(array), array[2:] - array[:-2]])
    # 1.4826: from the median of absolute values to a normal distribution's standard deviation.
    return max(float(np.median(np.abs(differences))) * 1.4826 / math.sqrt(2), _LEAST_NOISE)


def _clipped(array: "np.ndarray", by: float) -> "np.ndarray":
    import numpy as np

    width = 2 * _WINDOW + 1
    starts = np.clip(np.arange(len(array)) - _WINDOW, 0, len(array) - width)
    middles = np.median(np.lib.stride_tricks.sliding_window_view(array, width)[starts], axis=1)
    return np.clip(array, middles - by, middles + by)
