"""`perf.scaling`: how a metric grows with the size of a call."""

from collections.abc import Sequence

from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import NO_BUDGET, Declaration, Instrument, declare
from perfsuite.measure.timing.scaling import MakeCall, Scaled, Scaling, fit_scaling
from perfsuite.session.plots import line_of

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
        scaling = fit_scaling(make_call, sizes, metric=metric, seconds=self._seconds)
        measured = self._recorder.measured("scaling", scaling.label, f" {scaling.what} per unit", name=name)
        metrics = measured.metrics(scaling.metrics(measured.name))
        for each in metrics:
            self._recorder.add(each, tolerance)
        if self._session.options.report is not None:
            self._recorder.lines.append(line_of(metrics[0].title, scaling))
        self._tracing.keep_made_trace(make_call, max(sizes), measured.name)
        if "us_per_leaf" in limits:
            cause = f"R^2 of the line is {scaling.r_squared:.3f} over {len(scaling.units)} sizes"
            self._recorder.check_budget(metrics[0], limits["us_per_leaf"], lambda: cause)
        return scaling
