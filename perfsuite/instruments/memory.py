"""`perf.memory` and `perf.donation`: what steps leave behind, and what state they keep in memory twice."""

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import NO_EVIDENCE, Evidence
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.runtime import host_heap
from perfsuite.measure.runtime.donation import StepDonation, donation_of
from perfsuite.measure.runtime.memory import SUFFIXES, Memory, memory_of

MEMORY = declare("perf.memory", budget=("leaked_arrays", "leaked_bytes", "host_growth_bytes"))
DONATION = declare("perf.donation", budget=("undonated",))


class MemoryInstrument(Instrument):
    def memory(self, call: Call, *, steps: int = 30, budget: Budget = NO_BUDGET, name: str | None = None) -> Memory:
        """Run `steps` steps: `.live_bytes`, `.peak_bytes`, `.leaked_arrays` and `.leaked_bytes` a step, `.grown`,
        `.host_growth_bytes` a step.

        Leaks are exact, and any increase over the baseline fails. The growth of the process is checked by
        `Budget(host_growth_bytes=)` alone, and fails when its whole interval lies above. Then memray, where it is
        installed, names the lines that allocate what stays, in a run of its own.
        """
        __tracebackhide__ = True
        limits = self._begin(MEMORY, budget)
        memory = memory_of(checked(call, "perf.memory"), steps=steps)
        measured = self._recorder.measured("memory", memory.label, *SUFFIXES, name=name)
        metrics = measured.metrics(memory.metrics(measured.name))
        for metric in metrics:
            leaks = memory.grown and metric.name.endswith((" leaked arrays", " leaked bytes"))
            self._recorder.add(metric, evidence=Evidence(cause=memory.in_words()) if leaks else NO_EVIDENCE)
        fields = dict(zip(("leaked_arrays", "leaked_bytes"), metrics, strict=False))
        if memory.host_growth is not None:
            fields["host_growth_bytes"] = metrics[-1]

        def on_the_host() -> str:  # once all is measured: a run under memray is slow
            return "\n".join(filter(None, (memory.in_words(), host_heap.in_words(call))))

        for field, limit in limits.items():
            if field in fields:
                cause = on_the_host if field == "host_growth_bytes" else memory.in_words
                self._recorder.check_budget(fields[field], limit, cause)
        if "host_growth_bytes" in limits and memory.host_growth is None:
            self._session.unavailable(
                "perf.memory: this system does not tell how large the process is, so Budget(host_growth_bytes=...) "
                "cannot be checked"
            )
        return memory

    def donation(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> StepDonation:
        """Find the arrays of the state that a call carries and keeps in memory twice: `.undonated`, each with its path,
        bytes and reason. `Budget(undonated=)` limits their number.
        """
        __tracebackhide__ = True
        limits = self._begin(DONATION, budget)
        donation = donation_of(checked(call, "perf.donation"))
        suffixes = " undonated arrays", " undonated bytes"
        measured = self._recorder.measured("donation", donation.label, *suffixes, name=name)
        metrics = measured.metrics(donation.metrics(measured.name))
        for metric in metrics:
            self._recorder.add(metric, evidence=Evidence(cause=donation.in_words()))
        if "undonated" in limits:
            self._recorder.check_budget(metrics[0], limits["undonated"], donation.in_words)
        return donation
