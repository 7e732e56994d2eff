"""What every instrument shares: the declaration of itself, and the state of the test that it measures in."""

import contextlib
import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pytest

from perfsuite.gate.budget import Budget
from perfsuite.measure.call import Call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric, is_finite
from perfsuite.measure.private.capabilities import Capability
from perfsuite.session.outcomes import test_id
from perfsuite.session.recorder import Recorder
from perfsuite.session.session import Need, PerfSession

if TYPE_CHECKING:  # see `TestState.tracing`
    from perfsuite.instruments.tracing import Tracing

T = TypeVar("T")

NO_BUDGET = Budget()

GROUP = "perfsuite.instruments"
"""The entry points by which other distributions add methods to `perf`."""

METHODS = {
    # Written by .ci/instruments.py: begin
    "warm": "compiles:CompilesInstrument",
    "covers": "compiles:CompilesInstrument",
    "no_compiles": "compiles:CompilesInstrument",
    "count_compiles": "compiles:CompilesInstrument",
    "compare": "compare:CompareInstrument",
    "time": "time:TimeInstrument",
    "scaling": "scaling:ScalingInstrument",
    "stays_async": "waits:WaitsInstrument",
    "stalls": "waits:WaitsInstrument",
    "host_calls": "host:HostInstrument",
    "dispatches": "host:HostInstrument",
    "fast_path": "host:HostInstrument",
    "first_call": "first_call:FirstCallInstrument",
    "cache_key": "cache:CacheInstrument",
    "cache_hits": "cache:CacheInstrument",
    "imports": "imports:ImportsInstrument",
    "no_transfers": "transfers:TransfersInstrument",
    "count_transfers": "transfers:TransfersInstrument",
    "transfers": "transfers:TransfersInstrument",
    "memory": "memory:MemoryInstrument",
    "donation": "memory:MemoryInstrument",
    "program": "program:ProgramInstrument",
    "trace": "trace:TraceInstrument",
    "record": "record:RecordInstrument",
    "instructions": "instructions:InstructionsInstrument",
    # Written by .ci/instruments.py: end
}
"""The methods of `perf`, each with the module in this package and the class that has it. The docs have their order."""

DECLARED: dict[str, "Declaration"] = {}
"""The instruments that were imported, by the names of their methods. `all_declared` has all."""


@dataclasses.dataclass(frozen=True)
class Declaration:
    """An instrument: the method of `perf`, the fields of `Budget` that it checks, and what it needs.

    `budget` says what each field limits. `needs` are of the session, `private` of other libraries:
    what the instrument cannot do without names that may move.
    """

    method: str
    budget: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs: tuple[Need, ...] = ()
    private: tuple[Capability, ...] = ()


def declare(
    method: str,
    budget: Mapping[str, str] | None = None,
    *,
    needs: tuple[Need, ...] = (),
    private: tuple[Capability, ...] = (),
) -> Declaration:
    """Declare an instrument, `method` being its name in a test: `perf.time`."""
    DECLARED[method] = Declaration(method, budget or {}, needs, private)
    return DECLARED[method]


def all_declared() -> dict[str, Declaration]:
    """Every instrument, but for one whose module fails at import: that is an error of the test which asks for it."""
    for method in METHODS:
        with contextlib.suppress(Exception):
            instrument_class(method)
    return DECLARED


@functools.cache
def foreign_methods() -> dict[str, list[importlib.metadata.EntryPoint]]:
    """The methods of `perf` that other distributions have. Two may have one name."""
    methods: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        methods.setdefault(entry.name, []).append(entry)
    return methods


def instrument_class(method: str) -> type["Instrument"]:
    """The class that has a method of `perf`. Imports its module.

    Raises `MeasurementError` for a method of another distribution that has the name of one that is there, fails at
    import, or is none.
    """
    __tracebackhide__ = True
    foreign = foreign_methods().get(method, [])
    owners = ["perfsuite"] if method in METHODS else []
    owners += [f"{entry.dist.name} {entry.dist.version}" for entry in foreign if entry.dist is not None]
    if len(owners) > 1:
        raise MeasurementError(
            f"perf.{method} is an instrument of {' and of '.join(owners)}: uninstall one, or rename it"
        )
    if not foreign:
        return importlib.metadata.EntryPoint(method, f"{__package__}.{METHODS[method]}", GROUP).load()
    (entry,) = foreign
    try:
        loaded = entry.load()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise MeasurementError(f"perf.{method}: {entry.value} of {owners[0]} cannot be imported: {why}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Instrument) and hasattr(loaded, method)):
        raise MeasurementError(
            f"perf.{method}: {entry.value} of {owners[0]} must be a subclass of Instrument with the method {method!r}, "
            f"got {loaded!r}"
        )
    return loaded


class TestState:
    """What all instruments of one test share. `seconds` is the most time that the test asks for one gate."""

    __test__ = False  # no test class, whatever its name

    def __init__(self, session: PerfSession, item: pytest.Item, *, tolerance: float | None, seconds: float):
        self.session = session
        self.item = item
        self.seconds = session.mode.seconds(seconds)
        self.seconds_to_know = session.mode.seconds_to_know(seconds)
        self.test = test_id(item)
        self.recorder = Recorder(session.judge, self.test, tolerance)
        self.used = False
        """Whether the test called any instrument."""
        self.not_entered: dict[object, str] = {}
        """The instruments that are blocks, for each call of one whose block the test did not enter."""

    @functools.cached_property
    def tracing(self) -> "Tracing":
        """The profiler's traces of the test."""
        from perfsuite.instruments.tracing import Tracing  # the profiler, which few tests need

        return Tracing(self.session, self.test, self.recorder)


class Instrument:
    """The base of all instruments. Each object is of one test.

    Methods without an underscore are methods of `perf`. An instrument of another distribution uses `_begin`, `_metrics`
    and `_record` of those with one.
    """

    def __init_subclass__(cls) -> None:
        for name, method in vars(cls).items():
            if not name.startswith("_") and callable(method):
                method.__qualname__ = f"perf.{name}"  # as Python's errors of arguments call it

    def __init__(self, state: TestState):
        self._state = state
        self._session = state.session
        self._judge = state.session.judge
        self._item = state.item
        self._seconds = state.seconds
        self._seconds_to_know = state.seconds_to_know
        self._test = state.test
        self._recorder = state.recorder

    @property
    def _tracing(self) -> "Tracing":
        return self._state.tracing

    def _keep_trace(self, call: Call, *names: str, us: float = 0.0) -> None:
        """With --perf-trace, trace a call that was measured, one run of which takes about `us`."""
        if self._session.options.traces is not None:
            self._tracing.keep_trace(call, *names, us=us)

    def _begin(self, declared: Declaration, budget: Budget = NO_BUDGET) -> dict[str, float]:
        """The limits of the budget. Ends the test where the session lacks what the instrument needs.

        Raises `TypeError` for a budget that is none, `ValueError` for a limit that the instrument does not check, and
        `CapabilityLost` where it does not work with the libraries that are installed.
        """
        __tracebackhide__ = True
        self._state.used = True
        self._recorder.method = declared.method
        self._session.check(declared.method, declared.needs)
        if not isinstance(budget, Budget):
            such = "".join(f", such as Budget({field}=...)" for field in list(declared.budget)[:1])
            raise TypeError(f"{declared.method}: budget must be a Budget{such}, got {budget!r}")
        limits = budget.limits()
        for field in limits:
            if field not in declared.budget:
                checks = f"it checks {', '.join(declared.budget)}" if declared.budget else "it checks no budget"
                raise ValueError(
                    f"{declared.method} does not check Budget({field}=...), {checked_by(field)} does; {checks}"
                )
        for capability in declared.private:
            capability.check(declared.method)
        return limits

    def _metrics(
        self, declared: Declaration, label: str, make: Callable[[str], Iterable[Metric]], name: str | None = None
    ) -> list[Metric]:
        """The metrics of one call of an instrument, each with a name and an id of its own in the test.

        `make(name)` makes them, always the same, and each metric's name begins with `name`: the test's own, or else
        `label`, that of the function.
        """
        __tracebackhide__ = True
        suffixes = [metric.name for metric in make("")]
        measured = self._recorder.measured(declared.method.removeprefix("perf."), label, *suffixes, name=name)
        return measured.metrics(make(measured.name))

    def _record(self, metric: Metric, limit: float | None = None, cause: Callable[[], str] = str) -> None:
        """Record a metric, and raise `BudgetExceeded` with the likely cause where it is over a limit."""
        __tracebackhide__ = True
        self._recorder.add(metric)
        if limit is not None:
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not is_finite(limit):
                raise ValueError(f"{metric.title}: a limit must be a finite number, got {limit!r}")
            self._recorder.check_budget(metric, limit, cause)

    def _block(self, declared: Declaration, make: Callable[[], AbstractContextManager[T]]) -> AbstractContextManager[T]:
        """The block that `make` makes, anew each time that it is entered, as by a function that it decorates. A test
        that never enters it is noted.
        """
        __tracebackhide__ = True
        self._begin(declared)
        not_entered, one = self._state.not_entered, object()
        not_entered[one] = declared.method

        @contextlib.contextmanager
        def entered() -> Iterator[T]:
            __tracebackhide__ = True
            not_entered.pop(one, None)
            with make() as value:
                yield value

        return entered()


class NotMeasured:
    """What an instrument returns in a process that measures something else. A test that reads it is skipped there."""

    def __init__(self, method: str):
        self._method = method

    def __getattr__(self, name: str) -> NoReturn:
        __tracebackhide__ = True
        pytest.skip(
            f"{self._method} measures nothing in this process, which another session started for something else"
        )

    __getitem__ = __getattr__


def check_choice(argument: str, value: object, choices: Iterable[str]) -> None:
    """Raise `ValueError` for a value that is none of the choices. `argument` says where it stands."""
    __tracebackhide__ = True
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def checked_by(field: str) -> str:
    """The instrument that checks a field of `Budget`."""
    return next((each.method for each in all_declared().values() if field in each.budget), "another instrument")
