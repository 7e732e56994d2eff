"""The `perf` fixture: one object a test, which measures, checks budgets at once, and baselines when the test ends."""

import numbers
from typing import Any

from perfsuite.instruments.compiling.cache import CacheInstrument
from perfsuite.instruments.compiling.compiles import CompilesInstrument
from perfsuite.instruments.compiling.covers import CoversInstrument
from perfsuite.instruments.compiling.first_call import FirstCallInstrument
from perfsuite.instruments.dispatches import DispatchesInstrument
from perfsuite.instruments.host_calls import HostCallsInstrument
from perfsuite.instruments.imports import ImportsInstrument
from perfsuite.instruments.memory import MemoryInstrument
from perfsuite.instruments.program import ProgramInstrument
from perfsuite.instruments.timing.compare import CompareInstrument
from perfsuite.instruments.timing.scaling import ScalingInstrument
from perfsuite.instruments.timing.time import TimeInstrument
from perfsuite.instruments.timing.waits import WaitsInstrument
from perfsuite.instruments.trace import TraceInstrument
from perfsuite.instruments.transfers import TransfersInstrument
from perfsuite.measure.metric import Better, Interval, Kind, Metric


class Perf(
    CompilesInstrument,
    FirstCallInstrument,
    CoversInstrument,
    CacheInstrument,
    TimeInstrument,
    CompareInstrument,
    ScalingInstrument,
    HostCallsInstrument,
    DispatchesInstrument,
    WaitsInstrument,
    TransfersInstrument,
    MemoryInstrument,
    ProgramInstrument,
    ImportsInstrument,
    TraceInstrument,
):
    """The instruments, for one test. Get it by asking for the fixture `perf`.

    A metric is recorded by its instrument and `name=`, or else by its place among the instrument's calls in the test,
    and is shown with the name of the function. A budget is checked where it is given and raises `BudgetExceeded`;
    baselines are checked when the test's body has ended.
    """

    def record(
        self,
        name: str,
        value: float,
        *,
        unit: str,
        kind: Kind,
        better: Better = "lower",
        interval: tuple[float, float] | None = None,
        tolerance: float | None = None,
        target: str | None = None,
    ) -> None:
        """Record any other metric, gated like the rest.

        `interval` is (low, high). A ratio or a time neither passes nor fails without one; where it is exact, both ends
        are its value. `target` names the device that it was compiled for;
        None means that it was measured on the present one.
        """
        self.used = True
        sampled = None if interval is None else _interval(name, interval)
        self._recorder.add(Metric(name, value, unit, kind, better, sampled, target=target), tolerance, once=True)


def _interval(name: str, given: Any) -> Interval:
    ends = list(given) if isinstance(given, tuple | list) else [given]
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, numbers.Real) for end in ends):
        raise TypeError(f"perf.record({name!r}): interval must be (low, high), two numbers, got {given!r}")
    return Interval(*map(float, ends))
