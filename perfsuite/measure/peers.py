"""The other processes that measure the same call at the same time, and what all of them have to decide alike.

A program over the devices of several processes (`jax.distributed`) runs only where every process calls it. So all of
them must make the same calls in the same order, and one of them must decide where a clock decides: whether another pair
follows, how many calls make a block. A process alone decides by itself, and nothing here costs it anything.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

Value = TypeVar("Value")
Times = TypeVar("Times", bound=tuple)


class Peers(Protocol):
    """What the instruments need of the processes that measure together."""

    def agreed(self, value: Any) -> Any:
        """The value that process 0 has: plain values, as JSON has them."""

    def slowest(self, times: list[list[float]]) -> list[list[float]]:
        """The largest of all processes, number by number. All give equally many."""


_now: Peers | None = None


@contextlib.contextmanager
def together(peers: Peers) -> Iterator[None]:
    """Within, the instruments measure together with `peers`."""
    global _now
    _now = peers
    try:
        yield
    finally:
        _now = None


def alone() -> bool:
    """Whether this process measures alone."""
    return _now is None


def agreed(value: Value) -> Value:
    """The `value` of process 0, in all processes."""
    return value if _now is None else _now.agreed(value)


def slowest(samples: list[Times]) -> list[Times]:
    """Named tuples of times, each time from the slowest process: a step is over when it is over everywhere."""
    if _now is None or not samples:
        return samples
    make: Callable[..., Times] = type(samples[0])
    return [make(*each) for each in _now.slowest([list(sample) for sample in samples])]


class Sparing:
    """A process alone decides at every question; several processes agree at each `every`th, and go on at the others.

    To agree takes 1 to 2 ms (two processes, 2 busy cores, jax 0.10.2): too long to do it between all blocks.
    """

    def __init__(self, every: int):
        self._every = every
        self._asked = 0

    def going_on(self, decide: Callable[[], bool]) -> bool:
        """Whether to go on: what `decide` gives in process 0."""
        if _now is None:
            return decide()
        self._asked += 1
        return bool(self._asked % self._every) or agreed(decide())
