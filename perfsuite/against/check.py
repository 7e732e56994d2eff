"""The whole check: what is exact on both sides, the times over processes of both, and what changed."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from perfsuite.against import changes, runs
from perfsuite.against.following import Say
from perfsuite.against.found import PLACES, Check, MetricChange
from perfsuite.against.runs import Effort, FirstRun, Tests, Window
from perfsuite.against.sides import Side
from perfsuite.against.times import decided, rounds_needed, smallest_called, times_changed
from perfsuite.measure.words import plural

SCATTER = 0.05
"""The example in what is said of rounds: how far processes of the same code differ."""

Timed = Literal["changed", "all", "none"]
"""Which tests are timed: those that changed in what is exact or in what they run, all, or none."""


class CheckFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """Nothing can be compared. The message says why, and what to do."""


def check(
    base: Side, head: Side, arguments: Sequence[str], effort: Effort, *, timed: Timed, scratch: Path, say: Say
) -> Check:
    """Compare the tests on two sides. `arguments` are pytest's, `scratch` is a folder that nobody else uses.

    Raises `CheckFailed`, and `SideFailed` where a side did not run its own code.
    """
    tests = Tests(arguments, scratch / "runs", say=say)
    first = _first_runs(tests, base, head, say)
    ran = _alike(tests, base, head, *first, say)
    exact = changes.metrics_changed(*ran)
    may, same = changes.to_time(*ran, [*changes.stages_changed(*ran), *exact])
    chosen = {"changed": may, "all": may | same, "none": set[str]()}[timed] if effort.rounds else set[str]()
    windows: list[Window] = []
    if chosen:
        untimed = f", {len(same)} others run what they ran" if same - chosen else ""
        say(f"times: {plural(len(chosen), 'test')}{untimed}")
        tests.only = frozenset(chosen)
        windows = _windows(tests, (base, head), effort, chosen, runs.timing_limit(ran), say)
    times = times_changed(windows, chosen, runs.looks(effort.rounds))
    times = changes.explained(times, *ran, exact)
    found = [*changes.stages_changed(*ran, windows), *times, *exact]
    complete = tuple(len(window.base) for window in windows if window.complete)
    return Check(
        base,
        head,
        tests=tuple(changes.outcomes_changed(*first)),
        changes=tuple(sorted(found, key=lambda change: PLACES.index(change.where))),
        windows=complete,
        notes=tuple(_notes((base, head), first, ran, windows, times, effort)),
        timed=len(chosen),
        untimed=len((may | same) - chosen),
    )


def _first_runs(tests: Tests, base: Side, head: Side, say: Say) -> tuple[FirstRun, FirstRun]:
    say(f"what is exact: the tests at the base, {base.title}, and at the head, {head.title}")
    first, second = tests.metrics(base, head)
    for side, run in ((base, first), (head, second)):
        if not (run.run.notes.tests or run.run.notes.uncollected) and (side is base or not run.run.problem):
            raise CheckFailed(f"nothing to compare: at the {side.name}, {run.run.problem or 'no perf test was found'}")
    return first, second


def _alike(
    tests: Tests, base: Side, head: Side, first: FirstRun, second: FirstRun, say: Say
) -> tuple[FirstRun, FirstRun]:
    """The runs to compare: of the tests that pass on both sides, without the others.

    What happens once in a process (the first use of an operation is traced and compiled) belongs to the test that does
    it first. A test that fails on one side leaves it to the next test there, which then seems to have changed.
    """
    while changes.outcomes_changed(first, second) and (both := frozenset(changes.passed_in_both(first, second))):
        if both == tests.only:  # as where pytest is given the names of tests, and finds each of them again
            break
        tests.only = both
        without = "without the tests that do not pass on both sides, which shift what happens once a process"
        say(f"what is exact: again, {without}")
        first, second = tests.metrics(base, head)
    return first, second


def _windows(
    tests: Tests, sides: tuple[Side, Side], effort: Effort, chosen: set[str], limit: float, say: Say
) -> list[Window]:
    """The processes that take times, until every time is decided: looked at after each window but the first."""
    found: list[Window] = []
    shared = runs.looks(effort.rounds)
    for window in runs.windows(tests, sides, effort, limit=limit, say=say):
        found.append(window)
        times = times_changed(found, chosen, shared)
        if len(found) == 1 and times:
            say(_decidable(effort.rounds, len(times)))
        if len(found) > 1 and times and decided(times):
            break
    return found


def _decidable(rounds: int, times: int) -> str:
    """What so many rounds can tell, from the rule that judges them."""
    many = plural(times, "time")
    least = smallest_called(rounds, times)
    if least is None:
        return f"{rounds} rounds can call no change of {many}, however large: take more --rounds, or fewer tests"
    share = math.expm1(least * SCATTER)
    return (
        f"{rounds} rounds of {many} call a change of {least:.2g} times the scatter between processes half of the time: "
        f"{share:.0%} where processes of the same code differ by {SCATTER:.0%}"
    )


def _notes(
    sides: tuple[Side, Side],
    first: tuple[FirstRun, FirstRun],
    ran: tuple[FirstRun, FirstRun],
    windows: Sequence[Window],
    times: Sequence[MetricChange],
    effort: Effort,
) -> Iterator[str]:
    base, head = sides
    if base.stand is None and base.environment.packages == head.environment.packages:
        yield "both sides have the same code and packages: each change is noise, or depends on a folder's name"
    yield from (note for side in sides for note in side.notes)
    for side, each in zip(sides, ran, strict=True):
        if each.run.problem:
            yield f"at the {side.name}, {each.run.problem}"
    problems = [run.problem for window in windows for side in window.sides for run in side if run.problem]
    if problems:
        gave = plural(len(problems), "process gave", "processes gave")
        yield f"{gave} no times, so that their windows do not count: {problems[0]}"
    if lost := changes.passed_in_both(*first) - changes.passed_in_both(*ran):
        beside = "they pass only beside tests that do not pass on both sides"
        yield f"not compared, because {beside}: {', '.join(sorted(lost))}"
    complete = sum(len(window.base) for window in windows if window.complete)
    if times and complete < (needed := rounds_needed(len(times), runs.looks(effort.rounds))):
        many = plural(len(times), "time")
        over = complete < effort.rounds and not problems
        more = "allow more --minutes" if over else "take more --rounds"
        yield f"{complete} rounds cannot call a change of any of {many} (it takes {needed}): {more}, or fewer tests"
