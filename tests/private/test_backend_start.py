"""The private name of JAX by which `perf.imports` sees backends start.

A failure here means that a new JAX has moved it. Change `perfsuite/measure/private/__init__.py`.
"""

import importlib

from perfsuite.measure.private import BACKEND_START


def test_the_function_that_starts_a_backend_is_where_it_was():
    module, function = BACKEND_START
    assert callable(getattr(importlib.import_module(module), function, None)), f"{module} has moved it"
