"""`count_stalls`: the calls of a thousand that take far longer than the others, and what the code did meanwhile.

What the operating system took away is not the code's: with three busy neighbours on two cores a 0.06 ms call took more
than 20 ms longer in 42 of 53 336 calls, 304 ms at most, and in none of them were 20 ms left once the time was taken off
in which threads of the process were ready to run and did not (Linux 6.18, jax 0.10.2).

The times of all threads are added up, and nobody knows which of them a call waits for. So what threads of the process
take from each other is the machine's too: a stall of a process that runs more threads than it has cores is no stall.
"""

import collections
import dataclasses
import statistics
import time

from perfsuite.measure import progress
from perfsuite.measure.call import Call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.measurement import Metric
from perfsuite.measure.timing.block import Sample, Subject, collector_off, run_block
from perfsuite.measure.timing.clock import now_ns
from perfsuite.measure.timing.scheduling import is_known, process_delay_ns
from perfsuite.measure.timing.stack_sampler import Place, Watch, most_seen
from perfsuite.measure.timing.timing import columns_us

TIMES = 10
"""A call stalls that takes this many times the median call, if that is `LEAST_US` longer than it at least."""
LEAST_US = 20_000.0

CALLS = 1000
"""A stall in one of a hundred calls comes twice or more in 1000 of them with probability 0.9995."""
ENOUGH = 920
"""The calls that make it 0.999: 0.99^n + 0.01 n 0.99^(n - 1) is below 0.001 from 920 on."""
REPEATED = 2
"""A single stall can be the machine's: memory that is read back from disk, a machine that is moved. Two are not."""
_STOP_AT = 3
_FIRST_MEDIAN = 20
_SNAPSHOT_NS = 20_000_000


@dataclasses.dataclass(frozen=True)
class Stall:
    """One call that took far longer than the median: all microseconds, and where its thread was seen, mostly."""

    us: float
    taken_us: float
    """What the operating system took away meanwhile, all threads of the process together."""
    where: str


@dataclasses.dataclass(frozen=True)
class Stalls:
    """The stalls among `calls` calls. A call is a stall above `limit_us`, which is the median and what is allowed over.

    `machine` counts the calls that were above it for what the operating system took away. `machine_known` is false
    where it does not tell that; then `stalls` may be the machine's. `stalls` has at most the three that sampling stops
    at.
    """

    label: str
    calls: int
    median_us: float
    limit_us: float
    longest_us: float
    stalls: tuple[Stall, ...]
    machine: int
    machine_known: bool
    seconds: float

    @property
    def count(self) -> int:
        return len(self.stalls)

    @property
    def where(self) -> tuple[str, ...]:
        """The places of all stalls, each once, the most frequent first."""
        places = collections.Counter(stall.where for stall in self.stalls if stall.where)
        return tuple(place for place, _ in places.most_common())

    @property
    def repeats(self) -> bool:
        """Whether there are so many that they are the code's.

        Where nobody knows what the machine took, only those count that were seen somewhere: where the process is kept
        from running, so is the thread that looks.
        """
        return sum(self.machine_known or bool(stall.where) for stall in self.stalls) >= REPEATED

    @property
    def enough(self) -> bool:
        """Whether a stall in a hundred calls would have been seen twice with probability 0.999."""
        return self.calls - self.machine >= ENOUGH

    def metrics(self, name: str) -> list[Metric]:
        """The stalls, for a budget alone, because they come at random; and the longest call, as info."""
        return [
            Metric(f"{name} stalls", self.count, "stalls", "count", samples=self.calls),
            Metric(f"{name} longest", self.longest_us, "us", "info", samples=self.calls),
        ]

    def __str__(self) -> str:
        took = " and ".join(f"{us / 1e3:.4g}" for us in _ends([stall.us for stall in self.stalls]))
        return (
            f"{self.count} of {self.calls} calls stalled, for {took} ms, where the median call takes "
            f"{self.median_us / 1e3:.4g} ms"
            if self.stalls
            else f"none of {self.calls} calls stalled"
        )


def count_stalls(call: Call, *, seconds: float = 5.0, over_us: float | None = None) -> Stalls:
    """Run `call` 1000 times, or for `seconds`, and find the calls that take far longer than the median.

    `over_us` is how much longer, in microseconds; as it is, nine times the median, 20 ms at least. Sampling stops at
    the third stall. The call is warmed first; a compile meanwhile raises `RecompilationError`. The garbage collector
    is off inside the calls, so its pauses are none of them.
    """
    subject = Subject(call)
    subject.calls, subject.harness = 1, Sample(0.0, 0.0)
    samples: list[Sample] = []
    slow: list[tuple[Sample, float, str]] = []
    median_us = subject.call_ns / 1e3
    started = time.monotonic()
    try:
        with (
            collector_off(),
            compiles.forbid(),
            progress.sampling(f"looking for stalls of {call.label}", seconds) as told,
            Watch(_every_s(median_us, over_us)) as watch,
        ):
            watch.after_s = _limit_us(median_us, over_us) / 2e6
            delay, read_at = process_delay_ns(without=watch.native_id), now_ns()
            while len(samples) < CALLS and (len(samples) < 3 or time.monotonic() - started < seconds):
                if now_ns() - read_at > _SNAPSHOT_NS:
                    delay, read_at = process_delay_ns(without=watch.native_id), now_ns()
                if told is not None:
                    told()
                watch.begin()
                try:
                    sample = run_block(subject)
                finally:
                    places = watch.end()
                samples.append(sample)
                is_slow = sample.to_ready / 1e3 > _limit_us(median_us, over_us)
                if is_slow:
                    now = process_delay_ns(without=watch.native_id)
                    slow.append((sample, max(0, now - delay) / 1e3, _said(places)))
                    delay, read_at = now, now_ns()
                if is_slow or len(samples) in (_FIRST_MEDIAN, 5 * _FIRST_MEDIAN):
                    median_us = statistics.median(sample.to_ready for sample in samples) / 1e3
                    watch.after_s = _limit_us(median_us, over_us) / 2e6
                stalls = [each for each in slow if _is_stall(each, median_us, over_us)]
                if len(samples) >= _FIRST_MEDIAN and len(stalls) >= _STOP_AT:
                    break
    finally:
        subject.give_back()
    to_ready_us = columns_us(samples, call.label)[:, 1]
    median_us = float(statistics.median(to_ready_us))
    limit_us = _limit_us(median_us, over_us)
    slow = [each for each in slow if each[0].to_ready / 1e3 > limit_us]
    stalls = [each for each in slow if _is_stall(each, median_us, over_us)]
    return Stalls(
        label=call.label,
        calls=len(samples),
        median_us=median_us,
        limit_us=limit_us,
        longest_us=float(to_ready_us.max()),
        stalls=tuple(Stall(sample.to_ready / 1e3, taken, where) for sample, taken, where in stalls),
        machine=len(slow) - len(stalls),
        machine_known=is_known(),
        seconds=time.monotonic() - started,
    )


def _limit_us(median_us: float, over_us: float | None) -> float:
    return median_us + (max((TIMES - 1) * median_us, LEAST_US) if over_us is None else over_us)


def _every_s(median_us: float, over_us: float | None) -> float:
    """Some looks in the shortest of stalls, and few enough to leave the other calls alone."""
    return min(max(_limit_us(median_us, over_us) / 10e6, 2e-3), 0.05)


def _is_stall(slow: tuple[Sample, float, str], median_us: float, over_us: float | None) -> bool:
    sample, taken_us, _ = slow
    return sample.to_ready / 1e3 - taken_us > _limit_us(median_us, over_us)


def _said(places: "collections.Counter[Place]") -> str:
    place = most_seen(places)
    return "" if place is None else str(place)


def _ends(values: list[float]) -> list[float]:
    return [min(values), max(values)] if len(values) > 1 else values
