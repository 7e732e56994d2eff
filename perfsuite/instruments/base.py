"""What every instrument shares: the declaration of itself, its test, its session, and where its metrics go."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TypeVar

import pytest

from perfsuite.gate.budget import Budget
from perfsuite.instruments.tracing import Tracing
from perfsuite.session.outcomes import test_id
from perfsuite.session.recorder import Recorder
from perfsuite.session.session import Need, PerfSession

T = TypeVar("T")

NO_BUDGET = Budget()

DECLARED: dict[str, "Declaration"] = {}
"""Every instrument that checks a budget or needs something, by the name of its method."""


@dataclasses.dataclass(frozen=True)
class Declaration:
    """An instrument: the method of `perf`, the fields of `Budget` that it checks, and what it needs of the session."""

    method: str
    budget: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()


def declare(method: str, *, budget: tuple[str, ...] = (), needs: tuple[Need, ...] = ()) -> Declaration:
    """Declare an instrument, `method` being its name in a test: `perf.time`."""
    DECLARED[method] = Declaration(method, budget, needs)
    return DECLARED[method]


class Instrument:
    """The base of all instruments of one test. `seconds` is the most time that the test asks for one gate."""

    used = False
    """Whether the test called any instrument."""
    not_entered: Mapping[object, str] = MappingProxyType({})
    """The instruments that are blocks, for each call of one whose block the test did not enter."""

    def __init__(self, session: PerfSession, item: pytest.Item, *, tolerance: float | None, seconds: float):
        self._session = session
        self._item = item
        self._seconds = session.mode.seconds(seconds)
        self._seconds_to_know = session.mode.seconds_to_know(seconds)
        self._test = test_id(item)
        self._recorder = Recorder(session, self._test, tolerance)
        self._tracing = Tracing(session, self._test, self._recorder)

    @property
    def size(self) -> str:
        """The size asked for with --perf-size, "small" or "full": which workload the test should build."""
        self.used = True  # by a test that builds a workload and looks at it by other means
        return self._session.options.size

    @property
    def recorder(self) -> Recorder:
        """What the test measured so far. The plugin reads it when the test has ended."""
        return self._recorder

    def _begin(self, declared: Declaration, budget: Budget = NO_BUDGET) -> dict[str, float]:
        """The limits of the budget. Ends the test where the session lacks what the instrument needs.

        Raises `TypeError` for a budget that is none, and `ValueError` for a limit that the instrument does not check.
        """
        __tracebackhide__ = True
        self.used = True
        self._session.check(declared.method, declared.needs)
        if not isinstance(budget, Budget):
            such = "".join(f", such as Budget({field}=...)" for field in declared.budget[:1])
            raise TypeError(f"{declared.method}: budget must be a Budget{such}, got {budget!r}")
        limits = budget.limits()
        for field in limits:
            if field not in declared.budget:
                checks = f"it checks {', '.join(declared.budget)}" if declared.budget else "it checks no budget"
                raise ValueError(
                    f"{declared.method} does not check Budget({field}=...), {checked_by(field)} does; {checks}"
                )
        return limits

    def _block(self, method: str, make: Callable[[], AbstractContextManager[T]]) -> AbstractContextManager[T]:
        """The block that `make` makes, anew each time that it is entered, as by a function that it decorates. A test
        that never enters it is noted.
        """
        self.used = True
        one = object()
        self.not_entered = {**self.not_entered, one: method}

        @contextlib.contextmanager
        def entered() -> Iterator[T]:
            __tracebackhide__ = True
            self.not_entered = {each: name for each, name in self.not_entered.items() if each is not one}
            with make() as value:
                yield value

        return entered()


def check_choice(argument: str, value: object, choices: Iterable[str]) -> None:
    """Raise `ValueError` for a value that is none of the choices. `argument` says where it stands."""
    __tracebackhide__ = True
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def checked_by(field: str) -> str:
    """The instrument that checks a field of `Budget`."""
    return next(each.method for each in DECLARED.values() if field in each.budget)
