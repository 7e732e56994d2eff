"""Where a metric moved, over the versions of its file, and which library versions moved with it.

A save keeps an entry when the new metric agrees with it, so equal entries in a row are one observation. Observations
that are not comparable (another device, processor or unit) are separate runs: no step is searched across them.

A count or a size is exact: any other value is a step. The observations of a ratio, a time or an info metric are divided
into levels (`levels.py`). A step is where a gate would not allow the new level with the old one as its baseline, and
where the two stand out of the noise. An info metric has no gate: it has to double, or to halve.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence

from perfsuite.gate.baseline import Entry
from perfsuite.gate.environment import version_changes
from perfsuite.gate.verdict import TOLERANCES
from perfsuite.history.comparing import amount, judged, relative_change, why_incomparable
from perfsuite.history.levels import segmentations, stand_out
from perfsuite.history.reading import Series
from perfsuite.measure.metric import Interval, Kind

EXACT = ("count", "size")

NOISE: dict[Kind, float] = {"ratio": 0.02, "time": 0.1, "info": 0.1}
"""From save to save, relative: what a history has at least, however alike its few saves are."""

MOST_NOISE = 10
"""In multiples of that. A metric that grows with every save looks like correlated noise, but it has moved."""

PATIENCE = 4
"""Segmentations in a row that do not hold, before the search ends. Two bumps are four steps, none of which a
segmentation with fewer finds."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A metric that moved at `version`, an index into the versions of its history.

    `before` and `after` are the levels on both sides, in `entry.unit`: values of an exact metric, medians of a sampled
    one. `previous` is the last entry of the old level, `entry` the first of the new one.
    """

    test: str
    name: str
    version: int
    before: float
    after: float
    previous: Entry
    entry: Entry

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


def places_of(runs: Sequence[Sequence[Observation]]) -> int:
    """At how many places noise could make a step in these runs."""
    return sum(len(run) - 1 for run in runs if run[0].entry.kind not in EXACT)


def steps_of(series: Series, runs: Sequence[Sequence[Observation]], places: int) -> list[Step]:
    """Where the metric moved, oldest first. `places` is for all the series that are searched at once."""
    steps = []
    for run in runs:
        for old, new in itertools.pairwise(_levels(run, places)):
            version, entry = new[0].version, new[0].entry
            steps.append(Step(series.test, series.name, version, _median(old), _median(new), old[-1].entry, entry))
    return steps


def version_marks(series: Series) -> list[tuple[int, list[str]]]:
    """Where the library versions of a metric changed: (version, `["jax 0.10.2 -> 0.11.0"]`)."""
    known = [(version, entry) for version, entry in enumerate(series.entries) if entry is not None]
    return [
        (version, changes)
        for (_, last), (version, entry) in itertools.pairwise(known)
        if (changes := version_changes(last.environment, entry.environment))
    ]


def _levels(run: Sequence[Observation], places: int) -> list[Sequence[Observation]]:
    """The run, cut where the metric moved."""
    kind = run[0].entry.kind
    if kind in EXACT:
        return [list(level) for _, level in itertools.groupby(run, key=lambda each: each.entry.value)]
    values = _comparable([each.entry.value for each in run])
    least, most = NOISE[kind], MOST_NOISE * NOISE[kind]
    found, failed = [run], 0
    for starts in segmentations(values):
        slices = [slice(start, end) for start, end in itertools.pairwise([*starts, len(run)])]
        levels = [run[each] for each in slices]
        moved = all(itertools.starmap(_moved, itertools.pairwise(levels)))
        if moved and stand_out([values[each] for each in slices], least, most, places):
            found, failed = levels, 0
        else:
            failed += 1
        if failed == PATIENCE:
            break
    return found


def _moved(old: Sequence[Observation], new: Sequence[Observation]) -> bool:
    before, after = _level_entry(old), _level_entry(new)
    if before.kind != "info":
        return judged(before, after)[0] in ("worse", "better")
    return abs(relative_change(*sorted((before.value, after.value), key=abs))) > TOLERANCES["time"]


def _level_entry(level: Sequence[Observation]) -> Entry:
    """A level as one entry: the medians of the values, and of the ends of the intervals."""
    entries = [each.entry for each in level]
    ends = [entry.interval or Interval(entry.value, entry.value) for entry in entries]
    interval = Interval(statistics.median(each.low for each in ends), statistics.median(each.high for each in ends))
    return dataclasses.replace(entries[-1], value=_median(level), interval=interval)


def _median(level: Sequence[Observation]) -> float:
    return statistics.median(each.entry.value for each in level)


def _comparable(values: Sequence[float]) -> list[float]:
    """Logarithms; where a value is not above 0, the values relative to the largest."""
    if min(values) > 0:
        return [math.log(value) for value in values]
    largest = max(map(abs, values)) or 1.0
    return [value / largest for value in values]
