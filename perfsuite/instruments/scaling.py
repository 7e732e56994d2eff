"""`perf.scaling`: how a metric grows with the size of a call."""

import dataclasses
from collections.abc import Sequence
from typing import get_args

from perfsuite.gate.budget import Budget
from perfsuite.gate.diagnosis import growing
from perfsuite.gate.verdict import NO_EVIDENCE, Evidence
from perfsuite.instruments.base import NO_BUDGET, Declaration, Instrument, check_choice, declare
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.capabilities import FIRST_CALLS
from perfsuite.measure.timing.scaling import MakeCall, Scaled, Scaling, calls_by_size, fit_scaling, metric_name
from perfsuite.session.records import fitted_line

_OF_TIMES = {"us_per_leaf": "slope of a time over sizes, microseconds a unit"}
_OF_COUNTS = {"exponent": "the power of the size with which a count grows"}

SCALING = declare("perf.scaling", _OF_TIMES | _OF_COUNTS, needs=("quiet", "alone"))
OF_TIMES = Declaration("perf.scaling of a time", _OF_TIMES, SCALING.needs)
OF_COUNTS = Declaration("perf.scaling of a count", _OF_COUNTS)
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
        calls, units = calls_by_size(make_call, sizes)
        what = metric_name(metric)
        measured = self._recorder.measured("scaling", calls[0].label, f" {what} per unit", name=name)
        if is_time:
            self._session.mode.about_to_time(self._item, [f"{measured.name} {what} per unit"], calls)
        scaling = fit_scaling(calls, units, metric=metric, seconds=self._seconds, **self._session.mode.timing)
        metrics = measured.metrics(scaling.metrics(measured.name))
        self._add(scaling, metrics, tolerance, NO_EVIDENCE if is_time else Evidence(cause=growing(scaling)))
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
            self._recorder.lines.append(fitted_line(metrics[0].title, scaling))

    def _check_exponent(self, scaling: Scaling, metrics: Sequence[Metric], limit: float) -> None:
        __tracebackhide__ = True
        if scaling.exponent is None:
            raise ValueError(f"Budget(exponent=) needs three different sizes above 0, got {scaling.units.tolist()}")
        exponent = next(each for each in metrics if each.name.endswith(" exponent"))
        exact = dataclasses.replace(exponent, kind="size")
        self._recorder.check_budget(exact, limit, lambda: growing(scaling))
