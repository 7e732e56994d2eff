"""`count_stalls`: the calls of a thousand that take far longer than the others, and what the code did meanwhile.

Time that the operating system took away is not the code's: with three busy neighbours on two cores a 0.06 ms call took
more than 20 ms longer in 42 of 53 336 calls, 304 ms at most, and in none of them were 20 ms left without the time in
which threads of the process were ready to run and did not (Linux 6.18, jax 0.10.2).

That time is the sum over all threads, because nobody knows which of them a call waits for. So what threads of the
process take from each other counts as the machine's too: a process with more threads than cores shows no stalls.
"""

import dataclasses
import statistics
import time
from collections import Counter

from perfsuite.measure import progress
from perfsuite.measure.call import Call
from perfsuite.measure.metric import Metric
from perfsuite.measure.stack_room import with_room
from perfsuite.measure.timing.block import Sample, Subject, columns_us, run_block, steady
from perfsuite.measure.timing.clock import now_ns
from perfsuite.measure.timing.scheduling import is_known, process_delay_ns
from perfsuite.measure.timing.stack_sampler import StackPlace, Watch, certain_place

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
_LEAST_CALLS = 3
_FIRST_MEDIAN = 20
_SNAPSHOT_NS = 20_000_000


@dataclasses.dataclass(frozen=True)
class Stall:
    """One call that took far longer than the median: all microseconds, and the line that took them, if certain."""

    us: float
    taken_us: float
    """What the operating system took away meanwhile, all threads of the process together."""
    where: str


@dataclasses.dataclass(frozen=True)
class Stalls:
    """The stalls among `calls` calls. A call stalls above `limit_us`, the median and what is allowed over it.

    `machine` counts the calls above the limit that may be the machine's: those that are above it only for what the
    operating system took away. Where it does not tell that (on Linux it does), they are those whose line no look saw: a
    machine that keeps the process from running keeps the thread that looks from it too. Sampling stops at three stalls.
    """

    label: str
    calls: int
    median_us: float
    limit_us: float
    longest_us: float
    stalls: tuple[Stall, ...]
    machine: int
    seconds: float

    @property
    def count(self) -> int:
        """How many calls stalled."""
        return len(self.stalls)

    @property
    def where(self) -> tuple[str, ...]:
        """The lines of all stalls, each once, the most frequent first."""
        return tuple(line for line, _ in Counter(stall.where for stall in self.stalls if stall.where).most_common())

    @property
    def repeats(self) -> bool:
        """Whether there are so many that they are the code's."""
        return self.count >= REPEATED

    @property
    def enough(self) -> bool:
        """Whether a stall in a hundred calls would have been seen twice with probability 0.999."""
        return self.calls - self.machine >= ENOUGH and (is_known() or not self.machine)

    def metrics(self, name: str) -> list[Metric]:
        """The stalls, for a budget alone, because they come at random; and the longest call, as info."""
        return [
            Metric(f"{name} stalls", self.count, "stalls", "count", samples=self.calls),
            Metric(f"{name} longest", self.longest_us, "us", "info", samples=self.calls),
        ]

    def __str__(self) -> str:
        if not self.stalls:
            return f"none of {self.calls} calls stalled"
        longest = max(stall.us for stall in self.stalls)
        return (
            f"{self.count} of {self.calls} calls stalled, for {longest / 1e3:.4g} ms or less, where the median call "
            f"takes {self.median_us / 1e3:.4g} ms"
        )


@with_room
def count_stalls(call: Call, *, seconds: float = 5.0, over_us: float | None = None) -> Stalls:
    """Run `call` 1000 times, or for `seconds`, and find the calls that take far longer than the median.

    `over_us` is how much longer, in microseconds; by default nine times the median, 20 ms at least. Sampling stops at
    the third stall. Warms the call first; a compile meanwhile raises `RecompilationError`. The garbage collector is off
    inside the calls, so its pauses do not count.
    """
    subject = Subject(call, single=True)
    limit_us = _limit_us(subject.call_ns / 1e3, over_us)
    samples: list[Sample] = []
    slow: list[Stall] = []
    every_s = min(max(limit_us / 10e6, 2e-3), 0.05)  # several looks in the shortest stall, and few in other calls
    what = f"looking for stalls of {call.label}"
    with steady(subject), progress.sampling(what, seconds) as report, Watch(every_s) as watch:
        started = time.monotonic()  # a collection before it took all of 0.5 s on a busy machine
        taken_ns, read_at = _taken_ns(watch), now_ns()
        while len(samples) < CALLS and (len(samples) < _LEAST_CALLS or time.monotonic() - started < seconds):
            if len(samples) >= _FIRST_MEDIAN and len(_stalls(slow, limit_us)) >= _STOP_AT:
                break
            watch.after_s = limit_us / 2e6
            if now_ns() - read_at > _SNAPSHOT_NS:  # what is long past is not charged to a slow call
                taken_ns, read_at = _taken_ns(watch), now_ns()
            if report is not None:
                report()
            places: Counter[StackPlace] = Counter()
            with watch.during_call(places):
                samples.append(run_block(subject))
            us = samples[-1].to_ready / 1e3
            if us > limit_us:
                before_ns, taken_ns, read_at = taken_ns, _taken_ns(watch), now_ns()
                slow.append(Stall(us, max(0, taken_ns - before_ns) / 1e3, certain_place(places).line))
            if us > limit_us or len(samples) in (_FIRST_MEDIAN, 5 * _FIRST_MEDIAN):
                limit_us = _limit_us(statistics.median(sample.to_ready for sample in samples) / 1e3, over_us)
        seconds = time.monotonic() - started
    to_ready_us = columns_us(samples, call.label)[:, 1]
    median_us = float(statistics.median(to_ready_us))
    limit_us = _limit_us(median_us, over_us)
    stalls = _stalls(slow, limit_us)
    machine = sum(each.us > limit_us for each in slow) - len(stalls)
    longest_us = float(to_ready_us.max())
    return Stalls(call.label, len(samples), median_us, limit_us, longest_us, tuple(stalls), machine, seconds)


def _limit_us(median_us: float, over_us: float | None) -> float:
    return median_us + (max((TIMES - 1) * median_us, LEAST_US) if over_us is None else over_us)


def _stalls(slow: list[Stall], limit_us: float) -> list[Stall]:
    """Those that are above the limit for what the code did."""
    return [each for each in slow if each.us - each.taken_us > limit_us and (is_known() or each.where)]


def _taken_ns(watch: Watch) -> int:
    """What the operating system took from the process so far, but for the thread that looks."""
    return process_delay_ns(without=watch.thread.native_id)
