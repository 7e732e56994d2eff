"""The transfers and callbacks of one warm call, as counts: what `perf.transfers` gates."""

import dataclasses
from collections import Counter

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.warmup import borrowed, warm
from perfsuite.measure.measurement import Metric
from perfsuite.measure.runtime.transfers import Direction, Transfer, Transfers, count

SUFFIXES: dict[Direction, str] = {
    "host_to_device": " host to device transfers",
    "device_to_host": " device to host transfers",
    "callback": " callbacks",
}
EXPLICIT = " explicit transfers"
REPEATS = 2


@dataclasses.dataclass(frozen=True)
class CallTransfers:
    """The implicit transfers of one warm call, its callbacks, and its explicit transfers; `events` has each of them."""

    label: str
    host_to_device: int
    device_to_host: int
    callbacks: int
    explicit: int
    events: tuple[Transfer, ...]

    @property
    def total(self) -> int:
        """Implicit transfers and callbacks: what `Budget(transfers=)` limits."""
        return self.host_to_device + self.device_to_host + self.callbacks

    def metrics(self, name: str) -> list[Metric]:
        """Four counts, each with what moved as its detail."""
        implicit = [event for event in self.events if not event.explicit]
        return [
            _metric(f"{name}{suffix}", [event for event in implicit if event.direction == direction])
            for direction, suffix in SUFFIXES.items()
        ] + [_metric(f"{name}{EXPLICIT}", [event for event in self.events if event.explicit])]

    def in_words(self) -> str:
        """One line for each implicit transfer and callback, the same ones together."""
        lines = Counter(str(event) for event in self.events if not event.explicit)
        return "\n".join(f"{line} ({times} times)" if times > 1 else line for line, times in lines.most_common())


def transfers_of(call: Call) -> CallTransfers:
    """Count the transfers and callbacks of one warm call, from its first to the time when its outputs are ready.

    The least of two runs is taken, so that what only the first does is no step's. Moves a call that carries on.
    Raises what `warm` raises.
    """
    runs: list[Transfers] = []
    with borrowed(call) as subject:
        warm(subject.fn, over=[subject])
        for _ in range(REPEATS):
            with count() as counted:
                jax.block_until_ready(subject.run())
            runs.append(counted)
    least = min(runs, key=lambda counted: len(counted.events))
    metrics = least.host_to_device, least.device_to_host, least.callbacks, least.explicit
    return CallTransfers(call.label, *metrics, least.events)


def _metric(name: str, events: list[Transfer]) -> Metric:
    parts = [f"{event.what}: {event.cause}" for event in events]
    places = {part: event.location for part, event in zip(parts, events, strict=True) if event.location}
    detail = dict(Counter(parts))
    unit = "callbacks" if name.endswith(SUFFIXES["callback"]) else "transfers"
    return Metric(name, len(events), unit, "count", detail=detail or None, places=places or None)
