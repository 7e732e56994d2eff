"""What became of a file's metrics over its history: which moved, when, by how much, and between which commits."""

import collections
import dataclasses
from collections.abc import Collection
from pathlib import Path

from perfsuite.history.git import Commit, GitError, Repository
from perfsuite.history.reading import History, Series, series_of
from perfsuite.history.selecting import matches
from perfsuite.history.steps import Break, Step, runs_of, steps_of, version_marks

GATING = ("count", "size", "ratio", "time")
"""The kinds that are followed where no other is asked for."""


@dataclasses.dataclass(frozen=True)
class Followed:
    """A metric with its steps, the places before which nothing can be said of it, and the marks of new versions."""

    series: Series
    steps: tuple[Step, ...]
    breaks: tuple[Break, ...]
    marks: tuple[tuple[int, list[str]], ...]

    @property
    def amount(self) -> float:
        """How much it moved at most, for sorting."""
        return max((step.amount for step in self.steps), default=0.0)


@dataclasses.dataclass(frozen=True)
class CommitSteps:
    """A commit that metrics moved in.

    The commit recorded what moved; what made it move lies between `since`, the commit before of the same file, and it:
    `commits` of them, 0 where that is not known. `versions` has those that changed with a metric that moved, and of how
    many such metrics.
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

    `left_out` counts metrics of kinds that were not asked for. `versions` has what changed of the versions, and where:
    (version, `["jax 0.10.2 -> 0.11.0"]`).
    """

    history: History
    metrics: tuple[Followed, ...]
    commits: tuple[CommitSteps, ...]
    versions: tuple[tuple[int, list[str]], ...]
    left_out: int = 0

    @property
    def breaks(self) -> list[tuple[int, str, int]]:
        """Before which version metrics cannot be compared with later ones, why, and how many of them."""
        counts = collections.Counter(
            (of_break.version, of_break.why) for each in self.metrics for of_break in each.breaks
        )
        return [(version, why, count) for (version, why), count in sorted(counts.items())]

    @property
    def moved(self) -> list[Followed]:
        """The metrics that moved, those first that moved most."""
        found = [each for each in self.metrics if each.steps]
        return sorted(found, key=lambda each: (-each.amount, each.series.test, each.series.name))


def follow(history: History, pattern: str | None = None, kinds: Collection[str] = GATING) -> Following:
    """Follow the metrics that `pattern` matches and that are of one of `kinds` now.

    Needs `ruptures` for series that are long enough for change points.
    """
    named = [series for series in series_of(history) if matches(pattern, series.test, series.name)]
    wanted = [series for series in named if series.last.kind in kinds]
    metrics = tuple(
        Followed(series, tuple(steps_of(series)), tuple(runs_of(series)[1]), tuple(version_marks(series)))
        for series in wanted
    )
    marks: dict[int, dict[str, None]] = {}
    for each in metrics:
        for version, changes in each.marks:
            marks.setdefault(version, {}).update(dict.fromkeys(changes))
    return Following(
        history,
        metrics,
        tuple(_by_commit(history, metrics)),
        tuple((version, list(changes)) for version, changes in sorted(marks.items())),
        len(named) - len(wanted),
    )


def _by_commit(history: History, metrics: Collection[Followed]) -> list[CommitSteps]:
    grouped: dict[int, list[Step]] = {}
    for each in metrics:
        for step in each.steps:
            grouped.setdefault(step.version, []).append(step)
    commits = []
    for version in sorted(grouped, reverse=True):
        steps = sorted(grouped[version], key=lambda step: (-step.amount, step.test, step.name))
        commit, since = history.versions[version].commit, history.versions[version - 1].commit
        counts = collections.Counter(change for step in steps for change in step.versions)
        between = _between(history, since, commit)
        commits.append(CommitSteps(commit, since, between, tuple(steps), tuple(counts.most_common())))
    return commits


def _between(history: History, older: Commit, newer: Commit) -> int:
    try:
        return Repository(Path(history.path).parent).between(older.id, newer.id or "HEAD")
    except GitError:  # removed since it was read
        return 0
