"""A value with its interval: what a comparison says of a ratio or of an overhead."""

import dataclasses

from perfsuite.measure.metric import Interval
from perfsuite.measure.words import span


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value with its interval, which holds it with the probability that its maker states."""

    value: float
    interval: Interval

    def __str__(self) -> str:
        return span(self.value, self.interval)
