"""What comes before the first step: what is imported."""

import pytest

from perfsuite import Budget

HEAVY = ("jax", "jaxlib", "numpy", "scipy", "equinox")


@pytest.mark.parametrize("module", ["perfsuite", "perfsuite.plugin"])
def test_what_a_session_imports_that_measures_nothing(perf, module):
    """Without pytest's own, which another version of pytest changes."""
    perf.imports(module, without=HEAVY, after=("pytest",), budget=Budget(started_backends=0))
