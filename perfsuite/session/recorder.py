"""The metrics of one perf test, under names that are unique in it, and the gates that were applied to them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from perfsuite.gate.budget import BudgetExceeded
from perfsuite.measure.measurement import Metric, title

if TYPE_CHECKING:
    from perfsuite.gate.verdict import Gate
    from perfsuite.session.plots import Distribution, Line
    from perfsuite.session.session import PerfSession


class Recorder:
    """Records metrics, checks their budgets at once, and judges them by the baselines when the test's body has ended.

    `causes` are said where the metric of that title fails.
    """

    def __init__(self, session: "PerfSession", test: str, tolerance: float | None):
        self._session = session
        self._test = test
        self._tolerance = tolerance
        self._tolerances: dict[str, float | None] = {}
        self.metrics: dict[str, Metric] = {}
        """By title: the same name may stand for the present device and for a target."""
        self.gates: list[Gate] = []
        self.causes: dict[str, str] = {}
        self._numbers: dict[tuple[str | None, ...], int] = {}
        self.settling: dict[str, Callable[[float], str]] = {}
        """By title: says what would settle whether a metric lies above a limit, where its interval holds the limit."""
        self.distributions: list[Distribution] = []
        """What the pictures of a report are made of, like `lines`: empty without --perf-report."""
        self.lines: list[Line] = []

    def record(self, metric: Metric, tolerance: float | None = None) -> None:
        """Record a metric. `tolerance` is the test's own where it is None."""
        self.metrics[metric.title] = metric
        self._tolerances[metric.title] = self.tolerance_of(tolerance)

    def record_once(self, metric: Metric, tolerance: float | None = None) -> None:
        """Record a metric whose name the test chose. Raises `ValueError` where there is one of that name."""
        if metric.title in self.metrics:
            raise ValueError(f"{self._test} records {metric.title!r} twice; give each metric a name of its own")
        self.record(metric, tolerance)

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

    def tolerance_of(self, tolerance: float | None) -> float | None:
        """The tolerance of one metric: its own, or that of the test."""
        return self._tolerance if tolerance is None else tolerance

    def against_baseline(self, metric: Metric) -> "Gate":
        """A recorded metric against its baseline, before the test's body has ended."""
        tolerance = self._tolerances[metric.title]
        cause = self.causes.get(metric.title, "")
        gate = self._session.judge(self._test, metric, tolerance, cause=cause)
        to_settle = self.settling.get(metric.title)
        if gate.verdict == "inconclusive" and gate.limit is not None and to_settle:
            return dataclasses.replace(gate, to_settle=to_settle(gate.limit))
        return gate

    def judge_baselines(self) -> "list[Gate]":
        """Every metric against its baseline."""
        return [self.against_baseline(metric) for metric in self.metrics.values()]

    def failing(self, gates: "Sequence[Gate]") -> "list[Gate]":
        """Those that fail the test because something got worse."""
        return [gate for gate in self._session.failures(list(gates)) if gate.source is not None]

    def budget_gate(self, metric: Metric, limit: float) -> "Gate":
        """A metric against a limit of the test's own."""
        from perfsuite.gate.verdict import judge_budget

        gate = judge_budget(self._test, metric, limit)
        self.gates.append(gate)
        return gate

    def leave_open(self, gate: "Gate", *, note: str = "", to_settle: str = "") -> "Gate":
        """The gate that was applied last, as one that is inconclusive."""
        self.gates[-1] = dataclasses.replace(gate, verdict="inconclusive", note=note, to_settle=to_settle)
        return self.gates[-1]

    def check_budget(self, metric: Metric, limit: float, cause: Callable[[], str]) -> None:
        """Raise `BudgetExceeded`, with the likely cause, where a metric is over its limit."""
        __tracebackhide__ = True  # a failure is shown at the test's own line
        gate = self.budget_gate(metric, limit)
        if gate.failed:
            self.fail(gate, cause())

    def fail(self, gate: "Gate", cause: str) -> None:
        """Raise `BudgetExceeded` for a gate that failed, whose cause is known now."""
        __tracebackhide__ = True
        place = next(i for i, applied in enumerate(self.gates) if applied is gate)
        gate = self.gates[place] = dataclasses.replace(gate, cause=cause)
        raise BudgetExceeded(self._session.say([gate]))
