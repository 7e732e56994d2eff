"""What a session does with the comparisons of its tests: its mode, which is chosen once, when the session starts.

The mode here gates, and measures in the same way what --perf-save records. `session.child_modes` has those of processes
that another session started.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.measure import progress
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Interval, Metric
from perfsuite.session.mode import Elsewhere, Mode, Pair
from perfsuite.session.session import Deferred, PerfSession

if TYPE_CHECKING:  # every session has a mode, and few compare anything or start another process
    from perfsuite.gate.limits import Compared, Limits
    from perfsuite.measure.metric import Estimate
    from perfsuite.processes.handover import Request


class SessionMode(Mode):
    """A mode that knows its session."""

    def __init__(self, session: PerfSession):
        self.session = session

    def measure_again(self, item: pytest.Item, **asked: Any) -> list[Metric]:
        """What a fresh process measures of a test: `asked` are fields of `Request`. Raises `ProcessFailed`."""
        from perfsuite.processes import rerun  # see the top

        group = self.session.group
        if group is not None:
            raise rerun.ProcessFailed(f"{group.count} processes measure together here")
        if self.session.in_worker:
            raise Deferred("a ratio or a time over its limit, which a fresh process confirms")
        return rerun.measure_again(item.config, self.request_for(item, **asked))

    def request_for(self, item: pytest.Item, **asked: Any) -> "Request":
        """What asks for a test: `asked` are fields of `Request`."""
        from perfsuite.processes import rerun  # see the top
        from perfsuite.processes.handover import Request

        cache = None if self.session.cache is None else str(self.session.cache)
        return Request(item.nodeid, rerun.argument_of(item), cache=cache, **asked)


class Gating(SessionMode):
    """Sample until the limits are decided. A broken one counts where a fresh process breaks it too."""

    def compare(self, pair: Pair, limits: "Limits") -> "Compared":
        from perfsuite.gate.limits import Compared  # see the top
        from perfsuite.processes.rerun import ProcessFailed

        compared = Compared(pair.compare(settled=limits.end))
        if not compared.broken(limits):
            return compared
        try:
            with progress.waiting(f"{pair.name} is over its limit: comparing again in a fresh process"):
                ratio, overhead = self.measure_again(pair.item, metric=pair.metric, budget=dict(limits.budget))
        except ProcessFailed as error:
            return dataclasses.replace(compared, failure=str(error))
        return dataclasses.replace(compared, again=(_estimate(ratio), _estimate(overhead)))

    def seen_elsewhere(self, asked: Elsewhere) -> list[Any] | None:
        from perfsuite.processes import rerun  # see the top

        values = []
        for number in range(asked.processes):
            which = f"fresh process {number + 1} of {asked.processes}"
            request = self.request_for(asked.item, metric=asked.metric, process=number, given=dict(asked.given))
            try:
                with progress.waiting(f"{asked.item.name}: {which} for {asked.metric}"):
                    values.append(rerun.values_of(asked.item.config, request))
            except rerun.ProcessFailed as error:
                raise MeasurementError(f"perf.{asked.metric}: {which} handed nothing over: {error}") from None
        return values


def _estimate(metric: Metric) -> "Estimate":
    from perfsuite.measure.metric import Estimate  # see the top

    return Estimate(metric.value, metric.interval or Interval(-math.inf, math.inf))
