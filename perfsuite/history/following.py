"""The metrics of a file over its history: which moved, when, by how much, and between which commits."""

import collections
import dataclasses
from collections.abc import Collection
from pathlib import Path

from perfsuite.git import Commit, GitError, Repository
from perfsuite.history.reading import History, Series, series_of
from perfsuite.history.selecting import matches
from perfsuite.history.steps import Break, Step, places_of, runs_of, steps_of, version_marks

GATING = ("count", "size", "ratio", "time")
"""The kinds that are followed by default."""


@dataclasses.dataclass(frozen=True)
class Followed:
    """A metric with its steps, its breaks, and the marks of new library versions."""

    series: Series
    steps: tuple[Step, ...]
    breaks: tuple[Break, ...]
    marks: tuple[tuple[int, list[str]], ...]

    @property
    def largest(self) -> Step:
        """The step by which a metric that moved has moved most."""
        return max(self.steps, key=lambda step: step.amount)


@dataclasses.dataclass(frozen=True)
class CommitSteps:
    """A commit that recorded moved metrics.

    The cause lies between `since`, the previous commit of the same file, and this commit: among `commits` commits (0
    where that is unknown). `versions` has the library versions that changed, and the number of moved metrics with each.
    """

    commit: Commit
    since: Commit | None
    commits: int
    steps: tuple[Step, ...]
    versions: tuple[tuple[str, int], ...]

    @property
    def worse(self) -> int:
        """How many moved to the bad side."""
        return sum(step.worse for step in self.steps)


@dataclasses.dataclass(frozen=True)
class Following:
    """A history, the metrics that were followed, and the commits that they moved in, newest first.

    `left_out` counts metrics of kinds that nobody asked for. `versions` has the changes of library versions:
    (version, `["jax 0.10.2 -> 0.11.0"]`).
    """

    history: History
    metrics: tuple[Followed, ...]
    commits: tuple[CommitSteps, ...]
    versions: tuple[tuple[int, list[str]], ...]
    left_out: int = 0

    @property
    def breaks(self) -> list[tuple[int, str, int]]:
        """The versions before which metrics are not comparable with later ones, why, and how many metrics."""
        counts = collections.Counter((each.version, each.why) for metric in self.metrics for each in metric.breaks)
        return [(version, why, count) for (version, why), count in sorted(counts.items())]

    @property
    def moved(self) -> list[Followed]:
        """The metrics that moved; the one that moved most comes first."""
        found = [each for each in self.metrics if each.steps]
        return sorted(found, key=lambda each: (-each.largest.amount, each.series.test, each.series.name))

    @property
    def moved_count(self) -> int:
        """How many metrics moved."""
        return sum(bool(each.steps) for each in self.metrics)


def follow(history: History, pattern: str | None = None, kinds: Collection[str] = GATING) -> Following:
    """Follow the metrics that match `pattern` and whose newest entry has one of `kinds`."""
    named = [series for series in series_of(history) if matches(pattern, series.test, series.id, series.name)]
    wanted = [series for series in named if series.last.kind in kinds]
    runs = [runs_of(series) for series in wanted]
    places = sum(places_of(of_series) for of_series, _ in runs)
    metrics = tuple(
        Followed(series, tuple(steps_of(series, of_series, places)), tuple(breaks), tuple(version_marks(series)))
        for series, (of_series, breaks) in zip(wanted, runs, strict=True)
    )
    marks: dict[int, dict[str, None]] = {}
    for each in metrics:
        for version, changes in each.marks:
            marks.setdefault(version, {}).update(dict.fromkeys(changes))
    versions = tuple((version, list(changes)) for version, changes in sorted(marks.items()))
    return Following(history, metrics, tuple(_by_commit(history, metrics)), versions, len(named) - len(wanted))


def _by_commit(history: History, metrics: Collection[Followed]) -> list[CommitSteps]:
    grouped: dict[int, list[Step]] = {}
    for each in metrics:
        for step in each.steps:
            grouped.setdefault(step.version, []).append(step)
    commits = []
    for version in sorted(grouped, reverse=True):
        steps = sorted(grouped[version], key=lambda step: (-step.amount, step.test, step.name))
        commit, since = history.versions[version].commit, history.versions[version - 1].commit
        try:
            between = len(Repository(Path(history.path).parent).after(since.id, commit.id or "HEAD"))
        except GitError:  # the repository was removed after it was read
            between = 0
        counts = collections.Counter(change for step in steps for change in step.versions)
        commits.append(CommitSteps(commit, since, between, tuple(steps), tuple(counts.most_common())))
    return commits
