"""What `perf.transfers` needs of gates: four counts, and one budget on those that nobody asked for."""

from typing import TYPE_CHECKING

from perfsuite.gate.budget import Budget
from perfsuite.measure.call import Call
from perfsuite.measure.measurement import Metric
from perfsuite.measure.runtime.call_transfers import EXPLICIT, SUFFIXES, CallTransfers, transfers_of

if TYPE_CHECKING:
    from perfsuite.session.recorder import Recorder


def gate_transfers(metrics: "Recorder", call: Call, budget: Budget, name: str | None) -> CallTransfers:
    """Count, record, and hold against the budget. Raises `BudgetExceeded` with one line for each transfer."""
    __tracebackhide__ = True
    limits = budget.only("perf.transfers", "transfers")
    counted = transfers_of(call)
    name = metrics.unique(name or counted.label, *SUFFIXES.values(), EXPLICIT)
    for made in counted.metrics(name):
        metrics.record(made)
    if "transfers" in limits:
        total = Metric(f"{name} transfers and callbacks", counted.total, "transfers", "count")
        metrics.check_budget(total, limits["transfers"], counted.in_words)
    return counted
