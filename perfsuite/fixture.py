"""The `perf` fixture: one object a test, which measures, checks budgets at once, and baselines when the test ends."""

import numbers
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.instruments import METHODS, instrument_class
from perfsuite.instruments.base import TestState
from perfsuite.measure.metric import Better, Interval, Kind, Metric
from perfsuite.session.recorder import Recorder
from perfsuite.session.session import PerfSession


class Method:
    """A method of `perf`, whose module is imported when somebody asks for it."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, perf: "Perf | None", owner: type) -> Any:
        __tracebackhide__ = True
        instrument = instrument_class(self.name)
        if perf is None:
            return getattr(instrument, self.name)
        method = perf.__dict__[self.name] = getattr(instrument(perf._state), self.name)
        return method


if not TYPE_CHECKING:
    _Instruments = type("_Instruments", (), {name: Method(name) for name in METHODS})

else:  # type checkers, editors and the reference see all methods; a test imports what it asks for
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

    class _Instruments(
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
        """What `instruments.METHODS` names."""


class Perf(_Instruments):
    """The instruments, for one test. Get it by asking for the fixture `perf`.

    A metric is recorded by its instrument and `name=`, or else by its place among the instrument's calls in the test,
    and is shown with the name of the function. A budget is checked where it is given and raises `BudgetExceeded`;
    baselines are checked when the test's body has ended.
    """

    def __init__(self, session: PerfSession, item: pytest.Item, *, tolerance: float | None, seconds: float):
        self._state = TestState(session, item, tolerance=tolerance, seconds=seconds)

    @property
    def size(self) -> str:
        """The size asked for with --perf-size, "small" or "full": which workload the test should build."""
        self._state.used = True  # by a test that builds a workload and looks at it by other means
        return self._state.session.options.size

    @property
    def recorder(self) -> Recorder:
        """What the test measured so far. The plugin reads it when the test has ended."""
        return self._state.recorder

    @property
    def used(self) -> bool:
        """Whether the test called any instrument."""
        return self._state.used

    @property
    def not_entered(self) -> Collection[str]:
        """The instruments that are blocks, once for each call whose block the test did not enter."""
        return self._state.not_entered.values()

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
        self._state.used = True
        sampled = None if interval is None else _interval(name, interval)
        metric = Metric(name, value, unit, kind, better, sampled, target=target)
        if sampled is not None and not sampled.low <= value <= sampled.high:
            raise ValueError(f"perf.record({name!r}): the interval {interval} must hold the value, {value}")
        self.recorder.add(metric, tolerance, once=True)


def _interval(name: str, given: Any) -> Interval:
    ends = list(given) if isinstance(given, tuple | list) else [given]
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, numbers.Real) for end in ends):
        raise TypeError(f"perf.record({name!r}): interval must be (low, high), two numbers, got {given!r}")
    return Interval(*map(float, ends))
