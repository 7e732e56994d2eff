import pytest

from perfsuite.measure.compiles import listeners
from perfsuite.measure.compiles.causes import HISTORY


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """After every test no context is open and JAX calls no listener of perfsuite's, unless one was before."""
    HISTORY.forget()
    before = listeners.open_contexts(), listeners.is_heard()
    yield
    assert (listeners.open_contexts(), listeners.is_heard()) == before
