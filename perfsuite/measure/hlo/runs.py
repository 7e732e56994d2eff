"""How often each computation of a program runs in one run of the program."""

import dataclasses
import graphlib
from collections.abc import Mapping

from perfsuite.measure.hlo.hlo_module import Module
from perfsuite.measure.hlo.trip_counts import Place


@dataclasses.dataclass(frozen=True)
class Runs:
    """`times` is how often a computation runs, all branches of a conditional alike; `looped` are those inside a loop.

    A loop whose count is not known counts as one iteration.
    """

    times: Mapping[str, int]
    looped: frozenset[str]


def runs_of(module: Module, counts: Mapping[Place, int | None]) -> Runs:
    """How often each computation runs, from how often the loops iterate. Those that the entry does not reach: never."""
    calls = {
        name: {called for op in computation.instructions for called in op.calls}
        for name, computation in module.computations.items()
    }
    times = dict.fromkeys(module.computations, 0) | {module.entry: 1}
    looped: set[str] = set()
    # Callers first.
    for name in reversed([*graphlib.TopologicalSorter(calls).static_order()]):
        for op in module.computations[name].instructions:
            count = counts.get((name, op.name)) if op.opcode == "while" else None
            for called in op.calls:
                times[called] += times[name] * (1 if count is None else count)
                if op.opcode == "while" or name in looped:
                    looped.add(called)
    return Runs(times, frozenset(looped))
