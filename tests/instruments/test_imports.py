"""`perf.imports` refuses what is no module before a process starts. What it measures: tests/planted/test_imports.py."""

import re
from types import SimpleNamespace

import pytest

from perfsuite.instruments import imports
from perfsuite.instruments.base import TestState
from perfsuite.instruments.imports import ImportsInstrument


@pytest.fixture
def instrument(monkeypatch):
    monkeypatch.setattr(imports, "imports_of", lambda *args: pytest.fail("a process was started"))
    mode = SimpleNamespace(seconds=float, seconds_to_know=float)
    session = SimpleNamespace(check=lambda method, needs: None, mode=mode)
    item = SimpleNamespace(nodeid="test_imports", parent=None)
    return ImportsInstrument(TestState(session, item, tolerance=None, seconds=1.0))


@pytest.mark.parametrize("module", ["", "a.", "a-b", "model.py/x", None, pytest])
def test_what_is_no_module_is_refused(instrument, module):
    with pytest.raises(TypeError, match=re.escape(f"perf.imports(module=...): {(module,)!r} are no modules")):
        instrument.imports(module)


@pytest.mark.parametrize("argument", ["without", "after"])
@pytest.mark.parametrize("given", ["jax", ("jax", 1), ("jax,numpy",), None])
def test_what_are_no_modules_is_refused(instrument, argument, given):
    said = f"perf.imports({argument}=...): {given!r} are no modules"
    with pytest.raises(TypeError, match=re.escape(said)):
        instrument.imports("app", **{argument: given})
