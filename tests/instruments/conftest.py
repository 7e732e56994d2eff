"""Instruments without a session."""

from types import SimpleNamespace

import pytest

from perfsuite.fixture import Perf
from perfsuite.instruments.base import TestState


@pytest.fixture
def bare_perf():
    """A `Perf` whose session asks nothing and measures nothing. (A test of a fixture `perf` would be a perf test.)"""
    judge = SimpleNamespace(
        fails=lambda result: result is not None and result.failed,
        strictly=lambda result, where: result,
        judge=lambda *_: None,
        gates=True,
    )
    options = SimpleNamespace(traces=None, report=None)
    mode = SimpleNamespace(seconds=float, seconds_to_know=float)
    session = SimpleNamespace(mode=mode, judge=judge, options=options, check=lambda method, needs: None)
    test = SimpleNamespace(nodeid="test_a.py::test_step", parent=None)
    return Perf(TestState(session, test, tolerance=None, seconds=1.0))
