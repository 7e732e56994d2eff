"""The `perf` fixture: one object a test, which measures, checks budgets at once, and baselines when the test ends."""

import difflib
from typing import TYPE_CHECKING, Any

from perfsuite.instruments.base import METHODS, TestState, foreign_methods, instrument_class
from perfsuite.measure.errors import MeasurementError

if not TYPE_CHECKING:

    class _Instruments:
        def __getattr__(self, name: str) -> Any:
            """A method of `perf`, whose module is imported when somebody asks for it."""
            __tracebackhide__ = True
            if name not in METHODS and (name.startswith("_") or name not in foreign_methods()):
                close = difflib.get_close_matches(name, dir(self), 1)
                hint = f": did you mean perf.{close[0]}?" if close else ""
                message = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
                raise AttributeError(message, name=name, obj=self)
            method = self.__dict__[name] = getattr(instrument_class(name)(self._state), name)
            return method

        def __dir__(self) -> list[str]:
            return [*super().__dir__(), *METHODS, *foreign_methods()]

else:  # type checkers, editors and the reference see all methods; a test imports what it asks for
    # Written by .ci/instruments.py: begin
    from perfsuite.instruments.cache import CacheInstrument
    from perfsuite.instruments.compare import CompareInstrument
    from perfsuite.instruments.compiles import CompilesInstrument
    from perfsuite.instruments.first_call import FirstCallInstrument
    from perfsuite.instruments.host import HostInstrument
    from perfsuite.instruments.imports import ImportsInstrument
    from perfsuite.instruments.instructions import InstructionsInstrument
    from perfsuite.instruments.memory import MemoryInstrument
    from perfsuite.instruments.program import ProgramInstrument
    from perfsuite.instruments.record import RecordInstrument
    from perfsuite.instruments.scaling import ScalingInstrument
    from perfsuite.instruments.time import TimeInstrument
    from perfsuite.instruments.trace import TraceInstrument
    from perfsuite.instruments.transfers import TransfersInstrument
    from perfsuite.instruments.waits import WaitsInstrument

    class _Instruments(
        CacheInstrument,
        CompareInstrument,
        CompilesInstrument,
        FirstCallInstrument,
        HostInstrument,
        ImportsInstrument,
        InstructionsInstrument,
        MemoryInstrument,
        ProgramInstrument,
        RecordInstrument,
        ScalingInstrument,
        TimeInstrument,
        TraceInstrument,
        TransfersInstrument,
        WaitsInstrument,
    ):
        """What `METHODS` names."""

    # Written by .ci/instruments.py: end


class Perf(_Instruments):
    """The instruments, for one test. Get it by asking for the fixture `perf`.

    A metric is recorded by its instrument and `name=`, or else by its place among the instrument's calls in the test,
    and is shown with the name of the function. A budget is checked where it is given and raises `BudgetExceeded`;
    baselines are checked when the test's body has ended.
    """

    def __init__(self, state: TestState):
        self._state = state
        if entries := foreign_methods().get("size"):
            raise MeasurementError(f"perf.size is perfsuite's own: give the instrument {entries[0].value} another name")

    @property
    def size(self) -> str:
        """The size asked for with --perf-size, "small" or "full": which workload the test should build."""
        self._state.used = True  # by a test that builds a workload and looks at it by other means
        return self._state.session.options.size
