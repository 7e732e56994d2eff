"""The private name of JAX by which `perf.imports` sees backends start."""

from perfsuite.measure.private.backend_start import START
from perfsuite.measure.private.capabilities import BACKEND_START


def test_the_function_that_starts_a_backend_is_where_it_was():
    assert BACKEND_START.lost() == ""
    assert callable(START.get())
