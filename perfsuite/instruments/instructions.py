"""`perf.instructions`: the instructions that one warm call executes, native code included, under Valgrind."""

from pathlib import Path

from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.instructions import Instructions, count_instructions, why_no_instructions
from perfsuite.measure.serialise import from_plain, plain
from perfsuite.session.modes import Elsewhere

INSTRUCTIONS = declare(
    "perf.instructions",
    {"instructions": "instructions that one warm call executes, of all threads"},
    needs=("processes", "alone"),
)
_SHOWN = 5


class InstructionsInstrument(Instrument):
    def instructions(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> Instructions:
        """Count the instructions that one warm call executes, native code included: more than 1 % more fails.

        The test runs once more up to here in a process under Valgrind, together with the tests after it in its file
        that use `perf.instructions`. Without Valgrind the test is skipped.
        """
        __tracebackhide__ = True
        limits = self._begin(INSTRUCTIONS, budget)
        checked(call, "perf.instructions")
        if reason := why_no_instructions():
            self._session.unavailable(reason)
        measured = self._recorder.measured("instructions", call.label, " instructions", name=name)
        asked = Elsewhere(
            self._item,
            measured.id,
            lambda given: plain(count_instructions(call, Path(given["folder"]))),
            processes=1,
            under_valgrind=True,
        )
        values = self._session.mode.elsewhere(asked)
        if values is None:
            return Instructions(call.label, 0, {})
        try:
            counted = from_plain(Instructions, values[0])
        except ValueError as error:
            raise MeasurementError(f"perf.instructions: what was handed over cannot be read ({error})") from None
        (metric,) = measured.metrics(counted.metrics(measured.name))
        self._record(metric, limits.get("instructions"), lambda: _largest(counted))
        return counted


def _largest(counted: Instructions) -> str:
    """The parts with the most instructions, and their lines."""
    parts = list(counted.parts.items())[:_SHOWN]
    return "most of it:\n  " + "\n  ".join(
        f"{part}: {amount:,}{f' at {counted.places[part]}' if part in counted.places else ''}" for part, amount in parts
    )
