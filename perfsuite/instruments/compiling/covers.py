"""`perf.covers`: whether every signature that a loader brings was warmed, before anything runs."""

from collections.abc import Iterable
from typing import Any

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import Evidence
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.compiles.warm import SUFFIXES, Coverage, Warm, covers
from perfsuite.measure.private.capabilities import STACK

COVERS = declare("perf.covers", budget=("uncovered",), private=(STACK,))


class CoversInstrument(Instrument):
    def covers(
        self,
        warmed: Warm,
        inputs: Iterable[Any],
        *,
        limit: int | None = None,
        budget: Budget = NO_BUDGET,
        name: str | None = None,
    ) -> Coverage:
        """Fail where an input brings a signature that was not warmed; runs no program.

        `warmed` is what `perf.warm` returned for a jitted function. `inputs` are tuples of arguments, `call`s, or the
        only argument: a list, or a loader, which is walked to its end or up to `limit` inputs. `.uncovered`, `.unused`.
        `Budget(uncovered=)` allows some.
        """
        __tracebackhide__ = True
        limits = self._begin(COVERS, budget)
        coverage = covers(warmed, inputs, limit=limit)
        measured = self._recorder.measured("covers", coverage.label, *SUFFIXES, name=name)
        uncovered, unused = measured.metrics(coverage.metrics(measured.name))
        self._recorder.add(uncovered, evidence=Evidence(cause=coverage.in_words()))
        self._recorder.add(unused)
        self._recorder.check_budget(uncovered, limits.get("uncovered", 0), coverage.in_words)
        return coverage
