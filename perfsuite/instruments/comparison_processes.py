"""What becomes of a comparison that its time left undecided: further processes, and what is said of them.

A further process samples for all of its time, whatever it sees. Stopping where its own samples happen to look decided
would pull the pooled metric that way.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from perfsuite.gate.verdict import Gate, Rerun
from perfsuite.instruments.comparison_gates import settled_by
from perfsuite.measure import progress
from perfsuite.measure.timing.comparison import pooled
from perfsuite.processes.handover import Request, read_request, write_samples
from perfsuite.processes.rerun import ProcessFailed, argument_of, compare_again

if TYPE_CHECKING:
    from perfsuite.measure.stats.sequential import Estimate
    from perfsuite.measure.timing.comparison import Comparison, Settled
    from perfsuite.session.session import PerfSession

MOST_PROCESSES = 50
"""Where more than these would be needed, more samples are not what settles a comparison."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a comparison is held against, from budget and baseline together."""

    ratio: Sequence[float]
    overhead_us: Sequence[float]

    def __bool__(self) -> bool:
        return bool(self.ratio or self.overhead_us)

    def settled(self, ratio: "Estimate", overhead: "Estimate") -> bool:
        """Whether one limit is broken for certain, or all are kept for certain."""
        return settled_by(self.ratio, self.overhead_us)(ratio, overhead)

    def decided(self, comparison: "Comparison") -> bool:
        """`settled` by the metrics of a comparison."""
        return self.settled(comparison.ratio, comparison.overhead_us)

    def contradiction(self, parts: "Sequence[Comparison]") -> list[float]:
        """What the processes saw of a metric, where that lies on both sides of its limit; empty where none does.

        `pooled` never decides such parts, however many more there are.
        """
        by_limit = list(zip(*(self.held(part) for part in parts), strict=True))
        above = [[metric.value > limit for metric, limit in each] for each in by_limit]
        if any(map(all, above)):
            return []
        return next(
            ([metric.value for metric, _ in each] for each, over in zip(by_limit, above, strict=True) if any(over)), []
        )

    def held(self, comparison: "Comparison") -> "Iterator[tuple[Estimate, float]]":
        """Each limit with the metric that it is for."""
        yield from ((comparison.ratio, limit) for limit in self.ratio)
        yield from ((comparison.overhead_us, limit) for limit in self.overhead_us)


class Processes:
    """The further processes of one test's comparisons."""

    def __init__(self, session: "PerfSession", item: pytest.Item, seconds: float):
        self._session = session
        self._item = item
        self._seconds = seconds
        self._reruns: dict[str, tuple[Rerun, str]] = {}
        self._folder = session.options.again
        self._asked = None if self._folder is None else read_request(self._folder)

    def settled(self, metric: str, settled: "Settled | None") -> "Settled | None":
        """When the sampling of a comparison may stop, `metric` being the name of its ratio."""
        return _never if self._asked and self._asked.comparison == metric else settled

    def settle(self, name: str, comparison: "Comparison", limits: Limits) -> "Comparison":
        """The comparison; with the samples of further processes where its own leave `limits` undecided.

        In a further process, the comparison that was asked for is handed over, and the test ends there. What all the
        samples together say may be wrong with the same chance as what `comparison` says alone, on top of that.
        """
        metrics = [metric.title for metric in comparison.metrics(name)]
        if self._folder is not None and self._asked is not None:
            if self._asked.comparison in metrics:
                write_samples(self._folder, comparison)
                pytest.skip("the comparison was handed over")
            return comparison
        if self._session.options.processes == 1 or not limits or limits.decided(comparison):
            return comparison
        now, parts, failure = comparison, [comparison], ""
        most = self._session.options.processes
        while len(parts) < most and not limits.decided(now) and not limits.contradiction(parts):
            try:
                with progress.waiting(f"comparing {name} in process {len(parts) + 1} of {most} at most"):
                    parts.append(self._again(metrics[0], comparison))
            except ProcessFailed as error:
                failure = str(error)
                break
            now = pooled(parts)
        to_settle = ""
        if now.processes > 1 and now.bounded and not limits.decided(now):  # of the others it is said elsewhere
            to_settle = what_settles(now, parts, limits, seconds=self._seconds)
        self._reruns |= dict.fromkeys(metrics, (Rerun(now.pairs, len(parts), failure), to_settle))
        return now

    def _again(self, metric: str, first: "Comparison") -> "Comparison":
        """`first` as a further process makes it. Raises `ProcessFailed`, also where that compares other calls."""
        cache = self._session.cache
        request = Request(self._item.nodeid, argument_of(self._item), metric, None if cache is None else str(cache))
        part = compare_again(self._item.config, request)
        of, asked = ((each.candidate, each.reference, each.until) for each in (part, first))
        if of != asked:
            raise ProcessFailed(f"it compared {' with '.join(of[:2])} and not {' with '.join(asked[:2])}")
        return part

    def explained(self, gates: "Sequence[Gate]") -> "list[Gate]":
        """The same gates. Those of comparisons that took further processes say so."""
        return [self._explained(gate) for gate in gates]

    def explained_last(self, applied: "list[Gate]", last: "Sequence[Gate]") -> "list[Gate]":
        """`explained` for gates that were applied last; they take their places in the list of those applied."""
        explained = self.explained(last)
        applied[len(applied) - len(last) :] = explained
        return explained

    def _explained(self, gate: "Gate") -> "Gate":
        if gate.source is None or gate.metric.title not in self._reruns:
            return gate
        rerun, to_settle = self._reruns[gate.metric.title]
        if gate.verdict == "inconclusive":
            gate = dataclasses.replace(gate, to_settle=to_settle or gate.to_settle)
        return dataclasses.replace(gate, rerun=rerun)


def what_settles(comparison: "Comparison", parts: "Sequence[Comparison]", limits: Limits, *, seconds: float) -> str:
    """What would decide a comparison that its parts, sampled for `seconds` each, have left open, in words.

    An interval gets narrower with the square root of the number of samples, so that follows from how much narrower it
    must be to lie on one side of the limit.
    """
    if seen := limits.contradiction(parts):
        values = ", ".join(f"{value:.4g}" for value in seen)
        return f"the processes contradict each other ({values}), which no more of them settle: move the limit"
    if moved := [part.unsettled for part in parts if part.unsettled]:
        return f"{'; '.join(moved)}; no more processes settle that"
    processes = len(parts)
    needed = processes * max(_narrower(metric, limit) for metric, limit in limits.held(comparison)) ** 2
    if needed > MOST_PROCESSES:
        return f"more than {MOST_PROCESSES} processes: move the limit, or take a quieter machine"
    more = max(math.ceil(needed), processes + 1)
    return (
        f"about {more} processes (--perf-processes={more}), or --perf-seconds={round(seconds * more / processes, 2):g}"
    )


def _narrower(metric: "Estimate", limit: float) -> float:
    """How many times narrower an interval must be to lie on that side of the limit where its metric is."""
    interval = metric.interval
    if interval.low > limit or interval.high <= limit:
        return 1.0
    side = interval.high - metric.value if metric.value <= limit else metric.value - interval.low
    distance = abs(metric.value - limit)
    return side / distance if distance else math.inf


def _never(ratio: "Estimate", overhead: "Estimate") -> bool:
    return False
