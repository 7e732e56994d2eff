"""`program_of_all`: the facts of all programs that one warm call runs, such as a trainer's step that jits inside."""

import dataclasses
from collections.abc import Hashable
from typing import Any

from perfsuite.measure.call import Call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.private.execution import ProgramRun
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.program.program import Program, sum_of
from perfsuite.measure.runtime.dispatches import dispatches


def program_of_all(call: Call, target: str | None = None, **options: Any) -> Program:
    """The sum over all programs that a warm call runs, each as often as it runs, for a target too.

    Each is lowered and compiled once, with the `options` of `compile_call`, which says what it raises. Raises
    `MeasurementError` too for a call that runs none, or one that cannot be lowered again.
    """
    __tracebackhide__ = True
    programs: dict[Hashable, Program] = {}

    def facts_of(run: ProgramRun) -> Program | None:
        source, key = run.source(), run.key()
        if source is not None and (key is None or key not in programs):
            program = compile_call(Call(*source, carry=0), target, **options).program()
            programs[key] = dataclasses.replace(program, label=run.name)
        return None if source is None else programs[key]

    counted = dispatches(call, facts_of)
    if not counted.runs:
        raise MeasurementError(f"perf.program({call.label}): the call runs no program; jit its function")
    for run in counted.runs:
        if run.facts is None:
            raise MeasurementError(
                f"perf.program({call.label}): the call runs {run.program} at {run.location}, which cannot be lowered "
                f"again (it calls Python, or was compiled ahead of time): give perf.program {run.program} itself"
            )
    total = sum_of([run.facts for run in counted.runs if run.facts is not None])
    return dataclasses.replace(total, label=call.label)
