"""What `perf.memory` and `perf.donation` need of gates: their metrics, and budgets on leaks, growth and donation."""

from typing import TYPE_CHECKING

from perfsuite.gate.budget import Budget
from perfsuite.measure.call import Call
from perfsuite.measure.runtime.donation import StepDonation, donation_of
from perfsuite.measure.runtime.memory import SUFFIXES, Memory, memory_of

if TYPE_CHECKING:
    from perfsuite.session.recorder import Recorder


def gate_memory(metrics: "Recorder", call: Call, steps: int, budget: Budget, name: str | None) -> Memory:
    """Measure, record, and hold against the budget. Raises `BudgetExceeded` naming what leaked and who holds it."""
    __tracebackhide__ = True
    limits = budget.only("perf.memory", "leaked_arrays", "leaked_bytes", "host_growth_bytes")
    memory = memory_of(call, steps=steps)
    name = metrics.unique(name or memory.label, *SUFFIXES)
    made = memory.metrics(name)
    for metric in made:
        metrics.record(metric)
        if memory.grown and metric.name.endswith((" leaked arrays", " leaked bytes")):
            metrics.causes[metric.title] = memory.in_words()
    fields = dict(zip(("leaked_arrays", "leaked_bytes"), made, strict=False))
    if memory.host_growth is not None:
        fields["host_growth_bytes"] = made[-1]
    for field, limit in limits.items():
        if field in fields:  # else the system does not tell how large the process is
            metrics.check_budget(fields[field], limit, memory.in_words)
    return memory


def gate_donation(metrics: "Recorder", call: Call, budget: Budget, name: str | None) -> StepDonation:
    """Look, record, and hold against the budget. Raises `BudgetExceeded` with one line for each array."""
    __tracebackhide__ = True
    limits = budget.only("perf.donation", "undonated")
    donation = donation_of(call)
    name = metrics.unique(name or donation.label, " undonated arrays", " undonated bytes")
    made = donation.metrics(name)
    for metric in made:
        metrics.record(metric)
        if donation.undonated:
            metrics.causes[metric.title] = donation.in_words()
    if "undonated" in limits:
        metrics.check_budget(made[0], limits["undonated"], donation.in_words)
    return donation
