"""`perf.instructions`: the instructions that one warm call executes, native code included, under Valgrind."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import NO_BUDGET, Instrument, NotMeasured, TestState, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.instructions import Instructions, count_instructions, why_no_instructions
from perfsuite.measure.serialise import from_plain, plain
from perfsuite.session.modes import Elsewhere

T = TypeVar("T")

INSTRUCTIONS = declare(
    "perf.instructions",
    {"instructions": "instructions that one warm call executes, of all threads"},
    needs=("processes", "alone"),
)
_SHOWN = 5


def counted_under_valgrind(test: TestState, metric: str, kind: type[T], count: Callable[[Path], T]) -> T | None:
    """What `count(folder)` returns in a process under Valgrind, of a type `kind`; None where the session starts none.

    `metric` is the id of what is counted. Ends the test where this machine cannot count, and raises `MeasurementError`.
    """
    __tracebackhide__ = True
    if reason := why_no_instructions():
        test.session.unavailable(reason)
    asked = Elsewhere(test.item, metric, lambda given: plain(count(Path(given["folder"]))), 1, under_valgrind=True)
    values = test.session.mode.elsewhere(asked)
    return None if values is None else from_plain(kind, values[0])


class InstructionsInstrument(Instrument):
    def instructions(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> Instructions:
        """Count the instructions that one warm call executes, native code included: more than 1 % more fails.

        The test runs once more in a process under Valgrind, together with the tests after it in its file that use
        `perf.instructions`. Without Valgrind the test is skipped. `perfsuite against` counts nothing: a test that reads
        the total is skipped there.
        """
        __tracebackhide__ = True
        limits = self._begin(INSTRUCTIONS, budget)
        checked(call, "perf.instructions")
        measured = self._recorder.measured("instructions", call.label, " instructions", name=name)
        count = functools.partial(count_instructions, call)
        counted = counted_under_valgrind(self._state, measured.id, Instructions, count)
        if counted is None:
            return cast("Instructions", NotMeasured(INSTRUCTIONS.method))
        (metric,) = measured.metrics(counted.metrics(measured.name))
        self._record(metric, limits.get("instructions"), lambda: _largest(counted))
        return counted


def _largest(counted: Instructions) -> str:
    """The parts with the most instructions, and their lines."""
    parts = list(counted.parts.items())[:_SHOWN]
    return "most of it:\n  " + "\n  ".join(
        f"{part}: {amount:,}{f' at {counted.places[part]}' if part in counted.places else ''}" for part, amount in parts
    )
