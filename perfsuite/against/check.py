"""The whole check: what is exact on both sides, the times over processes of both, and what changed."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from perfsuite.against import changes, runs
from perfsuite.against.changes import MetricChange, TestChange
from perfsuite.against.runs import Effort, FirstRun, Say, Tests, Window
from perfsuite.against.sides import Side
from perfsuite.against.times import decided, times_changed
from perfsuite.measure.serialise import plain
from perfsuite.measure.words import plural

Timed = Literal["changed", "all", "none"]
"""Which tests are timed: those that changed in what is exact or in what they run, all, or none."""


class CheckFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """Nothing can be compared. The message says why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Check:
    """What a check found.

    `processes` is how many took times on each side, `timed` the number of tests that were timed and `untimed` of those
    that were not because they run what they ran. `notes` are sentences for the reader.
    """

    base: Side
    head: Side
    tests: tuple[TestChange, ...]
    changes: tuple[MetricChange, ...]
    notes: tuple[str, ...]
    processes: int = 0
    timed: int = 0
    untimed: int = 0

    @property
    def worse(self) -> bool:
        """Whether anything is."""
        return any(change.called == "worse" for change in self.changes) or any(test.worse for test in self.tests)

    @property
    def compared(self) -> bool:
        """Whether any metric was made on both sides and could be compared."""
        return any(change.called not in ("new", "gone", "not comparable") for change in self.changes)

    @property
    def only_new(self) -> bool:
        """Whether there is nothing to compare because the head alone has what the tests are for."""
        return any(test.only_at_head for test in self.tests) and not self.changes

    @property
    def versions(self) -> list[str]:
        """The packages that differ: `["jax 0.10.0 -> 0.10.2"]`."""
        return changes.versions_changed(self.base.packages.versions, self.head.packages.versions)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, for --json."""
        return {
            "schema": 2,
            **{
                side.name: {"code": side.title, "packages": dict(side.packages.versions)}
                for side in (self.base, self.head)
            },
            "changed packages": self.versions,
            "worse": self.worse,
            "processes": self.processes,
            "timed": self.timed,
            "untimed": self.untimed,
            "notes": list(self.notes),
            "tests": plain(self.tests),
            "changes": plain(self.changes),
        }


def check(
    base: Side, head: Side, arguments: Sequence[str], effort: Effort, *, timed: Timed, scratch: Path, say: Say
) -> Check:
    """Compare the tests on two sides. `arguments` are pytest's, `scratch` is a folder that nobody else uses.

    Raises `CheckFailed`, and `SideFailed` where a side did not run its own code.
    """
    tests = Tests(arguments, scratch / "runs")
    say(f"what is exact: the tests at the base, {base.title}, and at the head, {head.title}")
    first = _both(tests, base, head)
    for side, run in zip((base, head), first, strict=True):
        if not run.notes.tests and (side is base or not run.run.problem):
            raise CheckFailed(f"nothing to compare: at the {side.name}, {run.run.problem or 'no perf test was found'}")
    ran = _alike(tests, base, head, first, say)
    exact = [*changes.stages_changed(*ran), *changes.metrics_changed(*ran)]
    may, same = changes.to_time(*ran, exact)
    chosen = {"changed": may, "all": may | same, "none": set[str]()}[timed]
    windows: list[Window] = []
    times: list[MetricChange] = []
    if chosen:
        untimed = f", {len(same)} others run what they ran" if same - chosen else ""
        say(f"times: {plural(len(chosen), 'test')}{untimed}")
        tests.only = frozenset(chosen)
        for window in runs.windows(tests, (base, head), effort, first=ran, say=say):
            windows.append(window)
            times = times_changed(windows, chosen)
            if len(windows) > 1 and times and decided(times):
                break
        times = changes.explained(times, *ran, exact)
    return Check(
        base,
        head,
        tests=tuple(changes.outcomes_changed(*first)),
        changes=tuple(sorted([*exact, *times], key=lambda change: change.test)),
        notes=tuple(_notes((base, head), first, ran, windows, times)),
        processes=sum(len(window.base) for window in windows if not window.problems),
        timed=len(chosen),
        untimed=len((may | same) - chosen),
    )


def _both(tests: Tests, base: Side, head: Side) -> tuple[FirstRun, FirstRun]:
    first, second = tests.metrics(base, head)
    return first, second


def _alike(
    tests: Tests, base: Side, head: Side, first: tuple[FirstRun, FirstRun], say: Say
) -> tuple[FirstRun, FirstRun]:
    """The runs to compare: of the tests that pass on both sides, without the others.

    What happens once in a process (the first use of an operation is traced and compiled) belongs to the test that does
    it first. A test that fails on one side leaves it to the next test there, which then seems to have changed.
    """
    while changes.outcomes_changed(*first) and (both := frozenset(changes.passed_in_both(*first))):
        if both == tests.only:  # as where pytest is given the names of tests, and finds each of them again
            break
        tests.only = both
        without = "without the tests that do not pass on both sides, which shift what happens once a process"
        say(f"what is exact: again, {without}")
        first = _both(tests, base, head)
    return first


def _notes(
    sides: tuple[Side, Side],
    first: tuple[FirstRun, FirstRun],
    ran: tuple[FirstRun, FirstRun],
    windows: Sequence[Window],
    times: Sequence[MetricChange],
) -> Iterator[str]:
    base, head = sides
    if base.stand is None and base.packages.versions == head.packages.versions:
        yield "both sides have the same code and packages: each change is noise, or depends on a folder's name"
    for side, each in zip(sides, ran, strict=True):
        if each.run.problem:
            yield f"at the {side.name}, {each.run.problem}"
    if problems := [problem for window in windows for problem in window.problems]:
        gave = plural(len(problems), "process gave", "processes gave")
        yield f"{gave} no times, so that their windows do not count: {problems[0]}"
    if lost := changes.passed_in_both(*first) - changes.passed_in_both(*ran):
        beside = "they pass only beside tests that do not pass on both sides"
        yield f"not compared, because {beside}: {', '.join(sorted(lost))}"
    if times and all(change.interval is None for change in times):
        yield (
            f"so few processes cannot call a change of any of {plural(len(times), 'time')}: allow more --minutes, "
            "or take fewer tests"
        )
