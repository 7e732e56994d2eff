"""Try steps: run the test at each, once for what is exact, and for a time in many processes beside the good end."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np

from perfsuite.against.environments import EnvironmentFailed
from perfsuite.against.following import Say
from perfsuite.against.found import ERROR
from perfsuite.against.runs import Effort, FirstRun, Run, Tests, Window, looks, timing_limit, windows
from perfsuite.against.sides import Side, SideFailed
from perfsuite.bisecting import metric
from perfsuite.bisecting.found import BisectFailed, Looks, Step, Verdict
from perfsuite.bisecting.kept import Kept
from perfsuite.bisecting.metric import Recorded, Wanted
from perfsuite.bisecting.steps import Steps
from perfsuite.gate.baseline import Entry
from perfsuite.git import GitError
from perfsuite.measure.metric import Interval
from perfsuite.measure.stats.rank_sum import shift_interval
from perfsuite.measure.words import number, plural

TRIALS_FAIL = (EnvironmentFailed, SideFailed, GitError)


class Unusable(Exception):  # noqa: N818  (a report, not a fault of this process)
    """The test does not run at a step. The message says why."""


@dataclasses.dataclass(frozen=True)
class Goal:
    """The metric's title, and its entry at the good end.

    `moved` is how far a time moves to the bad end, as a logarithm.
    """

    metric: str
    good: Entry
    moved: float = 0.0

    @property
    def looks(self) -> Looks:
        return "exact" if self.good.kind in metric.EXACT else "timed"


class Trials:
    """Tries the steps of one search, and keeps what it saw: a step that is kept is not tried again."""

    def __init__(self, steps: Steps, tests: Tests, wanted: Wanted, kept: Kept, effort: Effort, say: Say):
        self.steps, self.tests, self.wanted = steps, tests, wanted
        self.kept, self.effort, self.say = kept, effort, say
        self.goal: Goal | None = None
        self._open = contextlib.ExitStack()
        self._good: tuple[Side, FirstRun] | None = None
        self._good_id = ""
        self._facts: dict[str, Path] = {}

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def ends(self, good: str, bad: str) -> Goal:
        """Try both ends, and what is asked for there. Raises `BisectFailed`."""
        self._good_id = good
        start = self._recorded_at(good, "good")
        name, entry = self.wanted.metric, None
        if name:
            name, entry = metric.chosen(self.wanted, start, None)
        if entry is not None and entry.kind not in metric.EXACT:
            return self._timed_ends(bad, name, entry)
        end = self._recorded_at(bad, "bad")
        if entry is None:
            name, entry = metric.chosen(self.wanted, start, end)
        if name not in end.entries:
            raise BisectFailed(f'{self.wanted.test} makes no metric "{name}" at the bad end, {self.steps.name(bad)}')
        metric.check_ends(self.wanted.test, name, entry, end.entries[name])
        self.goal = Goal(name, entry)
        return self.goal

    def verdict(self, id: str) -> Verdict:
        """Good, bad, or skipped with a reason, of a step between the ends."""
        assert self.goal is not None
        step = self.kept.steps.get(id)
        if step is None:
            step = self._tried(id, self._look)
        if self.goal.looks == "exact" and step.verdict != "skipped":
            return self._judged(step).verdict
        return step.verdict

    def step(self, id: str) -> Step:
        """The step that was tried, with what is asked for in it."""
        step = self.kept.steps[id]
        if self.goal is None or not step.baselines:
            return step
        if self.goal.looks == "exact":
            return self._judged(step)
        if id == self._good_id:  # beside which the others are timed
            return dataclasses.replace(step, value=self.goal.good.value, unit=self.goal.good.unit)
        return step

    def facts(self, id: str) -> Path:
        """The folder of what compilers said at a step; it is gone after the search."""
        return self._facts.get(id, self.tests.folder / "no-facts")

    def _recorded_at(self, id: str, end: Verdict) -> Recorded:
        step = self.kept.steps.get(id)
        if step is None or step.verdict == "skipped":  # what was wrong may have been put right
            step = self._tried(id, lambda id, side: self._first(id, side, end))
        if step.verdict == "skipped":
            raise BisectFailed(f"the {end} end, {self.steps.name(id)}, says nothing: {step.reason}")
        return metric.of_step(step)

    def _tried(self, id: str, look: Callable[[str, Side], Step]) -> Step:
        began = time.monotonic()
        try:
            with self.steps.side(id) as side:
                step = look(id, side)
                remarks = "; ".join([step.reason, *side.notes, *side.environment.contradictions]).strip("; ")
                step = dataclasses.replace(step, reason=remarks, addresses=self.steps.addresses(side))
        except (*TRIALS_FAIL, Unusable) as error:
            step = Step(id, "skipped", reason=str(error))
        return self.kept.add(dataclasses.replace(step, seconds=round(time.monotonic() - began, 1)))

    def _look(self, id: str, side: Side) -> Step:
        assert self.goal is not None
        if self.goal.looks == "exact":
            return self._first(id, side, "good")
        return self._timed(self._first_of_time(id, side, self.goal.metric), side, self.goal)

    def _first(self, id: str, side: Side, verdict: Verdict) -> Step:
        """One run: all metrics of the test. The verdict is that of an end, or made when the step is asked for."""
        recorded = metric.of_test(self._ran(side), self.wanted.node)
        self._facts[id] = self.tests.facts(side)
        packages = dict(side.environment.packages)
        return Step(id, verdict, device=recorded.device, packages=packages, baselines=recorded.texts())

    def _first_of_time(self, id: str, side: Side, name: str) -> Step:
        """One run that makes the time; its verdict is to come."""
        first = self._first(id, side, "good")
        if name not in metric.of_step(first).entries:
            raise Unusable(_makes_none(name))
        return first

    def _ran(self, side: Side) -> FirstRun:
        self.say("the test, once")
        [first] = self.tests.metrics(side)
        notes, node = first.run.notes, self.wanted.node
        if first.run.problem:
            raise Unusable(first.run.problem)
        if node in notes.tests:
            outcome, why = notes.tests[node]
            if outcome != "passed":
                raise Unusable(f"the test {'is skipped' if outcome == 'skipped' else outcome}: {why}")
            return first
        for file, why in notes.uncollected.items():
            raise Unusable(f"{file} cannot be imported: {why}")
        raise Unusable(
            f"pytest finds no perf test {node}: an id is relative to pytest's rootdir, and `perfsuite show` prints it"
        )

    def _judged(self, step: Step) -> Step:
        assert self.goal is not None
        entry = metric.of_step(step).entries.get(self.goal.metric)
        if entry is None:
            return dataclasses.replace(step, verdict="skipped", reason=_makes_none(self.goal.metric))
        verdict, why = metric.verdict_of(self.wanted.test, self.goal.metric, entry, self.goal.good)
        return dataclasses.replace(
            step,
            verdict=verdict,
            value=entry.value,
            unit=entry.unit,
            reason="; ".join(filter(None, [why, step.reason])),
        )

    def _timed_ends(self, bad: str, name: str, good: Entry) -> Goal:
        """Whether the bad end is slower, and by how much."""
        self.goal = Goal(name, good)
        step = self.kept.steps.get(bad)
        if step is None or step.interval is None:
            step = self._tried(bad, self._look_at_end)
        if step.verdict == "skipped":
            raise BisectFailed(f"the bad end, {self.steps.name(bad)}, says nothing: {step.reason}")
        over = step.interval
        assert over is not None
        if over.high < 1:
            raise BisectFailed(
                f"{name} is better at the bad end ({_over(over)} the good end's): swap --good and --bad; the bad "
                "end may be the older one"
            )
        if over.low > 1:
            self.goal = Goal(name, good, math.log(over.low) / 2 + math.log(over.high) / 2)
            return self.goal
        raise BisectFailed(
            f"{name} is not known to be worse at the bad end: {_over(over)} the good end's after "
            f"{plural(self.effort.rounds, 'round')}; take more --rounds"
        )

    def _look_at_end(self, id: str, side: Side) -> Step:
        """Time the bad end, to be judged by its interval."""
        return dataclasses.replace(self._look(id, side), verdict="bad", reason="")

    def _timed(self, first: Step, side: Side, goal: Goal) -> Step:
        """Look at the time until it is clear on which side of half of the way to the bad end it lies."""
        good, run = self._good_side()
        limit = timing_limit([run])
        half = goal.moved / 2
        # The k-th step that is timed has 1 / (k * (k + 1)) of the error, so that all have no more than all of it.
        place = 1 + sum(step.interval is not None for step in self.kept.steps.values())
        error = ERROR / (place * (place + 1)) / looks(self.effort.rounds)
        seen: list[Window] = []
        logs = Interval(-math.inf, math.inf)
        for window in windows(self.tests, (good, side), self.effort, limit=limit, say=self.say):
            seen.append(window)
            logs = _logs(seen, self.wanted.node, goal.metric, error)
            if math.isfinite(logs.half_width):
                rounds = sum(len(each.base) for each in seen if each.complete)
                self.say(f"{_over(_times(logs))} the good end's after {plural(rounds, 'round')}")
            if len(seen) > 1 and (logs.low > half or logs.high < half):
                break
        if not math.isfinite(logs.high):
            problems = [run.problem for window in seen for runs in window.sides for run in runs if run.problem]
            raise Unusable(problems[0] if problems else "too few processes gave the time: take more --rounds")
        over = _times(logs)
        verdict: Verdict = "bad" if logs.low > half else "good" if logs.high < half else "skipped"
        reason = "undecided: half of the way is within it" if verdict == "skipped" else ""
        value = goal.good.value * math.exp((logs.low + logs.high) / 2)
        return dataclasses.replace(
            first, verdict=verdict, value=value, unit=goal.good.unit, reason=reason, interval=over
        )

    def _good_side(self) -> tuple[Side, FirstRun]:
        """The side of the good end, which stays until the search is over, and a run that says how long one takes."""
        if self._good is None:
            side = self._open.enter_context(self.steps.side(self._good_id))
            self._good = side, self._ran(side)
        return self._good


def _logs(seen: list[Window], test: str, name: str, error: float) -> Interval:
    """The interval of the logarithm of a step's time over the good end's, over the windows that are complete."""
    rows = []
    for window in seen:
        sides = [[_time(run, test, name) for run in runs] for runs in window.sides]
        if window.complete and all(time > 0 for times in sides for time in times):
            good, step = np.log(np.array([sides]))[0]
            rows.append((step[None, :], good[None, :]))
    return shift_interval(rows, error) if rows else Interval(-math.inf, math.inf)


def _time(run: Run, test: str, name: str) -> float:
    return next((note.value for note in run.notes.times if (note.test, note.name) == (test, name)), 0.0)


def _makes_none(name: str) -> str:
    return f"the test makes no {name} there"


def _times(logs: Interval) -> Interval:
    return Interval(math.exp(logs.low), math.exp(logs.high))


def _over(over: Interval) -> str:
    return f"{number(over.low)} to {number(over.high)} times"
