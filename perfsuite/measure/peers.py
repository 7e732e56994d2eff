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


_peers: Peers | None = None


@contextlib.contextmanager
def together(peers: Peers) -> Iterator[None]:
    """Within, the instruments measure together with `peers`."""
    global _peers
    _peers = peers
    try:
        yield
    finally:
        _peers = None


def alone() -> bool:
    """Whether this process measures alone."""
    return _peers is None


def agreed(value: Value) -> Value:
    """The `value` of process 0, in all processes."""
    return value if _peers is None else _peers.agreed(value)


def slowest(samples: list[Times]) -> list[Times]:
    """Named tuples of times, each time from the slowest process: a step is over when it is over everywhere."""
    if _peers is None or not samples:
        return samples
    make: Callable[..., Times] = type(samples[0])
    return [make(*each) for each in _peers.slowest([list(sample) for sample in samples])]
