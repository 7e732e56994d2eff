"""Which tests there are: a recorded metric whose test is gone from a file that was collected whole is said."""

import pytest

from perfsuite.hooks import workers
from perfsuite.session.session import PerfSession, split_parameters


def register(config: pytest.Config, session: PerfSession) -> None:
    """Register the hooks, except in the main process of pytest-xdist: its workers collect, and hand this over."""
    if not workers.is_main(config):
        config.pluginmanager.register(CollectingHooks(session), "perfsuite-collecting")


class CollectingHooks:
    def __init__(self, session: PerfSession):
        self.session = session
        self.files: set[str] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.passed:  # a file that is skipped as a whole has no tests, and none is gone
            self.files.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)  # before -k and -m take tests away
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        # --last-failed leaves tests out of their file while collecting, so they would look as if they were deleted.
        whole = not config.getoption("lf", False) and not any("::" in argument for argument in config.args)
        if whole:
            self.session.files = self.files
            self.session.collected = {item.nodeid for item in items}
            self.session.of_targets = {
                split_parameters(item.nodeid)[0]
                for item in items
                if isinstance(item, pytest.Function) and "perf_target" in item.fixturenames
            }
