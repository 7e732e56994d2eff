"""Loaded by a process that is to be like one of another user on another machine: `processes.elsewhere`."""

from pathlib import Path

import pytest

from perfsuite.processes.elsewhere import import_packages, take_host_name
from perfsuite.processes.handover import read_request


@pytest.hookimpl(tryfirst=True)  # before any conftest is imported
def pytest_load_initial_conftests() -> None:
    take_host_name()


@pytest.hookimpl(trylast=True)  # JAX has started, as conftests have set it up
def pytest_sessionstart(session: pytest.Session) -> None:
    import_packages(read_request(Path(session.config.option.perf_again)).packages)
