"""Gates whose truth is known: one call against itself, and against itself with a planted slowdown.

Both sides of such a gate are the same function with the same state behind the same `Planted` object, so they differ in
the plant alone.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compiles.settle import borrowed
from perfsuite.measure.compiles.warm import warm
from perfsuite.measure.metric import Estimate, Interval
from perfsuite.measure.timing.block import now_ns, waiting_for
from perfsuite.measure.timing.comparison import compare_calls

FLOOR_NS = 2_000
"""Both sides wait for at least so long: a side that read the clock once and went on made plants of 0.4 us come out as
0.1 us (2-core x86-64 machine, Python 3.11)."""


class Planted:
    """Runs `inner`, and takes `slowdown` times as long again: a busy wait of that share of what this very run took.

    So the plant has its true size at every speed of the machine. Both sides of a gate run the same lines, and wait for
    `FLOOR_NS` besides. Whichever side runs carries the state of `inner` on, so two sides need no second copy of a
    donated state.
    """

    def __init__(self, inner: Call, wait: Callable[[Any], None], slowdown: float):
        self.inner = inner
        self.wait = wait
        self.slowdown = slowdown
        self.__name__ = label_of(inner.fn)

    def __call__(self):
        start = now_ns()
        outputs = self.inner.run()
        self.wait(outputs)
        now = now_ns()
        end = now + FLOOR_NS + self.slowdown * (now - start + FLOOR_NS)
        while now_ns() < end:
            pass
        return outputs


@dataclasses.dataclass(frozen=True)
class Trial:
    """The outcome of one gate with the limit 1 whose candidate is slower by `planted` (0.01 is 1 %)."""

    planted: float
    interval: Interval
    pairs: int
    seconds: float


class Workload:
    """A call made ready to be compared with itself."""

    def __init__(self, call: Call):
        with contextlib.ExitStack() as borrowing:
            self.inner = borrowing.enter_context(borrowed(call))
            warm(self.inner.fn, over=[self.inner])
            self.wait = waiting_for(self.inner.run, self.inner.label)
            self._borrowing = borrowing.pop_all()

    def give_back(self) -> None:
        """Leave the caller's call able to run, with the state that the last run carried. No trial may follow."""
        self._borrowing.close()

    def trial(self, planted: float = 0.0, *, seconds: float) -> Trial:
        """One gate, the call against itself with `planted`, for at most `seconds` of sampling.

        It stops as soon as the interval excludes 1.
        """
        sides = (Call(Planted(self.inner, self.wait, size), (), {}, 0) for size in (planted, 0.0))
        compared = compare_calls(*sides, seconds=seconds, settled=_excludes_1)
        return Trial(planted, compared.ratio.interval, compared.pairs, compared.seconds)


def _excludes_1(ratio: Estimate, overhead: Estimate) -> bool:
    return ratio.interval.low > 1 or ratio.interval.high < 1
