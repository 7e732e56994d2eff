"""The whole check: two environments, the metrics in both, the times over processes of both, and what changed."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfsuite.measure.words import plural
from perfsuite.upgrade import changes, environments, runs
from perfsuite.upgrade.environments import VirtualEnvironment
from perfsuite.upgrade.found import PLACES, Check
from perfsuite.upgrade.runs import Effort, FirstRun, Say, Tests, Window

LOCK_SECONDS = 30.0


class CheckFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """Nothing can be compared. The message says why, and what to do."""


def check(
    before: Sequence[str],
    after: Sequence[str],
    arguments: Sequence[str],
    effort: Effort,
    *,
    scratch: Path,
    keep: Path | None = None,
    say: Say,
) -> Check:
    """Compare the tests with the packages `before` and `after`, both on top of the present ones.

    `arguments` are pytest's, `scratch` is a folder that nobody else uses, `keep` one where the environments stay.
    Raises `EnvironmentFailed` and `CheckFailed`.
    """
    with _locked(keep):
        # The new packages come first: where pip cannot install them, the user learns it at once.
        say(f"packages after: {' '.join(after)}")
        new = environments.make(after, keep or scratch)
        say(f"packages before: {' '.join(before) or 'the present ones'}")
        old = environments.make(before, keep or scratch)
        tests = Tests(arguments, scratch / "runs", directory=Path.cwd())
        say("metrics: the tests with the packages before")
        first = tests.metrics(old, "before")
        if not (first.run.notes.tests or first.run.notes.uncollected):
            why = first.run.problem or "no perf test was found"
            raise CheckFailed(f"nothing to compare with: with the packages before, {why}")
        say("metrics: the tests with the packages after")
        second = tests.metrics(new, "after")
        windows: list[Window] = []
        if effort.rounds and changes.passed_in_both(first, second):
            limit = runs.timing_limit((first, second))
            windows = list(runs.windows(tests, (old, new), effort, limit=limit, say=say))
    return _found(old, new, first, second, windows)


def _found(
    before: VirtualEnvironment, after: VirtualEnvironment, first: FirstRun, second: FirstRun, windows: Sequence[Window]
) -> Check:
    times = changes.times_changed(windows, changes.passed_in_both(first, second))
    found = [
        *changes.stages_changed(first, second, windows),
        *times,
        *changes.metrics_changed(first, second, times),
    ]
    complete = tuple(len(window.before) for window in windows if window.complete)
    notes = list(_problems(first, second, windows))
    if before.packages == after.packages:
        notes.insert(0, "both environments have the same packages: each change is noise, or depends on a folder's name")
    if times and sum(complete) < (needed := changes.rounds_needed(len(times))):
        many = plural(len(times), "time")
        notes.append(
            f"{sum(complete)} rounds cannot call a change of any of {many}: take --rounds {needed}, or fewer tests"
        )
    return Check(
        before,
        after,
        tests=tuple(changes.outcomes_changed(first, second)),
        changes=tuple(sorted(found, key=lambda change: PLACES.index(change.where))),
        windows=complete,
        notes=tuple(notes),
    )


def _problems(first: FirstRun, second: FirstRun, windows: Sequence[Window]) -> Iterator[str]:
    for name, each in (("before", first), ("after", second)):
        if each.run.problem:
            yield f"with the packages {name}, {each.run.problem}"
    problems = [run.problem for window in windows for side in window.sides for run in side if run.problem]
    if problems:
        gave = plural(len(problems), "process gave", "processes gave")
        yield f"{gave} no times, so that their windows do not count: {problems[0]}"


def _locked(folder: Path | None) -> contextlib.AbstractContextManager[object]:
    """Keep a second check out of environments that this one makes."""
    if folder is None:
        return contextlib.nullcontext()
    import filelock  # only --keep needs it

    try:
        folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(folder / ".perfsuite.lock", timeout=LOCK_SECONDS).acquire()
    except filelock.Timeout:
        raise CheckFailed(f"--keep {folder}: another check has used it for {LOCK_SECONDS:g} s: wait for it") from None
    except OSError as error:
        raise CheckFailed(f"--keep {folder}: cannot be used ({error.strerror or error}): choose another") from None
