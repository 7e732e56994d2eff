"""A test that asks for what does not work with the libraries that are installed: skipped, with what does not work.

Its baselines stay as they are. With --perf-strict it fails.
"""

import contextlib
import functools
import os
from collections.abc import Iterator

import pytest

from perfsuite.hooks import unittests
from perfsuite.measure.private.capabilities import CapabilityLost
from perfsuite.session.outcomes import Lost
from perfsuite.session.session import PerfSession


class LostHooks:
    """Registered in every session with --perf, whatever else it does with its tests."""

    def __init__(self, session: PerfSession):
        self.session = session

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item):
        with self._skipping(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)  # within the hook that judges
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function):
        with self._skipping(pyfuncitem):
            return (yield)

    @pytest.hookimpl(tryfirst=True)  # as above
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        if unittests.is_method(item):
            unittests.run_within(item, functools.partial(self._skipping, item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, Lost):
            path, line, _ = item.reportinfo()  # the line that raised it is perfsuite's own
            report.longrepr = (os.fspath(path), (line or 0) + 1, str(call.excinfo.value))
        return report

    @contextlib.contextmanager
    def _skipping(self, item: pytest.Item) -> Iterator[None]:
        try:
            yield
            return
        except CapabilityLost as error:
            lost = error
        try:
            self.session.end_without(lost, in_full=item.config.get_verbosity() > 0)
        except BaseException as ended:
            raise ended from None  # a reason needs no traceback of where it was found
