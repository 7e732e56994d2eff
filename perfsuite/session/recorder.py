"""The metrics of one perf test, under names that are unique in it, and the gates that were applied to them."""

import dataclasses
import itertools
import numbers
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from perfsuite.gate import messages
from perfsuite.gate.budget import BudgetExceeded
from perfsuite.gate.environment import packages_of
from perfsuite.gate.verdict import (
    NO_EVIDENCE,
    Evidence,
    Rerun,
    Result,
    Verdict,
    judge_budget,
    of_another_day,
    with_rerun,
)
from perfsuite.measure.compiles import callsite
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Estimate, Metric, is_finite, title
from perfsuite.measure.private.capabilities import fallbacks
from perfsuite.measure.switches import switches_first
from perfsuite.measure.words import printable
from perfsuite.session.judge import Judge
from perfsuite.session.modes import Answer
from perfsuite.session.records import ProgramRecord, TestRecord, TraceRecord


@dataclasses.dataclass(frozen=True)
class Measured:
    """One call of an instrument in a test: what its metrics are called, and by what a later session knows them again.

    `name` is for people: the function's name, or that which the test gave, made unique in the test. `id` is the
    instrument with the name that the test gave, or else with the call's place among its calls that make such metrics.
    """

    instrument: str
    name: str
    id: str

    def metrics(self, named: Iterable[Metric]) -> list[Metric]:
        """The metrics, which are called `name` and what they are, with their ids: `compare:loop ratio to ready`."""
        return [dataclasses.replace(metric, id=self.id_of(metric.name.removeprefix(self.name))) for metric in named]

    def id_of(self, what: str) -> str:
        """The id of the metric that is called `name` and then `what`."""
        words = what.strip()
        if f"{words} ".replace("-", " ").startswith(f"{self.instrument} ".replace("_", " ")):
            words = words[len(self.instrument) :].strip()  # host calls of host_calls
        return f"{self.id} {words}".strip()


@dataclasses.dataclass(frozen=True)
class _Recorded:
    tolerance: float | None
    evidence: Evidence
    where: str


class Recorder:
    """Records what one test measures. A result is finished when it is appended, and is never changed.

    Budgets are checked at once. When the test's body has ended, `by_baseline` judges what was measured, `confirmed`
    takes in what a fresh process sees of what fails, and `close` says what the test failed for.
    """

    def __init__(self, judge: Judge, test: str, tolerance: float | None):
        self._judge = judge
        self._test = test
        self._tolerance = tolerance
        self._recorded: dict[str, _Recorded] = {}
        self._numbers: dict[tuple[str | None, ...], int] = {}
        self._places: dict[tuple[str | None, ...], int] = {}
        self._ids: dict[tuple[str, str | None], str] = {}
        self.unknown: dict[tuple[str, str | None], str] = {}
        """Why an instrument could not tell a metric that it tells elsewhere, by id and target."""
        self.uninstalled: dict[str, str] = {}
        """What the compiler for a target lacks here, by target."""
        self._kept: list[Callable[[], object]] = []
        self._ended = False
        self.method = ""
        """The method of `perf` that measures, such as "perf.donation"."""
        self.metrics: dict[str, Metric] = {}
        """By title: the same name may stand for the present device and for a target."""
        self.results: list[Result] = []
        self.traces: list[TraceRecord] = []
        """Of --perf-trace."""
        self.programs: list[ProgramRecord] = []
        """Of --perf-report."""
        self.compiled = 0
        """Programs that a compiler was run for; `cached` are those whose facts were in the cache."""
        self.cached = 0
        self.unestimated: list[str] = []
        """The kernels without a cost estimate, each with its place."""
        self.notes: list[str] = []
        """Sentences for the end of the session."""

    def add(
        self, metric: Metric, tolerance: float | None = None, evidence: Evidence = NO_EVIDENCE, *, once: bool = False
    ) -> None:
        """Record a metric. `tolerance` is the test's own where it is None, `evidence` is for the baseline's gate.

        With `once`, for a name that the test chose, raises `ValueError` where the test has a metric of that name.
        Raises it for an id that another metric has, too; and `MeasurementError` after the test's body.
        """
        allowed = self.tolerance(tolerance)
        if self._ended:
            raise MeasurementError(
                f"{self._test}: {metric.title} is recorded after the body of the test, when it is neither gated nor "
                "saved: use perf in the body of the test that it was given to, not when a fixture ends"
            )
        same_id = self._ids.setdefault((metric.id, metric.target), metric.title) != metric.title
        if same_id or (once and metric.title in self.metrics):
            name = metric.id if same_id else metric.title
            raise ValueError(f"{self._test} records {name!r} twice; give each metric a name of its own")
        self.metrics[metric.title] = metric
        where = callsite.location(sys._getframe(1))
        evidence = dataclasses.replace(evidence, cause=switches_first(self.method, evidence.cause))
        self._recorded[metric.title] = _Recorded(allowed, evidence, where)

    def measured(
        self, instrument: str, label: str, *suffixes: str, name: str | None = None, target: str | None = None
    ) -> Measured:
        """The next call of an instrument. `name` is the test's own, `label` that of the function.

        `suffixes` are what the names of its metrics end with.
        """
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{instrument}: name= must be a text, got {name!r}")
        name, label = name and printable(name), printable(label)
        key = instrument, name, target, *suffixes
        self._places[key] = place = self._places.get(key, 0) + 1
        id = instrument + (f":{name}" if name else "") + (f" #{place}" if place > 1 else "")
        return Measured(instrument, self.unique(name or label, *suffixes, target=target), id)

    def unique(self, name: str, *suffixes: str, target: str | None = None) -> str:
        """`name`, or `name #2` and so on, so that a second metric of the same function has a name of its own."""
        # A name that is taken stays taken: thousands of metrics of one function do not begin to count anew each time.
        key = (name, target, *suffixes)
        number = self._numbers.get(key, 1)
        candidate = name if number == 1 else f"{name} #{number}"
        while any(title(candidate + suffix, target) in self.metrics for suffix in suffixes or ("",)):
            number += 1
            candidate = f"{name} #{number}"
        self._numbers[key] = number
        return candidate

    def tolerance(self, own: float | None) -> float | None:
        """The tolerance of one metric: its own, or that of the test. Raises `ValueError` for one that is no number."""
        if own is None:
            return self._tolerance
        if isinstance(own, bool) or not isinstance(own, numbers.Real) or not (is_finite(own) and own > 0):
            raise ValueError(f"tolerance= must be a number above zero, got {own!r}")
        return float(own)

    def fails(self, metric: Metric, tolerance: float | None = None) -> bool:
        """Whether a metric is going to fail against its baseline, so that its cause is worth a look now."""
        return self._judge.fails(self._judge.judge(self._test, metric, self.tolerance(tolerance)))

    def gravest(self, metrics: Iterable[Metric]) -> Metric | None:
        """Of the metrics that are going to fail against their baselines, the one that a message has in full."""
        results = (self._judge.judge(self._test, metric, self._tolerance) for metric in metrics)
        failed = messages.by_weight(filter(self._judge.fails, results))
        return failed[0].metric if failed else None

    def check_budget(self, metric: Metric, limit: float, cause: Callable[[], str]) -> None:
        """Raise `BudgetExceeded`, with the likely cause, where a metric is over its limit."""
        __tracebackhide__ = True  # a failure is shown at the test's own line
        self.apply([judge_budget(self._test, metric, limit)], cause)

    def apply(self, results: list[Result], cause: Callable[[], str] = str) -> None:
        """Append the gates of a budget, and raise `BudgetExceeded` for the first that fails, with its likely cause.

        A budget that is undecided is not exceeded: where --perf-strict fails it, it does so when the test has ended.
        """
        __tracebackhide__ = True
        failures = list(map(self._judge.fails, results))
        why = cause() if any(failures) else ""
        where = callsite.location(sys._getframe(1))
        for result, fails in zip(results, failures, strict=True):
            if fails or result.verdict == Verdict.INCONCLUSIVE:
                likely = switches_first(self.method, result.cause or (why if fails else ""))
                result = dataclasses.replace(result, cause=likely)
            self.results.append(result if fails else self._judge.strictly(result, where))
        if any(failures):
            raise BudgetExceeded(messages.failure([self.results[failures.index(True) - len(results)]]))

    def record(self, *, passed: bool, used: bool = True, not_entered: Iterable[str] = (), **facts: Any) -> TestRecord:
        """All of it as plain values. `used` says whether any instrument was called, `not_entered` which of those that
        are blocks were called without `with`.

        `facts` are the fields of `TestRecord` that do not depend on what was measured.
        """
        unnoticed = self._unnoticed(used, not_entered) if passed else ()
        details = (metric.detail or () for metric in self.metrics.values())
        return TestRecord(
            self._test,
            passed,
            tuple(self.results),
            tuple(self.metrics.values()),
            self.compiled,
            self.cached,
            tuple(self.traces),
            programs=tuple(self.programs),
            unestimated=tuple(self.unestimated),
            notes=(*fallbacks(), *self.notes, *unnoticed),
            packages=packages_of([*itertools.chain(*details)]) if self._judge.options.save else (),
            where={title: recorded.where for title, recorded in self._recorded.items()},
            tolerances={title: each.tolerance for title, each in self._recorded.items() if each.tolerance is not None},
            **facts,
        )

    def _unnoticed(self, used: bool, not_entered: Iterable[str]) -> Iterator[str]:
        """What a test that passed does not show."""
        if not used:
            yield f"{self._test} has perf, and calls none of its instruments: it measures nothing"
        for method in dict.fromkeys(not_entered):
            yield f"{self._test} calls {method}() and never enters it, so it checks nothing: with {method}(): ..."
        if failed := [result for result in self.results if result.source == "budget" and self._judge.fails(result)]:
            yield f"{self._test} passed although {failed[0].metric.title} failed its budget: the test caught the error"

    def when_saved(self, keep: Callable[[], object]) -> None:
        """Have `keep` called when the test's body has ended, where its metrics become baselines."""
        self._kept.append(keep)

    def by_baseline(self) -> list[Result]:
        """Every metric as its baseline judges it. Nothing can be recorded any more."""
        self._ended = True
        return list(map(self._judged, self.metrics.values()))

    def confirmed(self, results: list[Result], answer: Answer) -> list[Result]:
        """The results, with what a fresh process saw of the doubtful ones: a ratio or a time has to fail there too."""
        metrics = {metric.title: metric for metric in answer.metrics}

        def confirmed(result: Result) -> Result:
            metric = metrics.get(result.metric.title)
            if metric is None or (metric.kind, metric.unit) != (result.metric.kind, result.metric.unit):
                return with_rerun(result, Rerun(failure=answer.failure or "it did not make this metric"), fails=True)
            second = self._judged(dataclasses.replace(metric, id=result.metric.id))
            return with_rerun(result, Rerun(Estimate(metric.value, of_another_day(metric))), fails=second.failed)

        return [confirmed(result) if result.doubtful else result for result in results]

    def close(self, results: list[Result], *, ended: bool = True, lost: str = "") -> list[Result]:
        """Append the results of the baselines, and those of recorded metrics that were not made.

        Where the test's body did not come to its end (`ended`), metrics that it did not make are no matter. They are
        not comparable where that is for something that does not work with the libraries that are installed, which
        `lost` says.

        Returns what fails the test, budgets that --perf-strict fails first.
        """
        undecided = [result for result in self.results if result.strict]
        results = [self._judge.strictly(result, self._recorded[result.metric.title].where) for result in results]
        if ended or lost:
            results += self._judge.absent(self._test, self.metrics.values(), self.unknown, lost, self.uninstalled)
        self.results += results
        if self._judge.options.save:
            for keep in self._kept:
                keep()
        return list(filter(self._judge.fails, undecided + results))

    def _judged(self, metric: Metric) -> Result:
        recorded = self._recorded[metric.title]
        return self._judge.judge(self._test, metric, recorded.tolerance, recorded.evidence)
