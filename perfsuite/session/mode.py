"""What a session is for: the protocol of its mode, and the pair of calls that a mode compares."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.gate.verdict import Result
from perfsuite.measure.metric import Metric

if TYPE_CHECKING:  # every session has a mode, and few time anything
    from perfsuite.gate.limits import Compared, Limits
    from perfsuite.measure.call import Call
    from perfsuite.measure.timing.block import Until
    from perfsuite.measure.timing.comparison import Comparison, Settled


@dataclasses.dataclass(frozen=True)
class Pair:
    """The two calls of one comparison, in the test `item`. `name` is unique in the test."""

    item: pytest.Item
    name: str
    candidate: "Call"
    reference: "Call"
    until: "Until"
    seconds: float

    @property
    def metric(self) -> str:
        """The name of the metric of the ratio."""
        return f"{self.name} ratio to {self.until}"

    def compare(self, *, seconds: float | None = None, settled: "Settled | None" = None) -> "Comparison":
        """Sample both calls, for at most `seconds`, or the pair's own."""
        from perfsuite.measure.timing.comparison import compare_calls  # see the top

        seconds = self.seconds if seconds is None else seconds
        return compare_calls(self.candidate, self.reference, until=self.until, seconds=seconds, settled=settled)

    def glance(self) -> "Comparison":
        """Sample as few pairs as give any metric."""
        from perfsuite.measure.timing.comparison import compare_calls  # see the top

        return compare_calls(self.candidate, self.reference, until=self.until, seconds=0)


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """`here(given)`, to be run at one place of the test `item` in fresh processes, each like one on another machine.

    It returns plain values. `metric` is the id of what the instrument measures.
    """

    item: pytest.Item
    metric: str
    here: Callable[[Mapping[str, str]], Any]
    processes: int
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Mode(abc.ABC):
    """What a session is for."""

    gates = True
    """Whether metrics are judged at all."""

    @property
    def known_to(self) -> float:
        """Timing a call ends before its time is over once the medians are known to this share.

        With 0 it does so only where all samples are the same.
        """
        from perfsuite.measure.timing.timing import PRECISION  # see the top

        return PRECISION

    def about_to_time(self, item: pytest.Item, titles: Sequence[str], calls: "Sequence[Call]") -> None:  # noqa: B027  (one mode wants it)
        """Called before a test times calls. `titles` are those of the metrics that it makes of them."""

    @abc.abstractmethod
    def compare(self, pair: Pair, limits: "Limits") -> "Compared":
        """Compare the two calls of a pair, as well as `limits` need it."""

    @abc.abstractmethod
    def measure_again(self, item: pytest.Item, **asked: Any) -> list[Metric]:
        """What a fresh process measures of a test: `asked` are fields of `Request`. Raises `ProcessFailed`."""

    def seen_elsewhere(self, asked: Elsewhere) -> list[Any] | None:
        """What each process returned. None where the session starts no such processes.

        Raises `MeasurementError` where one returns nothing.
        """
        return None

    def fails(self, result: Result) -> bool:
        """Whether a gate fails its test."""
        return self.gates and result.failed

    def seconds(self, asked: float) -> float:
        """The most time for one gate of a test that asks for so much."""
        return asked

    def seconds_to_know(self, asked: float) -> float:
        """The same for a gate whose metric is exact, and which only takes so long where it is in doubt."""
        return self.seconds(asked)
