"""What `perf.compare` needs of gates: when to stop sampling, which verdict counts, what a failure is likely due to."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from perfsuite.gate.diagnosis import likely_cause
from perfsuite.measure.call import Call
from perfsuite.measure.measurement import Metric
from perfsuite.measure.runtime.hostcalls import host_calls

if TYPE_CHECKING:
    from perfsuite.gate.verdict import Gate, Verdict
    from perfsuite.measure.timing.comparison import Comparison, Estimate, Field
    from perfsuite.session.recorder import Recorder

_SEVERITY = ("fail", "inconclusive", "not comparable", "new", "improved", "pass", "info")


def worst(gates: "Sequence[Gate]") -> "Verdict":
    """The verdict that says most against the code under test."""
    return min((gate.verdict for gate in gates), key=_SEVERITY.index)


def judge_budgets(
    metrics: "Recorder", comparison: "Comparison", made: Sequence[Metric], limits: dict[str, float]
) -> "list[Gate]":
    """The metrics of a comparison, ratio and overhead, against the limits of a budget."""
    fields: tuple[Field, ...] = ("ratio", "overhead_us")
    gates = []
    for field, metric in zip(fields, made, strict=True):
        if field not in limits:
            continue
        limit = limits[field]
        gate = metrics.budget_gate(metric, limit)
        if not comparison.bounded or (gate.verdict == "inconclusive" and comparison.processes == 1):
            gate = metrics.leave_open(gate, to_settle=comparison.to_settle(limit, field))
        elif gate.failed and comparison.unsettled:
            gate = metrics.gates[-1] = dataclasses.replace(gate, drift=comparison.unsettled)
        gates.append(gate)
    return gates


def settled_by(
    ratio_limits: Sequence[float], overhead_limits: Sequence[float]
) -> "Callable[[Estimate, Estimate], bool]":
    """Stop once one limit is broken for certain, or all are kept for certain."""

    def settled(ratio: "Estimate", overhead: "Estimate") -> bool:
        held = [(ratio.interval, limit) for limit in ratio_limits]
        held += [(overhead.interval, limit) for limit in overhead_limits]
        broken = any(interval.low > limit for interval, limit in held)
        return broken or all(interval.high <= limit for interval, limit in held)

    return settled


def cause_of(comparison: "Comparison", candidate: Call, reference: Call) -> str:
    """The likely cause of a ratio over its limit, in words."""
    try:
        return likely_cause(comparison, *(host_calls(side, exact=False) for side in (candidate, reference)))
    except Exception as error:  # whatever the code under test raises now must not hide that its gate failed
        return f"could not be looked for, because counting host calls raised {type(error).__name__}: {error}"
