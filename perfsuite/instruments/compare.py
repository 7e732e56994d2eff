"""`perf.compare`: how much slower one call is than another, measured in pairs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

from perfsuite.gate.budget import Budget
from perfsuite.gate.diagnosis import likely_cause, unexplained
from perfsuite.gate.verdict import Evidence
from perfsuite.instruments.base import NO_BUDGET, Instrument, check_choice, declare
from perfsuite.measure import peers
from perfsuite.measure.call import Call, checked
from perfsuite.measure.compiles.compiles import tracing_allowed
from perfsuite.measure.runtime.dispatches import dispatches
from perfsuite.measure.runtime.fast_path import fast_path
from perfsuite.measure.runtime.host_calls import HostCalls, host_calls
from perfsuite.measure.timing.block import COLUMNS, Until
from perfsuite.measure.timing.comparison import Comparison
from perfsuite.measure.timing.waits import Asynchrony, asynchrony
from perfsuite.session.modes import Pair
from perfsuite.session.recorder import Measured

T = TypeVar("T")

COMPARE = declare(
    "perf.compare",
    {
        "ratio": "candidate over reference",
        "overhead_us": "candidate minus reference",
    },
    needs=("quiet",),
)

WATCH_SECONDS = 0.5
"""How long a failing candidate is watched for whether it waits."""


class CompareInstrument(Instrument):
    def compare(
        self,
        candidate: Call,
        reference: Call,
        budget: Budget = NO_BUDGET,
        *,
        until: Until = "ready",
        name: str | None = None,
        tolerance: float | None = None,
        traces: bool = False,
    ) -> Comparison:
        """Compare two calls, paired and interleaved in random order: `.ratio`, `.overhead_us`, `.verdict`.

        `until="return"` compares what the host pays, `until="ready"` what the user waits. Sampling stops as soon as
        the intervals lie wholly above one limit, or wholly below all of them: the budget's `ratio` and `overhead_us`,
        and the baseline's.
        `.verdict` is that of the budget; without one, that of the baseline before a fresh process confirms it.
        The two calls must not share arrays that either donates. `traces=True` is for calls that are meant to trace in
        every run.
        """
        __tracebackhide__ = True
        self._begin(COMPARE, budget)
        check_choice("perf.compare(until=...)", until, COLUMNS)
        calls = checked(candidate, "perf.compare"), checked(reference, "perf.compare")
        label = f"{calls[0].label}/{calls[1].label}"
        measured = self._recorder.measured("compare", label, f" ratio to {until}", name=name)
        pair = Pair(self._item, measured.name, *calls, until, self._seconds)
        with tracing_allowed(traces):
            return self._compare(pair, measured, budget, tolerance)

    def _compare(self, pair: Pair, measured: Measured, budget: Budget, tolerance: float | None) -> Comparison:
        __tracebackhide__ = True
        self._session.mode.about_to_time(self._item, [pair.metric], [pair.candidate, pair.reference])
        allowed = self._recorder.tolerance(tolerance)
        limits = self._judge.limits(budget, self._test, measured.id_of(f"ratio to {pair.until}"), allowed)
        compared = self._session.mode.compare(pair, limits)
        ratio, overhead = metrics = measured.metrics(compared.comparison.metrics(measured.name))
        us = max(compared.comparison.candidate_median_us, compared.comparison.reference_median_us)
        self._keep_trace(pair.candidate, pair.name, "candidate", us=us)
        self._keep_trace(pair.reference, pair.name, "reference", us=us)
        results = limits.judge(self._test, metrics, compared)
        by_baseline = self._judge.judge(self._test, ratio, allowed)
        over = [result for result in (*results, by_baseline) if self._judge.fails(result) or result.open_over]
        cause, unknown = self._why(pair, compared.comparison) if over else ("", "")
        self._recorder.add(ratio, tolerance, Evidence(cause, unknown))
        self._recorder.add(overhead, tolerance)
        self._recorder.apply([dataclasses.replace(result, unexplained=unknown) for result in results], lambda: cause)
        return dataclasses.replace(
            compared.comparison, verdict=str(max(result.verdict for result in results or [by_baseline]))
        )

    def _why(self, pair: Pair, comparison: Comparison) -> tuple[str, str]:
        """The likely cause; or, where none is found, what is known."""
        us = max(comparison.candidate_median_us, comparison.reference_median_us)
        traced, longer_us = self._tracing.compared(pair.candidate, pair.reference, us)
        group = self._session.group
        last = "" if group is None else group.last_to_return[0]  # of the candidate's samples
        cause, unknown = _cause(pair, comparison, longer_us)
        cause = "\n".join(filter(None, [cause, _slow_path(pair)]))
        text = "\n".join(filter(None, [cause or unknown, last, traced]))
        return (text, "") if cause else ("", text)


def _cause(pair: Pair, comparison: Comparison, longer_us: float) -> tuple[str, str]:
    """The likely cause, and what is known where there is none."""
    try:
        candidate, reference = (host_calls(side, exact=False) for side in (pair.candidate, pair.reference))
    except Exception as error:  # whatever the code under test raises now must not hide that its gate failed
        candidate = reference = HostCalls(pair.name, 0, 0, {})
        unknown = f"counting host calls raised {type(error).__name__}: {error}"
    else:
        unknown = unexplained(comparison, candidate, reference)
    programs, watched = _of_both(pair, dispatches), functools.partial(_watched, pair)
    cause = likely_cause(comparison, candidate, reference, programs=programs, longer_us=longer_us, watched=watched)
    return cause, unknown


def _slow_path(pair: Pair) -> str:
    """Which calls of jitted functions JAX's fast path does not take for the candidate, and why."""
    both = _of_both(pair, fast_path)
    if both is None or both[0].misses <= both[1].misses:
        return ""
    return f"JAX's fast path does not take, on every call: {both[0]}"


def _watched(pair: Pair) -> tuple[Asynchrony, Asynchrony] | None:
    if not peers.alone():  # each process would run the calls as often as its own clock allows
        return None
    return _of_both(pair, functools.partial(asynchrony, seconds=WATCH_SECONDS))


def _of_both(pair: Pair, measure: Callable[[Call], T]) -> tuple[T, T] | None:
    try:
        return measure(pair.candidate), measure(pair.reference)
    except Exception:  # as above
        return None
