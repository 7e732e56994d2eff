import pytest

from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.causes import HISTORY


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """After every test no context is open and JAX calls no listener of perfsuite's, unless one was before."""
    HISTORY.forget()
    before = compiles.open_contexts(), compiles.is_heard()
    yield
    assert (compiles.open_contexts(), compiles.is_heard()) == before


@pytest.fixture
def watching():
    """Remember what compiles, as the plugin does for the session."""
    with compiles.observe():
        yield
