"""The private name of JAX by which `perf.imports` sees backends start.

A failure here means that a new JAX has moved it. Change `perfsuite/measure/compat/backend_start.py`.
"""

import importlib

from perfsuite.measure.compat import backend_start


def test_the_function_that_starts_a_backend_is_where_it_was():
    module = importlib.import_module(backend_start.MODULE)
    assert callable(getattr(module, backend_start.FUNCTION, None)), f"{backend_start.MODULE} has moved it"
