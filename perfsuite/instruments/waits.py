"""`perf.stays_async` and `perf.stalls`: calls that wait for the device, and single calls that take far too long.

Both have a limit of 0 that needs no baseline. Where no verdict can be reached the gate is inconclusive and says what
would settle it: nothing passes by luck.
"""

import dataclasses

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import Result, Verdict, judge_budget
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.metric import Metric
from perfsuite.measure.timing.waits import EARLY, ENOUGH, Asynchrony, Stalls, asynchrony, count_stalls

STAYS_ASYNC = declare("perf.stays_async", needs=("quiet", "alone"))
STALLS = declare(
    "perf.stalls",
    {"stall_us": "how much longer than the median one call may take"},
    needs=("quiet", "alone"),
)


class WaitsInstrument(Instrument):
    def stays_async(self, call: Call, *, name: str | None = None) -> Asynchrony:
        """Fail where a call waits for the device before it returns, and say where: `.share`, `.waits`, `.where`.

        A call that waits keeps the host from preparing the next step meanwhile. Where the device has too little to do
        to tell, the verdict is `inconclusive` and says what to do.
        """
        __tracebackhide__ = True
        self._begin(STAYS_ASYNC)
        measured = asynchrony(checked(call, "perf.stays_async"), seconds=self._seconds_to_know)
        named = self._recorder.measured("stays_async", measured.label, " returns at", name=name)
        share, *waits = named.metrics(measured.metrics(named.name))
        self._recorder.add(share)
        self._recorder.apply([_asynchrony_gate(self._test, named.name, measured, share, waits)])
        return measured

    def stalls(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> Stalls:
        """Fail where single calls stall, twice or more in 1000, and say where: `.count`, `.where`.

        A call stalls that takes ten times the median and 20 ms more at least; `Budget(stall_us=)` says how much more
        it may take. What the operating system gave to other processes is no stall. A stall in one of a hundred calls
        is found with probability 0.999; where --perf-seconds is over before, the verdict is `inconclusive`.
        """
        __tracebackhide__ = True
        limits = self._begin(STALLS, budget)
        call = checked(call, "perf.stalls")
        measured = count_stalls(call, seconds=self._seconds_to_know, over_us=limits.get("stall_us"))
        named = self._recorder.measured("stalls", measured.label, " longest", name=name)
        stalls, longest = named.metrics(measured.metrics(named.name))
        self._recorder.add(longest)
        self._recorder.apply([_stalls_gate(self._test, named.name, measured, stalls)])
        return measured


def _asynchrony_gate(test: str, name: str, measured: Asynchrony, share: Metric, waits: list[Metric]) -> Result:
    if not waits:
        note = f"{name} may or may not wait for the device: {measured.reason}"
        return Result(test, share, Verdict.INCONCLUSIVE, "budget", EARLY, note=note)
    result = judge_budget(test, waits[0], 0)
    if not result.failed:
        return result
    does, verb = "sleeps, for the device or for something else,", "sleeps"
    if measured.for_device:
        does, verb = "waits for the device", "waits"
    note = f"{name} {does} before it returns: it {measured}, asleep for {measured.asleep:.0%} of it"
    cause = f"it {verb} at {measured.where}" if measured.where else "no line is in most of its stacks"
    return dataclasses.replace(result, note=note, cause=cause)


def _stalls_gate(test: str, name: str, measured: Stalls, stalls: Metric) -> Result:
    result = judge_budget(test, stalls, 0)
    note = f"{name}: {measured}" + (f"; {measured.machine} more may be the machine's" if measured.machine else "")
    if measured.repeats:
        cause = "\n".join(f"meanwhile it was at {line}" for line in measured.where)
        return dataclasses.replace(
            result, note=note, cause=cause or "no line was seen: C code that keeps Python's lock"
        )
    if measured.stalls:
        at = f", at {measured.where[0]}" if measured.where else ""
        note += f"{at}; one can be the machine's: run it again, or allow more --perf-seconds"
    elif not measured.enough:
        # The calls that the machine held up say nothing of the code.
        needed = 1 + int(measured.seconds / max(1, measured.calls - measured.machine) * ENOUGH * 1.1)
        note += f"; a stall in one of a hundred shows for certain in {ENOUGH}: --perf-seconds={needed}"
    else:
        return result
    return dataclasses.replace(result, verdict=Verdict.INCONCLUSIVE, note=note)
