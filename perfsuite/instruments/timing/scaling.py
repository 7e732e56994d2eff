"""`perf.scaling`: how a metric grows with the size of a call."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np

from perfsuite.gate.budget import Budget
from perfsuite.gate.diagnosis import growing
from perfsuite.gate.verdict import NO_EVIDENCE, Evidence
from perfsuite.instruments.base import NO_BUDGET, Declaration, Instrument, check_choice, declare
from perfsuite.measure.call import Call
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.private.capabilities import FIRST_CALLS
from perfsuite.measure.timing.scaling import MakeCall, Scaled, Scaling, calls_of, fit_calls, what_of
from perfsuite.session.plots import line_of
from perfsuite.session.unchanged import Look, Timed, look, when_timed

SCALING = declare("perf.scaling", budget=("us_per_leaf", "exponent"), needs=("timed", "alone"))
OF_TIMES = Declaration("perf.scaling of a time", budget=("us_per_leaf",), needs=SCALING.needs)
OF_COUNTS = Declaration("perf.scaling of a count", budget=("exponent",))
"""Counts need neither a quiet machine nor a process alone."""


class ScalingInstrument(Instrument):
    def scaling(
        self,
        make_call: MakeCall,
        sizes: Sequence[int],
        *,
        metric: Scaled = "return",
        budget: Budget = NO_BUDGET,
        name: str | None = None,
        tolerance: float | None = None,
    ) -> Scaling:
        """Fit a metric against size: `.per_unit`, `.intercept`, `.r_squared`.

        `make_call(size)` returns `(call, units)`, for example the call of a model with `size` layers and its number of
        leaves. `metric` is "return" or "ready" (microseconds), "host_calls", or a count of `perf.first_call` by the
        name of its budget, such as "trace_calls". `Budget(us_per_leaf=)` limits the slope of the first two,
        `Budget(exponent=)` the power with which the others grow; that takes three sizes.
        """
        __tracebackhide__ = True
        check_choice("perf.scaling(metric=...)", metric, get_args(Scaled))
        is_time = metric in ("return", "ready")
        limits = self._begin(OF_TIMES if is_time else OF_COUNTS, budget)
        if not is_time and metric != "host_calls":
            FIRST_CALLS.check(f"perf.scaling(metric={metric!r})")
        calls, units = calls_of(make_call, sizes)
        known_to = self._session.mode.known_to
        fit = functools.partial(fit_calls, calls, units, metric=metric, seconds=self._seconds, known_to=known_to)
        what = what_of(metric)
        measured = self._recorder.measured("scaling", calls[0].label, f" {what} per unit", name=name)
        seen = Look()
        if is_time:
            seen = look(self._session, self._test, measured, _timed(calls, units, what, limits))
        if seen.recorded:
            return self._recorded_scaling(calls[0].label, metric, list(seen.recorded.values()), limits, tolerance, fit)
        if seen.left:
            self._recorder.leave([f"{measured.name} {what} per unit"], seen.fingerprint)
            return when_timed(self._session, Scaling, fit, label=calls[0].label, metric=metric)
        scaling = fit()
        metrics = measured.metrics(scaling.metrics(measured.name))
        metrics[:1] = seen.of(metrics[:1])
        self._add(scaling, metrics, tolerance, NO_EVIDENCE if is_time else Evidence(cause=growing(scaling)))
        if self._session.options.traces is not None:
            self._tracing.keep_made_trace(make_call, max(sizes), measured.name)
        if "us_per_leaf" in limits:
            cause = f"R^2 of the line is {scaling.r_squared:.3f} over {len(scaling.units)} sizes"
            self._recorder.check_budget(metrics[0], limits["us_per_leaf"], lambda: cause)
        if "exponent" in limits:
            self._check_exponent(scaling, metrics, limits["exponent"])
        return scaling

    def _add(self, scaling: Scaling, metrics: Sequence[Metric], tolerance: float | None, evidence: Evidence) -> None:
        """Record the metrics. `evidence` is for the last, which says how the metric grows."""
        for each in metrics:
            self._recorder.add(each, tolerance, evidence if each is metrics[-1] else NO_EVIDENCE)
        if self._session.options.report is not None:
            self._recorder.lines.append(line_of(metrics[0].title, scaling))

    def _check_exponent(self, scaling: Scaling, metrics: Sequence[Metric], limit: float) -> None:
        __tracebackhide__ = True
        if scaling.exponent is None:
            raise ValueError(f"Budget(exponent=) needs three different sizes above 0, got {scaling.units.tolist()}")
        exponent = next(each for each in metrics if each.name.endswith(" exponent"))
        exact = dataclasses.replace(exponent, kind="size")
        self._recorder.check_budget(exact, limit, lambda: growing(scaling))

    def _recorded_scaling(
        self,
        label: str,
        metric: Scaled,
        recorded: list[Metric],
        limits: dict[str, float],
        tolerance: float | None,
        fit: Callable[[], Scaling],
    ) -> Scaling:
        """What the baseline says. What it does not have is measured when the test reads it."""
        for each in recorded:
            self._recorder.add(each, tolerance)
        slope = recorded[0]
        if "us_per_leaf" in limits:
            self._recorder.check_budget(slope, limits["us_per_leaf"], str)
        per_unit = Estimate(slope.value, slope.interval or Interval(-math.inf, math.inf))
        return when_timed(self._session, Scaling, fit, label=label, metric=metric, per_unit=per_unit)


def _timed(calls: list[Call], units: np.ndarray, what: str, limits: dict[str, float]) -> Timed:
    """The scaling, for a look at whether it has to be made."""
    slope = f"{what} per unit"
    budget = {slope: limits["us_per_leaf"]} if limits else {}
    told = [f"{what} intercept", f"{what} R^2"]
    return Timed(lambda: calls, f"{what} of {units.tolist()} units", [slope], told, budget)
