"""What `perf.transfers` needs of gates: four counts, and one budget on those that nobody asked for."""

from typing import TYPE_CHECKING

from perfsuite.gate.budget import Budget
from perfsuite.measure.call import Call
from perfsuite.measure.measurement import Measurement
from perfsuite.measure.runtime.call_transfers import EXPLICIT, SUFFIXES, CallTransfers, transfers_of

if TYPE_CHECKING:
    from perfsuite.session.recorder import Figures


def gate_transfers(figures: "Figures", call: Call, budget: Budget, name: str | None) -> CallTransfers:
    """Count, record, and hold against the budget. Raises `BudgetExceeded` with one line for each transfer."""
    __tracebackhide__ = True
    limits = budget.only("perf.transfers", "transfers")
    counted = transfers_of(call)
    name = figures.unique(name or counted.label, *SUFFIXES.values(), EXPLICIT)
    for made in counted.measurements(name):
        figures.record(made)
    if "transfers" in limits:
        total = Measurement(f"{name} transfers and callbacks", counted.total, "transfers", "count")
        figures.check_budget(total, limits["transfers"], counted.in_words)
    return counted
