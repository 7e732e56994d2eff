"""`count_stalls`: the calls of a thousand that take far longer than the others, and what the code did meanwhile.

Time that the operating system took away is not the code's: with three busy neighbours on two cores a 0.06 ms call took
more than 20 ms longer in 42 of 53 336 calls, 304 ms at most, and in none of them were 20 ms left without the time in
which threads of the process were ready to run and did not (Linux 6.18, jax 0.10.2).

That time is the sum over all threads, because nobody knows which of them a call waits for. So what threads of the
process take from each other counts as the machine's too: a process with more threads than cores shows no stalls.
"""

import collections
import dataclasses
import statistics
import time

from perfsuite.measure import progress
from perfsuite.measure.call import Call
from perfsuite.measure.metric import Metric
from perfsuite.measure.stack_room import with_room
from perfsuite.measure.timing.block import Sample, Subject, columns_us, run_block, steady
from perfsuite.measure.timing.clock import now_ns
from perfsuite.measure.timing.scheduling import is_known, process_delay_ns
from perfsuite.measure.timing.stack_sampler import StackPlace, Watch, most_seen

TIMES = 10
"""A call stalls that takes this many times the median call, if that is at least `LEAST_US` longer."""
LEAST_US = 20_000.0

CALLS = 1000
"""A stall in one of a hundred calls comes twice or more in 1000 of them with probability 0.9995."""
ENOUGH = 920
"""The calls that make it 0.999: 0.99^n + 0.01 n 0.99^(n - 1) is below 0.001 from 920 on."""
REPEATED = 2
"""A single stall can be the machine's: memory that it reads back from disk, a machine that moves. Two are not."""
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
    """The stalls among `calls` calls. A call stalls above `limit_us`, the median and what is allowed over it.

    `machine` counts the calls above the limit only for what the operating system took away. `machine_known` is false
    where it does not tell that; then `stalls` may be the machine's. Sampling stops at three stalls.
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
        """How many calls stalled."""
        return len(self.stalls)

    @property
    def where(self) -> tuple[str, ...]:
        """The places of all stalls, each once, the most frequent first."""
        places = collections.Counter(stall.where for stall in self.stalls if stall.where)
        return tuple(place for place, _ in places.most_common())

    @property
    def repeats(self) -> bool:
        """Whether there are so many that they are the code's.

        Where nobody knows what the machine took, only those count that a look saw somewhere: a machine that keeps the
        process from running keeps the thread that looks from it too.
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
        if not self.stalls:
            return f"none of {self.calls} calls stalled"
        times = sorted(stall.us for stall in self.stalls)
        ends = " and ".join(f"{us / 1e3:.4g}" for us in ([times[0], times[-1]] if len(times) > 1 else times))
        return (
            f"{self.count} of {self.calls} calls stalled, for {ends} ms, where the median call takes "
            f"{self.median_us / 1e3:.4g} ms"
        )


@with_room
def count_stalls(call: Call, *, seconds: float = 5.0, over_us: float | None = None) -> Stalls:
    """Run `call` 1000 times, or for `seconds`, and find the calls that take far longer than the median.

    `over_us` is how much longer, in microseconds; by default nine times the median, 20 ms at least. Sampling stops at
    the third stall. Warms the call first; a compile meanwhile raises `RecompilationError`. The garbage collector is off
    inside the calls, so its pauses do not count.
    """
    subject = Subject(call, single=True)
    seen = _Seen(subject.call_ns / 1e3, over_us)
    every_s = min(max(seen.limit_us / 10e6, 2e-3), 0.05)  # several looks in the shortest stall, and few in other calls
    what = f"looking for stalls of {call.label}"
    with steady(subject), progress.sampling(what, seconds) as report, Watch(every_s) as watch:
        started = time.monotonic()  # a collection before it took all of 0.5 s on a busy machine
        lost = _LostTime(watch)
        while not seen.enough() and (len(seen.samples) < 3 or time.monotonic() - started < seconds):
            watch.after_s = seen.limit_us / 2e6
            lost.read_now_and_then()
            if report is not None:
                report()
            with watch.during_call() as places:
                sample = run_block(subject)
            seen.add(sample, lost, places)
    return seen.told(call.label, time.monotonic() - started)


class _Seen:
    """The calls so far, and those that took longer than the limit, which follows the median."""

    def __init__(self, call_us: float, over_us: float | None):
        self._over_us = over_us
        self.samples: list[Sample] = []
        self._slow: list[Stall] = []
        self._follow(call_us)

    def _follow(self, median_us: float) -> None:
        over_us = max((TIMES - 1) * median_us, LEAST_US) if self._over_us is None else self._over_us
        self.limit_us = median_us + over_us

    def add(self, sample: Sample, lost: "_LostTime", places: "collections.Counter[StackPlace]") -> None:
        self.samples.append(sample)
        us = sample.to_ready / 1e3
        slow = us > self.limit_us
        if slow:
            self._slow.append(Stall(us, lost.since_last_us(), str(most_seen(places) or "")))
        if slow or len(self.samples) in (_FIRST_MEDIAN, 5 * _FIRST_MEDIAN):
            self._follow(statistics.median(sample.to_ready for sample in self.samples) / 1e3)

    def enough(self) -> bool:
        """Whether no further call is needed."""
        number = len(self.samples)
        return number >= CALLS or (number >= _FIRST_MEDIAN and len(self._stalls()) >= _STOP_AT)

    def _stalls(self) -> list[Stall]:
        """Those that are above the limit without what the operating system took away."""
        return [each for each in self._slow if each.us - each.taken_us > self.limit_us]

    def told(self, label: str, seconds: float) -> Stalls:
        to_ready_us = columns_us(self.samples, label)[:, 1]
        median_us = float(statistics.median(to_ready_us))
        self._follow(median_us)
        stalls = self._stalls()
        return Stalls(
            label=label,
            calls=len(self.samples),
            median_us=median_us,
            limit_us=self.limit_us,
            longest_us=float(to_ready_us.max()),
            stalls=tuple(stalls),
            machine=sum(each.us > self.limit_us for each in self._slow) - len(stalls),
            machine_known=is_known(),
            seconds=seconds,
        )


class _LostTime:
    """What the operating system took from the process, but for the thread that looks."""

    def __init__(self, watch: Watch):
        self._watch = watch
        self._ns = 0
        self.since_last_us()

    def read_now_and_then(self) -> None:
        """Forget what is long past, so that a slow call is not charged with it."""
        if now_ns() - self._read_at > _SNAPSHOT_NS:
            self.since_last_us()

    def since_last_us(self) -> float:
        """Since the last call of this, in microseconds."""
        before, self._ns = self._ns, process_delay_ns(without=self._watch.thread.native_id)
        self._read_at = now_ns()
        return max(0, self._ns - before) / 1e3
