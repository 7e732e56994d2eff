"""Programs for devices that are not present are compiled in one process for all tests."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _warm_compilers(warm_compilers):
    """See `tests/support/warm_compilers.py`."""
