"""`perf.first_call`: what a function costs before it first runs, in counts."""

import dataclasses
import functools
from typing import cast

from perfsuite.gate.budget import Budget
from perfsuite.gate.diagnosis import costliest, to_do
from perfsuite.gate.verdict import TOLERANCES, Evidence
from perfsuite.instruments.base import NO_BUDGET, Instrument, NotMeasured, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.first_call.first_call import COUNTED, SUFFIXES, FirstCall, first_call
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.capabilities import FIRST_CALLS
from perfsuite.session.recorder import Measured

FIRST_CALL = declare(
    "perf.first_call",
    {
        "trace_calls": "Python and C calls while JAX traces a call",
        "lowering_calls": "Python and C calls while JAX lowers a call",
        "traces": "functions that JAX traces for a call",
        "folded_flops": "FLOP that depend on no argument",
        "folded_bytes": "the results of these FLOP",
        "equations": "equations of the jaxprs of a call's programs",
        "stablehlo_bytes": "the text that the compiler gets, without constants",
        "constants": "arrays in a call's programs",
        "constant_bytes": "the size of these arrays",
    },
    private=(FIRST_CALLS,),
)


class FirstCallInstrument(Instrument):
    def first_call(
        self,
        call: Call,
        *,
        budget: Budget = NO_BUDGET,
        name: str | None = None,
        compiles: bool = True,
        instructions: bool = False,
    ) -> FirstCall:
        """Count what it takes to trace and lower a call, whatever was traced before.

        Python and C calls while tracing and while lowering, functions traced, equations, bytes of StableHLO, constants
        in the program and their bytes, FLOP that depend on no argument and the bytes of their results. `Budget` has a
        field for each. The seconds of each stage are recorded beside them; `compiles=False` leaves out those of the
        compiler. `instructions=True` counts the instructions of each stage, the compiler's too, under Valgrind as
        `perf.instructions` does: `.instructions`.
        """
        __tracebackhide__ = True
        limits = self._begin(FIRST_CALL, budget)
        counted = first_call(checked(call, "perf.first_call"), compiles=compiles)
        measured = self._recorder.measured("first_call", counted.label, *SUFFIXES, name=name)
        counts = dict(zip(COUNTED, measured.metrics(counted.metrics(measured.name).values()), strict=True))
        if self._fail(counts, limits):
            _refuse_unlike(counted, first_call(call, compiles=False))
        for field, metric in counts.items():
            self._recorder.add(metric, evidence=Evidence(cause=to_do(field)))
        for metric in measured.metrics(counted.seconds(measured.name)):
            self._recorder.add(metric)
        if instructions:
            counted = dataclasses.replace(counted, instructions=self._instructions(call, measured))
        for field, limit in limits.items():
            self._recorder.check_budget(counts[field], limit, functools.partial(costliest, counted, field))
        return counted

    def _instructions(self, call: Call, measured: Measured) -> dict[str, int]:
        """Record the instructions of each stage."""
        __tracebackhide__ = True
        # Few tests count them.
        from perfsuite.instruments.instructions import counted_under_valgrind
        from perfsuite.measure.instructions import Instructions, stage_instructions

        count = functools.partial(stage_instructions, call)
        stages = counted_under_valgrind(self._state, measured.id, dict[str, Instructions], count)
        if stages is None:
            return cast("dict[str, int]", NotMeasured(FIRST_CALL.method))
        for stage, counted in stages.items():
            for metric in measured.metrics(counted.metrics(f"{measured.name} {stage}")):
                # Lowering differed by 2 % between two processes, tracing and compiling by 0.04 % (jax 0.10.2).
                self._recorder.add(dataclasses.replace(metric, kind="info") if stage == "lower" else metric)
        return {stage: counted.total for stage, counted in stages.items()}

    def _fail(self, counts: dict[str, Metric], limits: dict[str, float]) -> bool:
        """Whether a metric is going to fail, against its baseline or a budget."""
        over = any(counts[field].value > limit for field, limit in limits.items())
        return (over and self._judge.gates) or any(map(self._recorder.fails, counts.values()))


def _refuse_unlike(counted: FirstCall, again: FirstCall) -> None:
    """Raise `MeasurementError` where a second count has other values: no change of the code is to blame."""
    for field, (suffix, _, kind) in COUNTED.items():
        before, after = counted.value(field), again.value(field)
        if abs(after - before) > TOLERANCES[kind] * before:
            raise MeasurementError(
                f"{counted.label}:{suffix} differ from run to run ({before:,}, {after:,}); "
                "a count gates only code that does the same each time"
            )
