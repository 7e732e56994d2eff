"""The whole check: two environments, the metrics in both, the times over processes of both, and what changed."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfsuite.upgrade import changes, environments, runs
from perfsuite.upgrade.environments import Made
from perfsuite.upgrade.found import PLACES, Check
from perfsuite.upgrade.runs import Metrics, Say, Tests, Window

LOCK_SECONDS = 30.0


class CheckFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """Nothing can be compared. The message says why, and what to do."""


def check(
    before: Sequence[str],
    after: Sequence[str],
    arguments: Sequence[str],
    *,
    scratch: Path,
    keep: Path | None = None,
    rounds: int,
    minutes: float | None = None,
    seconds: float,
    say: Say,
) -> Check:
    """Compare the tests with the packages `before` and `after`, both on top of the present ones.

    `arguments` are pytest's, `scratch` is a folder that nobody else uses, `keep` one where the environments stay.
    Raises `EnvironmentFailed` and `CheckFailed`.
    """
    with _locked(keep):
        made = _make(keep or scratch, before, after, say)
        tests = Tests(arguments, scratch / "runs", directory=Path.cwd())
        say("metrics: the tests with the packages before")
        first = tests.metrics(made[0], "before")
        if first.run.notes is None or not (first.run.notes.tests or first.run.notes.uncollected):
            why = first.run.problem or "no perf test was found"
            raise CheckFailed(f"there is nothing to compare with: of the tests with the packages before, {why}")
        say("metrics: the tests with the packages after")
        second = tests.metrics(made[1], "after")
        windows = list(_windows(tests, made, first, second, rounds, minutes, seconds, say))
    return _found(made, first, second, windows)


def _make(folder: Path, before: Sequence[str], after: Sequence[str], say: Say) -> tuple[Made, Made]:
    # What is asked for comes first: where pip cannot install it, that is known at once.
    say(f"packages after: {' '.join(after)}")
    new = environments.make(after, folder)
    say(f"packages before: {' '.join(before) or 'as they are'}")
    return environments.make(before, folder), new


def _windows(
    tests: Tests,
    made: tuple[Made, Made],
    first: Metrics,
    second: Metrics,
    rounds: int,
    minutes: float | None,
    seconds: float,
    say: Say,
) -> Iterator[Window]:
    if not rounds or not changes.passed_in_both(first, second):
        return
    limit = runs.allowed_seconds((first, second))
    yield from runs.windows(tests, *made, rounds=rounds, minutes=minutes, seconds=seconds, limit=limit, say=say)


def _found(made: tuple[Made, Made], first: Metrics, second: Metrics, windows: Sequence[Window]) -> Check:
    times = changes.times_changed(windows, changes.passed_in_both(first, second))
    found = [
        *changes.stages_changed(first, second, windows),
        *times,
        *changes.metrics_changed(first, second, times),
    ]
    whole = tuple(len(window.before) for window in windows if window.whole)
    return Check(
        *made,
        tests=tuple(changes.outcomes_changed(first, second)),
        changes=tuple(sorted(found, key=lambda change: PLACES.index(change.where))),
        windows=whole,
        notes=tuple(_notes(made, first, second, windows, len(times), sum(whole))),
    )


def _notes(
    made: tuple[Made, Made], first: Metrics, second: Metrics, windows: Sequence[Window], times: int, rounds: int
) -> Iterator[str]:
    if made[0].packages == made[1].packages:
        yield "both environments have the same packages: what is called here is noise, or depends on a folder's name"
    for name, metrics in (("before", first), ("after", second)):
        if metrics.run.problem:
            yield f"the tests with the packages {name}: {metrics.run.problem}"
    problems = [run.problem for window in windows for run in (*window.before, *window.after) if run.notes is None]
    if problems:
        yield f"{len(problems)} processes gave no times, and their windows do not count: {problems[0]}"
    if times and rounds < (needed := changes.rounds_needed(times)):
        yield f"{rounds} rounds cannot call a change of any of {times} times: take --rounds {needed}, or fewer tests"


@contextlib.contextmanager
def _locked(folder: Path | None) -> Iterator[None]:
    """Keep a second check out of environments that are being made."""
    if folder is None:
        yield
        return
    import filelock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".perfsuite.lock", timeout=LOCK_SECONDS)
        lock.acquire()
    except filelock.Timeout:
        raise CheckFailed(f"--keep {folder}: another check has used it for {LOCK_SECONDS:g} s: wait for it") from None
    except OSError as error:
        raise CheckFailed(f"--keep {folder}: cannot be used ({error.strerror or error}): choose another") from None
    try:
        yield
    finally:
        lock.release()
