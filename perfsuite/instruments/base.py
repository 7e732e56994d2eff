"""What every instrument of the fixture `perf` has at hand: the test, its session, and where its metrics go."""

from typing import TYPE_CHECKING

import pytest

from perfsuite.gate.budget import Budget
from perfsuite.instruments.comparison_processes import Processes
from perfsuite.instruments.trace_gates import TraceGates
from perfsuite.session.recorder import Recorder

if TYPE_CHECKING:
    from perfsuite.instruments.program_gates import ProgramGates
    from perfsuite.session.session import PerfSession

NO_BUDGET = Budget()


class Instruments:
    """What the instruments of one test share. `seconds` is the most time for one gate."""

    def __init__(self, session: "PerfSession", item: pytest.Item, *, tolerance: float | None, seconds: float):
        self._session = session
        self._item = item
        self._test = item.nodeid
        self._seconds = seconds
        self.metrics = Recorder(session, item.nodeid, tolerance)
        self.programs: ProgramGates | None = None
        self.traces = TraceGates(session, item.nodeid)
        self.processes = Processes(session, item, seconds)
        self.ended = False

    @property
    def size(self) -> str:
        """The size asked for with --perf-size, "small" or "full": which workload the test should build."""
        return self._session.options.size
