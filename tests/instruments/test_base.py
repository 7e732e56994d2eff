"""`instruments.base`: what an instrument declares holds for budgets, for their documentation and for sessions."""

import dataclasses
import re
from types import SimpleNamespace

import pytest

from perfsuite.fixture import Perf
from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import DECLARED, Declaration, Instrument, checked_by

FIELDS = [field.name for field in dataclasses.fields(Budget)]


@pytest.fixture
def begin():
    """The limits that an instrument finds in a budget, in a session that has what it needs."""
    session = SimpleNamespace(check=lambda method, needs: None)
    return lambda declared, budget: Instrument._begin(SimpleNamespace(_session=session), declared, budget)


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_budget_is_checked_by_one_instrument_which_the_docstring_names(field):
    methods = [each.method for each in DECLARED.values() if field in each.budget]
    assert methods == [checked_by(field)]
    assert re.search(rf"^ *\| `{field}` \| .* \| `{re.escape(methods[0])}` \|$", Budget.__doc__, re.MULTILINE)


def test_what_is_declared_is_a_method_of_perf_and_checks_fields_that_there_are():
    for method, declared in DECLARED.items():
        assert callable(getattr(Perf, method.removeprefix("perf.")))
        assert set(declared.budget) <= set(FIELDS)


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


def test_limits_that_the_instrument_checks_are_handed_on(begin):
    assert begin(DECLARED["perf.compare"], Budget(ratio=1.05)) == {"ratio": 1.05}
    assert begin(DECLARED["perf.compare"], Budget()) == {}


def test_a_need_that_the_session_lacks_is_asked_for_before_anything_else():
    def check(method, needs):
        raise RuntimeError(f"{method} needs {needs}")

    with pytest.raises(RuntimeError, match=r"perf\.time needs \('timed',\)"):
        Instrument._begin(
            SimpleNamespace(_session=SimpleNamespace(check=check)), DECLARED["perf.time"], Budget(ratio=1)
        )
