"""What a session does with the comparisons of its tests: its mode, which is chosen once, when the session starts.

The mode here gates. `session.saving` has that of --perf-save, and `session.child_modes` those of processes that another
session started.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.measure import progress
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Interval, Metric
from perfsuite.session.mode import Elsewhere, Mode, Pair
from perfsuite.session.session import PerfSession

if TYPE_CHECKING:  # every session has a mode, and few compare anything or start another process
    from perfsuite.gate.limits import Compared, Limits
    from perfsuite.measure.estimate import Estimate
    from perfsuite.measure.timing.comparison import Comparison
    from perfsuite.processes.handover import Request, Values

MOST_TO_CONFIRM = 2
"""Processes that must break a limit, where --perf-processes does not say how many."""


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
        return rerun.measure_again(item.config, self.request_for(item, **asked))[item.nodeid]

    def request_for(self, item: pytest.Item, **asked: Any) -> "Request":
        """What asks for a test: `asked` are fields of `Request`."""
        from perfsuite.processes import rerun  # see the top
        from perfsuite.processes.handover import Request

        cache = None if self.session.cache is None else str(self.session.cache)
        return Request(item.nodeid, rerun.argument_of(item), cache=cache, **asked)


class Gating(SessionMode):
    """Sample until the limits are decided. A broken one counts where fresh processes break it too."""

    def compare(self, pair: Pair, limits: "Limits") -> "Compared":
        return self.confirmed(pair, pair.compare(settled=limits.end), limits)

    def confirmed(self, pair: Pair, first: "Comparison", limits: "Limits") -> "Compared":
        """The comparison; where it breaks a limit, made again in fresh processes, until one does not break it."""
        from perfsuite.gate.limits import Compared  # see the top
        from perfsuite.processes.rerun import ProcessFailed

        most = self.session.options.processes or MOST_TO_CONFIRM
        compared = Compared(first)
        while len(compared.again) + 1 < most and (broken := compared.broken(limits)):
            try:
                with progress.waiting(f"{pair.name} is over its limit: comparing again in a fresh process"):
                    compared = self._again(pair, broken, compared)
            except ProcessFailed as error:
                return dataclasses.replace(compared, failure=str(error))
        return compared

    def seen_elsewhere(self, asked: Elsewhere) -> list[Any] | None:
        from perfsuite.processes import elsewhere, rerun  # see the top

        seen: list[Values] = []
        for number in range(asked.processes):
            which = f"fresh process {number + 1} of {asked.processes}"
            packages = elsewhere.in_another_order(seen[0].packages, number) if seen else []
            request = self.request_for(
                asked.item, metric=asked.metric, values=True, given=dict(asked.given), packages=packages
            )
            try:
                with progress.waiting(f"{asked.item.name}: {which} for {asked.metric}"):
                    seen.append(rerun.values_of(asked.item.config, request, number))
            except rerun.ProcessFailed as error:
                # Not inside the handler: it has all that there is to say.
                failure = f"perf.{asked.metric}: {which} handed nothing over: {error}"
                break
        else:
            return [each.of_instrument for each in seen]
        raise MeasurementError(failure)

    def _again(self, pair: Pair, limits: "Limits", compared: "Compared") -> "Compared":
        budget = dict(limits.budget)
        ratio, overhead = self.measure_again(pair.item, metric=pair.metric, budget=budget, baseline=limits.baseline)
        return compared.with_again(_estimate(ratio), _estimate(overhead), ratio.slowed)


def _estimate(metric: Metric) -> "Estimate":
    from perfsuite.measure.estimate import Estimate  # see the top

    return Estimate(metric.value, metric.interval or Interval(-math.inf, math.inf))
