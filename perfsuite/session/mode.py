"""What a session is for: the protocol of its mode, and the pair of calls that a mode compares."""

import abc
import dataclasses

import pytest

from perfsuite.gate.limits import Compared, Limits
from perfsuite.gate.verdict import Gate
from perfsuite.measure.call import Call
from perfsuite.measure.timing.block import Until
from perfsuite.measure.timing.comparison import Comparison, Settled, compare_calls


@dataclasses.dataclass(frozen=True)
class Pair:
    """The two calls of one comparison, in the test `item`. `name` is unique in the test."""

    item: pytest.Item
    name: str
    candidate: Call
    reference: Call
    until: Until
    seconds: float

    @property
    def metric(self) -> str:
        """The name of the metric of the ratio."""
        return f"{self.name} ratio to {self.until}"

    def compare(self, *, seconds: float | None = None, settled: Settled | None = None, error: float) -> Comparison:
        """Sample both calls, for at most `seconds`, or the pair's own."""
        seconds = self.seconds if seconds is None else seconds
        return compare_calls(
            self.candidate, self.reference, until=self.until, seconds=seconds, settled=settled, error=error
        )


class Mode(abc.ABC):
    """What a session is for."""

    gates = True
    """Whether metrics are judged at all."""

    @abc.abstractmethod
    def compare(self, pair: Pair, limits: Limits) -> Compared:
        """Compare the two calls of a pair, as well as `limits` need it."""

    def fails(self, gate: Gate) -> bool:
        """Whether a gate fails its test."""
        return self.gates and gate.failed

    def seconds(self, asked: float) -> float:
        """The most time for one gate of a test that asks for so much."""
        return asked

    def part_of(self) -> str:
        """What all long waits of the session are part of, as the beginning of a sentence."""
        return ""
