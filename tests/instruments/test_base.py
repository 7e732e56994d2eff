"""`instruments.base`: what an instrument declares holds for budgets, for their documentation and for sessions."""

import dataclasses
import re
from types import SimpleNamespace

import pytest

from perfsuite.fixture import Perf
from perfsuite.gate.budget import Budget
from perfsuite.instruments import METHODS, instrument_class
from perfsuite.instruments.base import Declaration, Instrument, all_declared, checked_by
from perfsuite.measure.private.capabilities import CapabilityLost

DECLARED = all_declared()
FIELDS = [field.name for field in dataclasses.fields(Budget)]


@pytest.fixture
def begin():
    """The limits that an instrument finds in a budget, in a session that has what it needs."""
    session = SimpleNamespace(check=lambda method, needs: None)
    return lambda declared, budget: Instrument._begin(instrument_in(session), declared, budget)


def instrument_in(session):
    return SimpleNamespace(_session=session, _state=SimpleNamespace(used=False))


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_budget_is_checked_by_one_instrument_which_the_docstring_names(field):
    methods = [each.method for each in DECLARED.values() if field in each.budget]
    assert methods == [checked_by(field)]
    assert re.search(rf"^ *\| `{field}` \| .* \| `{re.escape(methods[0])}` \|$", Budget.__doc__, re.MULTILINE)


def test_every_method_is_declared_and_checks_fields_that_there_are():
    assert {f"perf.{method}" for method in METHODS} == DECLARED.keys()
    for declared in DECLARED.values():
        assert set(declared.budget) <= set(FIELDS)


def public_methods(of):
    return {name for name, value in vars(of).items() if callable(value) and name[0] != "_"}


def test_the_table_of_methods_has_every_method_of_each_class():
    classes = {instrument_class(method) for method in METHODS}
    assert {(name, of) for of in classes for name in public_methods(of)} == {
        (method, instrument_class(method)) for method in METHODS
    }


@pytest.fixture
def perf():
    """As a test has it, in a session of which nothing is asked."""
    session = SimpleNamespace(mode=SimpleNamespace(seconds=float, seconds_to_know=float))
    return Perf(session, SimpleNamespace(nodeid="test_a.py::test_step", parent=None), tolerance=None, seconds=1.0)


def test_perf_has_the_methods_of_all_instruments(perf):
    assert METHODS.keys() | {"record", "size"} <= set(dir(perf))
    assert perf.time is perf.time
    assert perf.time.__self__._state is perf.host_calls.__self__._state


def test_what_is_lost_ends_an_instrument_once_its_arguments_are_checked(begin):
    def check(method):
        raise CapabilityLost(f"{method} does not work", "why")

    declared = Declaration("perf.other", ("ratio",), private=(SimpleNamespace(check=check),))
    with pytest.raises(ValueError, match="does not check"):
        begin(declared, Budget(compiles=1))
    with pytest.raises(CapabilityLost, match=r"^perf\.other does not work$"):
        begin(declared, Budget(ratio=1))


@pytest.mark.parametrize("field", FIELDS)
def test_an_instrument_refuses_what_it_does_not_check_and_names_the_one_that_does(field, begin):
    said = rf"perf\.other does not check Budget\({field}=\.\.\.\), {re.escape(checked_by(field))} does; it checks a, b"
    with pytest.raises(ValueError, match=said):
        begin(Declaration("perf.other", ("a", "b")), Budget(**{field: 1}))


@pytest.mark.parametrize("budget", [1.05, 20, {"ratio": 1.05}, None])
def test_a_budget_that_is_none_says_how_to_write_one(budget, begin):
    with pytest.raises(
        TypeError, match=r"^perf\.compare: budget must be a Budget, such as Budget\(ratio=\.\.\.\), got "
    ):
        begin(DECLARED["perf.compare"], budget)
    with pytest.raises(TypeError, match=r"^perf\.other: budget must be a Budget, got "):
        begin(Declaration("perf.other"), budget)
