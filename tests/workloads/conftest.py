"""What the workloads compute does not depend on how well it is compiled."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _quick_to_compile(quick_to_compile):
    """See `tests/conftest.py`."""
