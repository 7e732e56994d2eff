"""The transfers and callbacks of one warm call, as counts: what `perf.transfers` gates."""

import dataclasses
from collections import Counter

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.warmup import borrowed, warm
from perfsuite.measure.metric import Metric
from perfsuite.measure.runtime.repeats import agreed
from perfsuite.measure.runtime.transfers import Transfer, TransferCounts, count_transfers

SUFFIXES = {
    "host_to_device": " host to device transfers",
    "device_to_host": " device to host transfers",
    "callback": " callbacks",
    "explicit": " explicit transfers",
}


@dataclasses.dataclass
class CallTransfers(TransferCounts):
    """The implicit transfers, the callbacks and the explicit transfers of one warm call; `events` has each of them."""

    label: str
    events: tuple[Transfer, ...]

    @property
    def total(self) -> int:
        """Implicit transfers and callbacks: what `Budget(transfers=)` limits."""
        return self.host_to_device + self.device_to_host + self.callbacks

    def metrics(self, name: str) -> list[Metric]:
        """Four counts, each with what moved as its detail."""
        metrics = []
        for kind, suffix in SUFFIXES.items():
            events = [event for event in self.events if kind == ("explicit" if event.explicit else event.direction)]
            what = [f"{event.what}: {event.cause}" for event in events]
            places = {part: event.location for part, event in zip(what, events, strict=True) if event.location}
            unit = "callbacks" if kind == "callback" else "transfers"
            detail = dict(Counter(what)) or None
            metrics.append(Metric(name + suffix, len(events), unit, "count", detail=detail, places=places or None))
        return metrics

    def in_words(self) -> str:
        """One line for each implicit transfer and callback, equal ones together."""
        lines = Counter(str(event) for event in self.events if not event.explicit)
        return "\n".join(f"{line} ({times} times)" if times > 1 else line for line, times in lines.most_common())


def transfers_of(call: Call) -> CallTransfers:
    """Count the transfers and callbacks of one warm call, until its outputs are ready.

    Takes what two runs in a row agree on: what happens only in the first is not part of a step, what happens in every
    second is. Moves a call that carries on. Raises `MeasurementError` when none agree, and what `warm` raises.
    """
    __tracebackhide__ = True
    with borrowed(call) as subject:
        warm(subject.fn, over=[subject])

        def once() -> CallTransfers:
            with count_transfers() as counted:
                jax.block_until_ready(subject.run())
            return CallTransfers(call.label, counted.events)

        return agreed(once, _counts, f"{call.label}: the transfers differ")


def _counts(moved: CallTransfers) -> tuple[int, ...]:
    return moved.host_to_device, moved.device_to_host, moved.callbacks, moved.explicit
