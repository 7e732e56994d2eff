"""The whole check: two environments, the metrics in both, the times over processes of both, and what changed."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfsuite.against import changes, environments, runs
from perfsuite.against.found import PLACES, Check
from perfsuite.against.runs import Effort, FirstRun, Say, Tests, Window
from perfsuite.against.sides import Side
from perfsuite.measure.words import plural

LOCK_SECONDS = 30.0

SCATTER = 0.05
"""The example in what is said of rounds: how far processes of the same code differ."""


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
        here = Path.cwd()
        new = Side("after", environments.make(after, keep or scratch), here)
        say(f"packages before: {' '.join(before) or 'the present ones'}")
        old = Side("before", environments.make(before, keep or scratch), here)
        tests = Tests(arguments, scratch / "runs")
        first, second = _first_runs(tests, old, new, say)
        ran = _alike(tests, old, new, first, second, say)
        windows: list[Window] = []
        if effort.rounds and (both := changes.passed_in_both(*ran)):
            limit = runs.timing_limit(ran)
            say("times: one process that does not count, to see how many times there are")
            trial = tests.times(old, seconds=effort.seconds, limit=limit)
            if times := changes.times_expected(trial, both):
                say(_decidable(effort.rounds, times))
            windows = list(runs.windows(tests, (old, new), effort, limit=limit, say=say))
    return _found(old, new, (first, second), ran, windows)


def _first_runs(tests: Tests, old: Side, new: Side, say: Say) -> tuple[FirstRun, FirstRun]:
    say("metrics: the tests with the packages before")
    first = tests.metrics(old)
    if not (first.run.notes.tests or first.run.notes.uncollected):
        why = first.run.problem or "no perf test was found"
        raise CheckFailed(f"nothing to compare with: with the packages before, {why}")
    say("metrics: the tests with the packages after")
    return first, tests.metrics(new)


def _alike(
    tests: Tests, old: Side, new: Side, first: FirstRun, second: FirstRun, say: Say
) -> tuple[FirstRun, FirstRun]:
    """The runs to compare: of the tests that pass on both sides, without the others.

    What happens once in a process (the first use of an operation is traced and compiled) belongs to the test that does
    it first. A test that fails on one side leaves it to the next test there, which then seems to have changed.
    """
    while changes.outcomes_changed(first, second) and (both := changes.passed_in_both(first, second)):
        tests.only = frozenset(both)
        without = "without the tests that do not pass on both sides, which shift what happens once a process"
        say(f"metrics: again, with the packages before, {without}")
        first = tests.metrics(old)
        say("metrics: again, with the packages after")
        second = tests.metrics(new)
    return first, second


def _decidable(rounds: int, times: int) -> str:
    """What so many rounds can tell, from the rule that judges them."""
    many = plural(times, "time")
    least = changes.smallest_called(rounds, times)
    if least is None:
        needed = changes.rounds_needed(times)
        return f"{rounds} rounds can call no change of {many}, however large: take --rounds {needed}, or fewer tests"
    share = math.expm1(least * SCATTER)
    return (
        f"{rounds} rounds of {many} call a change of {least:.2g} times the scatter between processes half of the time: "
        f"{share:.0%} where processes of the same code differ by {SCATTER:.0%}"
    )


def _found(
    before: Side,
    after: Side,
    first: tuple[FirstRun, FirstRun],
    ran: tuple[FirstRun, FirstRun],
    windows: Sequence[Window],
) -> Check:
    times = changes.times_changed(windows, changes.passed_in_both(*ran))
    found = [
        *changes.stages_changed(*ran, windows),
        *times,
        *changes.metrics_changed(*ran, times),
    ]
    complete = tuple(len(window.before) for window in windows if window.complete)
    notes = list(_problems(*ran, windows))
    if lost := changes.passed_in_both(*first) - changes.passed_in_both(*ran):
        beside = "they pass only beside tests that do not pass on both sides"
        notes.append(f"not compared, because {beside}: {', '.join(sorted(lost))}")
    if before.environment.packages == after.environment.packages:
        notes.insert(0, "both environments have the same packages: each change is noise, or depends on a folder's name")
    if times and sum(complete) < (needed := changes.rounds_needed(len(times))):
        many = plural(len(times), "time")
        notes.append(
            f"{sum(complete)} rounds cannot call a change of any of {many}: take --rounds {needed}, or fewer tests"
        )
    return Check(
        before.environment,
        after.environment,
        tests=tuple(changes.outcomes_changed(*first)),
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
