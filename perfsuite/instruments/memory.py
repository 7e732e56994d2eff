"""`perf.memory` and `perf.donation`: what steps leave behind, and what state they keep in memory twice."""

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import NO_EVIDENCE, Evidence
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.runtime.memory import SUFFIXES, Memory, StepDonation, donation_of, memory_of

MEMORY = declare(
    "perf.memory",
    {
        "programs": "programs that a step compiles",
        "leaked_arrays": "live arrays that a step adds and nothing frees",
        "leaked_bytes": "device bytes that a step adds and nothing frees",
        "cyclic_bytes": "device bytes that a step leaves in cycles",
    },
)
DONATION = declare("perf.donation", {"undonated": "arrays of the carried state that a step keeps in memory twice"})


class MemoryInstrument(Instrument):
    def memory(self, call: Call, *, steps: int = 30, budget: Budget = NO_BUDGET, name: str | None = None) -> Memory:
        """Run `steps` steps: `.live_bytes`, and what each adds, `.leaked_arrays`, `.leaked_bytes`, `.cyclic_bytes` and
        `.programs`; `.grown` names what grows, the line that makes it and who holds it.
        """
        __tracebackhide__ = True
        limits = self._begin(MEMORY, budget)
        memory = memory_of(checked(call, "perf.memory"), steps=steps)
        metrics = dict(zip(SUFFIXES, self._metrics(MEMORY, memory.label, memory.metrics, name), strict=True))
        for suffix, metric in metrics.items():
            leaks = memory.grown and suffix != " live bytes"
            self._recorder.add(metric, evidence=Evidence(cause=memory.in_words()) if leaks else NO_EVIDENCE)
        for field, limit in limits.items():
            self._recorder.check_budget(metrics[f" {field.replace('_', ' ')}"], limit, memory.in_words)
        return memory

    def donation(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> StepDonation:
        """Find the arrays of the state that a call carries and keeps in memory twice: `.undonated`, and `.copied` where
        only the first step does, each with its path, bytes and reason. `Budget(undonated=)` limits the former.
        """
        __tracebackhide__ = True
        limits = self._begin(DONATION, budget)
        donation = donation_of(checked(call, "perf.donation"))
        metrics = self._metrics(DONATION, donation.label, donation.metrics, name)
        for metric in metrics:
            self._recorder.add(metric, evidence=Evidence(cause=donation.in_words()))
        if "undonated" in limits:
            self._recorder.check_budget(metrics[0], limits["undonated"], donation.in_words)
        return donation
