"""`perf.scaling`: how a metric grows with the size of a call."""

import contextvars
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import NO_BUDGET, Declaration, Instrument, declare
from perfsuite.measure.call import Call
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.later import when_read
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.timing.scaling import MakeCall, Scaled, Scaling, calls_of, fit_calls, what_of
from perfsuite.session.plots import line_of
from perfsuite.session.unchanged import Look, Timed, look

SCALING = declare("perf.scaling", budget=("us_per_leaf",), needs=("quiet", "alone"))
OF_COUNTS = Declaration('perf.scaling(metric="host_calls")')
"""Counts need neither a quiet machine nor a process alone, and no budget limits them."""


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
        leaves. `metric` is "return" or "ready" (microseconds) or "host_calls". `Budget(us_per_leaf=)` limits the slope
        of the first two.
        """
        __tracebackhide__ = True
        limits = self._begin(OF_COUNTS if metric == "host_calls" else SCALING, budget)
        calls, units = calls_of(make_call, sizes)
        fit = functools.partial(fit_calls, calls, units, metric=metric, seconds=self._seconds)
        what = what_of(metric)
        measured = self._recorder.measured("scaling", calls[0].label, f" {what} per unit", name=name)
        seen = Look()
        if metric != "host_calls":
            seen = look(self._session, self._item.nodeid, measured, _timed(calls, units, what, limits))
        if seen.recorded:
            return self._recorded_scaling(calls[0].label, metric, list(seen.recorded.values()), limits, tolerance, fit)
        scaling = fit()
        metrics = measured.metrics(scaling.metrics(measured.name))
        metrics[:1] = seen.of(metrics[:1])
        for each in metrics:
            self._recorder.add(each, tolerance)
        if self._session.options.report is not None:
            self._recorder.lines.append(line_of(metrics[0].title, scaling))
        self._tracing.keep_made_trace(make_call, max(sizes), measured.name)
        if "us_per_leaf" in limits:
            cause = f"R^2 of the line is {scaling.r_squared:.3f} over {len(scaling.units)} sizes"
            self._recorder.check_budget(metrics[0], limits["us_per_leaf"], lambda: cause)
        return scaling

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
        later = functools.partial(contextvars.copy_context().run, fit)
        return when_read(Scaling, later, label=label, metric=metric, per_unit=per_unit)


def _timed(calls: list[Call], units: np.ndarray, what: str, limits: dict[str, float]) -> Timed:
    """The scaling, for a look at whether it has to be made."""
    slope = f"{what} per unit"
    budget = {slope: limits["us_per_leaf"]} if limits else {}
    told = [f"{what} intercept", f"{what} R^2"]
    return Timed(lambda: calls, f"{what} of {units.tolist()} units", [slope], told, budget)
