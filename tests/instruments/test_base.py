"""`instruments.base`: what an instrument declares holds for budgets, for code and pages that name it, and for sessions."""

import dataclasses
import importlib.util
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
from support.markdown_blocks import ROOT

from perfsuite import fixture
from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import GROUP, METHODS, Declaration, Instrument, all_declared, checked_by
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.private.capabilities import CapabilityLost

DECLARED = all_declared()
FIELDS = [field.name for field in dataclasses.fields(Budget)]


@pytest.fixture(scope="module")
def writer():
    """The program that writes what the declarations say."""
    spec = importlib.util.spec_from_file_location("instruments_writer", ROOT / ".ci/instruments.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_names_the_instruments_is_as_they_declare(writer):
    stale = [path for path in writer.BLOCKS if writer.written(path) != (ROOT / path).read_text(encoding="utf-8")]
    assert not stale, "run: python .ci/instruments.py"


def test_a_new_method_with_a_new_field_is_written_everywhere(writer, monkeypatch):
    limits = {"widgets": "widgets of one call"}
    monkeypatch.setitem(writer.DECLARED, "perf.widgets", Declaration("perf.widgets", limits))
    monkeypatch.setitem(writer.OWNERS, "widgets", "host:HostInstrument")
    monkeypatch.setitem(writer.PAGES, "widgets", "widgets.md")
    assert [path for path in writer.BLOCKS if "widgets" not in writer.written(path)] == ["perfsuite/fixture.py"]
    assert "    widgets: float | None = None\n" in writer.written("perfsuite/gate/budget.py")


def test_every_method_is_declared_and_every_field_is_checked_by_one():
    assert {f"perf.{method}" for method in METHODS} == DECLARED.keys()
    checked = [field for declared in DECLARED.values() for field in declared.budget]
    assert sorted(checked) == sorted(FIELDS)


def test_perf_has_the_methods_of_all_instruments(bare_perf):
    assert METHODS.keys() | {"size"} <= set(dir(bare_perf))
    assert bare_perf.time is bare_perf.time
    assert bare_perf.time.__self__._state is bare_perf.host_calls.__self__._state
    with pytest.raises(AttributeError, match="'Perf' object has no attribute 'tiem'"):
        _ = bare_perf.tiem


@pytest.fixture
def begin(bare_perf):
    """The limits that an instrument finds in a budget, in a session that has what it needs."""
    return Instrument(bare_perf._state)._begin


def test_what_is_lost_ends_an_instrument_once_its_arguments_are_checked(begin):
    def check(method):
        raise CapabilityLost(f"{method} does not work", "why")

    declared = Declaration("perf.other", {"ratio": ""}, private=(SimpleNamespace(check=check),))
    with pytest.raises(ValueError, match="does not check"):
        begin(declared, Budget(compiles=1))
    with pytest.raises(CapabilityLost, match=r"^perf\.other does not work$"):
        begin(declared, Budget(ratio=1))


@pytest.mark.parametrize("field", ["ratio", "cache_misses"])
def test_an_instrument_refuses_what_it_does_not_check_and_names_the_one_that_does(field, begin):
    message = rf"perf\.other does not check Budget\({field}=\.\.\.\), {checked_by(field)} does; it checks a, b"
    with pytest.raises(ValueError, match=message):
        begin(Declaration("perf.other", dict.fromkeys("ab", "")), Budget(**{field: 1}))


@pytest.mark.parametrize("budget", [1.05, {"ratio": 1.05}, None])
def test_a_budget_that_is_none_says_how_to_write_one(budget, begin):
    message = r"^perf\.compare: budget must be a Budget, such as Budget\(ratio=\.\.\.\), got "
    with pytest.raises(TypeError, match=message):
        begin(DECLARED["perf.compare"], budget)
    with pytest.raises(TypeError, match=r"^perf\.other: budget must be a Budget, got "):
        begin(Declaration("perf.other"), budget)


def test_an_instrument_named_as_an_attribute_of_perf_is_an_error_that_names_it(monkeypatch, bare_perf):
    offered = {"size": [EntryPoint("size", "other:Sizes", GROUP)]}
    monkeypatch.setattr(fixture, "foreign_methods", lambda: offered)
    with pytest.raises(
        MeasurementError, match=r"perf\.size is perfsuite's own: give the instrument other:Sizes another"
    ):
        fixture.Perf(bare_perf._state)
