"""What changed between the base and the head: the tests, what is exact, the times, and `check`, which asks all of it.

Counts and sizes are compared by the gate's own rules (`gate.verdict`), with the metrics of the base as the baseline.

Times. Each process has a speed of its own (it depends on where its memory lies), and the machine drifts: for one ratio
with the same host calls, one process of each side gave 1.4 and 3.2 (`filter_jit` over `jit`, jax 0.10.0 and 0.10.2, 2
cores at a load average of 15). So each process gives one observation of each time or ratio of times, and processes of
both sides run in windows, in random order.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from perfsuite.against.notes import Fingerprint, Notes, Place, Stage
from perfsuite.against.runs import Effort, Run, Say, Tests, Window, share, timed_windows
from perfsuite.against.sides import Side, SideFailed
from perfsuite.gate.baseline import Baselines, Entry, metric_of, name_of
from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import Result, Verdict, judge_absent, judge_baseline
from perfsuite.measure.metric import Estimate, Interval, Metric, title
from perfsuite.measure.serialise import plain
from perfsuite.measure.timing.shift import Windows, rank_sum_interval, shift
from perfsuite.measure.words import plural

ERROR = 0.05
"""The probability that a whole check calls any change of a time where there is none."""

LEAST_STAGE_SECONDS = 0.01
"""A stage of compiling that takes less in a test, on average, is not compared: each time more widens all intervals."""

PRECISION = 0.02
"""A time whose ratio is known to so much, either way, needs no more processes."""

Key = tuple[str, str, str]
"""Test, metric and unit."""

Timed = Literal["changed", "all", "none"]
"""Which tests are timed: those that changed in what is exact or in what they run, all, or none."""

_STAGE_UNITS: dict[Stage, str] = {"lower": "lowerings", "compile": "compiles"}
"""Not traces: JAX tells of them around calls whose trace is cached too, so there are as many as calls."""

_ONE_SIDED = (Verdict.NEW, Verdict.MISSING, Verdict.NOT_COMPARABLE)
"""Nothing of these is compared."""
_TOLERANCE = 0.05
"""By how much a ratio that a test records may be worse: both are of this machine and of now, not of another day."""

_SAME = Environment("the same on both sides", 1, "", "", "", "")


@dataclasses.dataclass(frozen=True)
class TestChange:
    """A test that did not pass on both sides, or a file that was not collected: how it ended on each, and why."""

    __test__ = False

    test: str
    base: str
    head: str
    reason: str

    @property
    def worse(self) -> bool:
        """Whether it can no longer be run, or fails where it passed."""
        return self.base == "passed" != self.head

    @property
    def skipped(self) -> bool:
        """Whether it was skipped on both sides."""
        return self.base == self.head == "skipped"

    @property
    def only_at_head(self) -> bool:
        """Whether it is a test for what only the head has."""
        return self.head == "passed" and self.base not in ("passed", "skipped")


@dataclasses.dataclass(frozen=True)
class Check:
    """What a check found.

    `processes` is how many took times on each side, `timed` the number of tests that were timed and `untimed` of those
    that were not because they run what they ran. `notes` are sentences for the reader.
    """

    base: Side
    head: Side
    tests: tuple[TestChange, ...]
    changes: tuple[Result, ...]
    notes: tuple[str, ...]
    processes: int = 0
    timed: int = 0
    untimed: int = 0

    @property
    def worse(self) -> bool:
        """Whether anything is."""
        return any(change.verdict == Verdict.FAIL for change in self.changes) or any(test.worse for test in self.tests)

    @property
    def compared(self) -> bool:
        """Whether any metric was made on both sides and could be compared."""
        return any(change.verdict not in _ONE_SIDED for change in self.changes)

    @property
    def only_new(self) -> bool:
        """Whether there is nothing to compare because the head alone has what the tests are for."""
        return any(test.only_at_head for test in self.tests) and not self.changes

    @property
    def versions(self) -> list[str]:
        """The packages that differ: `["jax 0.10.0 -> 0.10.2"]`."""
        return versions_changed(self.base.packages.versions, self.head.packages.versions)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, for --json."""
        return {
            "schema": 3,
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


def outcomes_changed(base: Run, head: Run) -> list[TestChange]:
    """Every test that did not pass on both sides, those that are worse first. Nothing of it is compared."""
    changes: list[TestChange] = []
    for test in dict.fromkeys([*base.notes.tests, *head.notes.tests]):
        (was, why_base), (now, why_head) = (side.notes.tests.get(test, ("not run", "")) for side in (base, head))
        if not was == now == "passed":
            both = (("head", why_head), ("base", why_base))
            why = why_head if why_base == why_head else "; ".join(f"{name}: {text}" for name, text in both if text)
            changes.append(TestChange(test, was, now, why))
    return sorted(changes, key=lambda change: not change.worse)


def passed_in_both(base: Run, head: Run) -> set[str]:
    """The tests whose metrics can be compared."""
    return base.notes.passed & head.notes.passed


def metrics_changed(base: Run, head: Run) -> list[Result]:
    """Every exact metric of the tests that passed on both sides, by the gate's rules.

    Times and sampled ratios are left out: many processes measure them, and these runs took one look at each.
    """
    passed = passed_in_both(base, head)
    here = base.notes.device or head.notes.device
    changes: list[Result] = []
    for device in sorted({*base.baselines, *head.baselines}):
        old, new = (each.baselines.get(device, Baselines(device)).metrics for each in (base, head))
        for key in sorted({*old, *new}):
            test = pytest_id(key)
            if test not in passed:
                continue
            was, now = old.get(key, {}), new.get(key, {})
            for id, entry in sorted({**was, **now}.items()):
                target = None if device == here else device
                shown = title(name_of(id, entry), target)
                place = head.place(test, shown) or base.place(test, shown) or Place()
                if not place.sampled and entry.kind not in ("time", "info"):
                    changes.append(judge(test, id, was.get(id), now.get(id), place, target))
    return changes


def stages_changed(base: Run, head: Run) -> list[Result]:
    """How often each test lowered and compiled, by function."""
    changes = []
    for test in sorted(passed_in_both(base, head)):
        for stage, unit in _STAGE_UNITS.items():
            old, new = (
                [note for note in each.notes.stages if (note.test, note.stage) == (test, stage)]
                for each in (base, head)
            )
            if not old and not new:
                continue
            was, now = (Counter({note.function: note.count for note in notes}) for notes in (old, new))
            places = {note.function: note.place for note in new if note.place}
            before, after = (
                Entry(counts.total(), unit, "count", "measured", _SAME, detail=dict(counts) or None)
                for counts in (was, now)
            )
            changes.append(judge(test, unit, before, after, Place(parts=places)))
    return changes


def to_time(changes: Iterable[Result], base: Run, head: Run) -> tuple[set[str], set[str]]:
    """The tests with times that may have changed, and those with times that run what they ran.

    A test is timed where any of its exact metrics changed, and where what a call of it runs differs between the sides,
    or is not known.
    """
    changed = {change.test for change in changes if change.verdict not in (Verdict.PASS, Verdict.INFO)}
    may: set[str] = set()
    same: set[str] = set()
    for test, (old, new) in _runs(base, head).items():
        alike = old == new and all(runs.complete for runs in new.values())
        (same if alike and test not in changed else may).add(test)
    return may, same


def with_causes(times: Iterable[Result], exact: Sequence[Result], base: Run, head: Run) -> list[Result]:
    """The times that are worse, each with what else changed in its test."""
    runs = _runs(base, head)
    changes = []
    for change in times:
        if change.failed:
            name = change.metric.title
            place = head.place(change.test, name) or Place()
            rose = [each.metric.title for each in exact if each.test == change.test and each.verdict == Verdict.FAIL]
            old, new = runs.get(change.test, ({}, {}))
            parts = [what for call in old.keys() & new.keys() for what in old[call].differing(new[call])]
            others = ", ".join(dict.fromkeys([*parts, *rose]))
            cause = f"{others} changed in this test" if others else ""
            unexplained = "" if cause or change.metric.unit == "s" else "nothing that is exact changed in this test"
            change = dataclasses.replace(change, where=place.line, cause=cause, unexplained=unexplained)
        changes.append(change)
    return changes


def pytest_id(key: str) -> str:
    """The test as pytest knows it: a baseline file adds the size."""
    return key.partition(" --perf-size=")[0]


def judge(test: str, id: str, old: Entry | None, new: Entry | None, place: Place, target: str | None = None) -> Result:
    """What the gate says of a metric at the head, with that of the base as its baseline."""
    if new is None:
        assert old is not None
        return judge_absent(test, id, old, target, "")
    metric = dataclasses.replace(metric_of(id, new, target), places=place.parts or None)
    # Both are of this machine. The gate must not name the versions, which differ for every metric.
    now = old.environment if old and old.environment else _SAME
    result = judge_baseline(test, metric, old, now=now, tolerance=_TOLERANCE)
    return dataclasses.replace(result, where=place.line) if result.failed else result


def _runs(base: Run, head: Run) -> dict[str, tuple[Mapping[str, Fingerprint], Mapping[str, Fingerprint]]]:
    """What each test that passed on both sides runs to time it: at the base and at the head, by the metrics' titles."""
    pairs: dict[str, tuple[Mapping[str, Fingerprint], Mapping[str, Fingerprint]]] = {}
    for test in passed_in_both(base, head):
        old, new = (
            {name: place.runs for name, place in each.notes.places.get(test, {}).items() if place.sampled}
            for each in (base, head)
        )
        if old or new:
            pairs[test] = old, new
    return pairs


def versions_changed(base: Mapping[str, str], head: Mapping[str, str]) -> list[str]:
    """The packages that differ: `["jax 0.10.0 -> 0.10.2"]`."""
    return [
        f"{name} {base.get(name, 'absent')} -> {head.get(name, 'absent')}"
        for name in sorted({*base, *head})
        if base.get(name) != head.get(name)
    ]


def times_changed(windows: Sequence[Window], tests: set[str]) -> list[Result]:
    """The times of `tests`: head / base over processes, with intervals that hold for all of them together.

    Each interval has the shifts of the logarithm that the rank-sum test over the windows does not reject
    (`measure.timing.shift`). It assumes nothing of the times but the random order of the processes, where Student's t
    needs means of few and heavy-tailed times to be normal; the price is that a few processes give no interval at all.
    The error is shared out equally among the metrics (O. J. Dunn, Multiple comparisons among means, Journal of the
    American Statistical Association 56, 1961), and among the looks, one after each window but the first.
    """
    times = rows(windows, tests)
    error = ERROR * share(max(1, len(windows) - 1)) / max(1, len(times))
    return [_time_changed(key, sides, error) for key, sides in times.items()]


def decided(changes: Sequence[Result]) -> bool:
    """Whether every time of a call is known: as better, as worse, or to `PRECISION`.

    The times of tracing, lowering and compiling do not count: they happen once a process, and scatter too much.
    """
    intervals = [
        change.ratio.interval
        for change in changes
        if change.ratio and change.metric.unit != "s" and change.verdict not in (Verdict.FAIL, Verdict.IMPROVED)
    ]
    return all(each.high <= each.low * (1 + PRECISION) ** 2 for each in intervals)


def smallest_change(changes: Sequence[Result]) -> float | None:
    """The change that would have been called for half of the times, as a ratio - 1; None where none has an interval."""
    intervals = [change.ratio.interval for change in changes if change.ratio]
    widths = [math.log(each.high / each.low) / 2 for each in intervals if math.isfinite(each.high)]
    return math.expm1(float(np.median(widths))) if widths else None


def rows(windows: Sequence[Window], tests: set[str]) -> dict[Key, list[Windows]]:
    """The logarithm of each time that all processes have, by window: (head, base), each of shape (1, processes).

    A window of which a process has no notes does not count: the order of the others was not drawn by lot.
    """
    sides = [
        [[_times(run.notes, tests) for run in runs] for runs in (window.head, window.base)]
        for window in windows
        if not window.problems
    ]
    every = [times for pair in sides for side in pair for times in side]
    common = set.intersection(*map(set, every)) if every else set()
    return {
        key: [
            (np.log([[times[key] for times in head]]), np.log([[times[key] for times in base]])) for head, base in sides
        ]
        for key in sorted(common)
        if key[2] != "s" or sum(times[key] for times in every) >= LEAST_STAGE_SECONDS * len(every)
    }


def _times(notes: Notes, tests: set[str]) -> dict[Key, float]:
    stages: defaultdict[Key, float] = defaultdict(float)
    for note in notes.stages:
        stages[note.test, f"seconds to {note.stage}", "s"] += note.seconds
    times = {(note.test, note.name, note.unit): note.value for note in notes.times}
    return {key: value for key, value in (stages | times).items() if key[0] in tests and value > 0}


def _time_changed(key: Key, windows: list[Windows], error: float) -> Result:
    test, name, unit = key
    logs = rank_sum_interval(windows, error)
    head, base = (float(np.exp(np.median(np.concatenate([w[side].ravel() for w in windows])))) for side in (0, 1))
    ratio = Estimate(math.exp(shift(windows)), Interval(math.exp(logs.low), math.exp(logs.high)))
    verdict = Verdict.PASS if math.isfinite(logs.high) else Verdict.INCONCLUSIVE
    if logs.low > 0:
        verdict = Verdict.FAIL
    elif logs.high < 0:
        verdict = Verdict.IMPROVED
    metric = Metric(name, head, unit, "ratio" if unit == "x" else "time")
    return Result(test, metric, verdict, "baseline", baseline=base, ratio=ratio)


def check(
    base: Side, head: Side, arguments: Sequence[str], effort: Effort, *, timed: Timed, scratch: Path, say: Say
) -> Check:
    """Compare the tests on two sides. `arguments` are pytest's, `scratch` is a folder that nobody else uses.

    Raises `SideFailed`.
    """
    tests = Tests(arguments, scratch / "runs")
    say(f"what is exact: the tests at the base, {base.title}, and at the head, {head.title}")
    first = tests.metrics(base, head)
    for side, run in zip((base, head), first, strict=True):
        if not run.notes.tests and (side is base or not run.problem):
            raise SideFailed(f"nothing to compare: at the {side.name}, {run.problem or 'no perf test was found'}")
    ran = _alike(tests, base, head, first, say)
    exact = [*stages_changed(*ran), *metrics_changed(*ran)]
    may, same = to_time(exact, *ran)
    chosen = {"changed": may, "all": may | same, "none": set[str]()}[timed]
    windows: list[Window] = []
    times: list[Result] = []
    if chosen:
        untimed = f", {len(same)} others run what they ran" if same - chosen else ""
        say(f"times: {plural(len(chosen), 'test')}{untimed}")
        tests.only = frozenset(chosen)
        for window in timed_windows(tests, (base, head), effort, first=ran, say=say):
            windows.append(window)
            times = times_changed(windows, chosen)
            if len(windows) > 1 and times and decided(times):
                break
        times = with_causes(times, exact, *ran)
    return Check(
        base,
        head,
        tests=tuple(outcomes_changed(*first)),
        changes=tuple(sorted([*exact, *times], key=lambda change: change.test)),
        notes=tuple(_notes((base, head), first, ran, windows, times)),
        processes=sum(len(window.base) for window in windows if not window.problems),
        timed=len(chosen),
        untimed=len((may | same) - chosen),
    )


def _alike(tests: Tests, base: Side, head: Side, first: Sequence[Run], say: Say) -> Sequence[Run]:
    """The runs to compare: of the tests that pass on both sides, without the others.

    What happens once in a process (the first use of an operation is traced and compiled) belongs to the test that does
    it first. A test that fails on one side leaves it to the next test there, which then seems to have changed.
    """
    # One that is skipped on both sides runs the same part on both.
    while not all(test.skipped for test in outcomes_changed(*first)) and (both := frozenset(passed_in_both(*first))):
        if both == tests.only:  # as where pytest is given the names of tests, and finds each of them again
            break
        tests.only = both
        without = "without the tests that do not pass on both sides, which shift what happens once a process"
        say(f"what is exact: again, {without}")
        first = tests.metrics(base, head)
    return first


def _notes(
    sides: tuple[Side, Side],
    first: Sequence[Run],
    ran: Sequence[Run],
    windows: Sequence[Window],
    times: Sequence[Result],
) -> Iterator[str]:
    base, head = sides
    if base.stand is None and base.packages.versions == head.packages.versions:
        yield "both sides have the same code and packages: each change is noise, or depends on a folder's name"
    for side, each in zip(sides, ran, strict=True):
        if each.problem:
            yield f"at the {side.name}, {each.problem}"
    if problems := [problem for window in windows for problem in window.problems]:
        gave = plural(len(problems), "process gave", "processes gave")
        yield f"{gave} no times, so that their windows do not count: {problems[0]}"
    if lost := passed_in_both(*first) - passed_in_both(*ran):
        beside = "they pass only beside tests that do not pass on both sides"
        yield f"not compared, because {beside}: {', '.join(sorted(lost))}"
    if times and not any(change.ratio and math.isfinite(change.ratio.interval.high) for change in times):
        yield (
            f"so few processes cannot call a change of any of {plural(len(times), 'time')}: allow more --minutes, "
            "or take fewer tests"
        )
