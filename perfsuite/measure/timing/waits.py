"""What a call waits for: `asynchrony`, before it returns each time, and `count_stalls`, now and then far too long.

**Asynchrony.** A call should return before the device is done, so that the host's next work hides behind the device's.
The thread of a call that waits sleeps; that of a call whose host work takes longer than the device's does not. Wall
time less the thread's processor time, less what the operating system took away, is the time asleep. Where something
else than the code may be why it sleeps, a call waits only if its stack shows that it waits for the device. So does one
that does not sleep: jax 0.12 gives the thread that waits work of the CPU's.

**Stalls.** Time that the operating system took away is not the code's: with three busy neighbours on two cores a
0.06 ms call took more than 20 ms longer in 42 of 53 336 calls, 304 ms at most, and in none of them were 20 ms left
without the time in which threads of the process were ready to run and did not (Linux 6.18, jax 0.10.2). That time is
the sum over all threads, because nobody knows which of them a call waits for. So what threads of the process take from
each other counts as the machine's too: a process with more threads than cores shows no stalls.

Linux counts for every thread how long it was ready to run and did not, in nanoseconds: the second number of its
`schedstat` (https://docs.kernel.org/scheduler/sched-stats.html). Elsewhere these times are 0.
"""

import contextlib
import dataclasses
import functools
import linecache
import math
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import jax
import numpy as np

from perfsuite.measure import progress
from perfsuite.measure.call import Call, with_room
from perfsuite.measure.compiles import callsite
from perfsuite.measure.io import short_path
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.private.libraries import WAITING
from perfsuite.measure.timing.block import Sample, Subject, columns_us, now_ns, run_block, steady
from perfsuite.measure.timing.intervals import DECIDING_ERROR, error_of_check, median_interval

EARLY = 0.5
"""A call that has returned by this share of its time to ready returns before the device is done."""
WAITED = 0.1
"""A call waits if it sleeps for this share of its time to ready before it returns, or its stack shows that it waits."""
MOST_SAMPLES = 320
_FIRST_CHECK = 20
_LEAST_RUNS = 3
_STACKS_EVERY_S = 1e-3
_STACKS_SECONDS = 0.5
_LEAST_STACKS = 10
_SWITCH_SECONDS = 1e-4

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

_WAITS = ("block_until_ready", "device_get", "effects_barrier")
"""Names that show that a line waits for the device."""

_WORKS = (
    "the device has too little to do. Take a larger input, and a program without callbacks: it {0}, and its thread "
    "works all that time rather than waits, or the work is done in the calling thread, as on CPU where the program "
    "calls back into Python"
)
_TOO_NEAR = "too near to call. Take a larger input, or allow more --perf-seconds: it {0}"
_NOT_ITS_OWN = (
    "it {0}, and its stack never shows a line that waits for the device. On a CPU JAX itself waits in a program over "
    "several devices, and in every call where jax_cpu_enable_async_dispatch is off: an accelerator can tell. Only "
    "Linux tells what other processes took"
)


@dataclasses.dataclass(frozen=True)
class Asynchrony:
    """Whether a call waits for the device before it returns: `waits`, or None where that is unknown.

    `share` is the time to return over the time to ready, the median of `samples` runs, and `asleep` the share of the
    time to ready that its thread slept before it returned. `where` is the user's `file:line` that waits, and the
    innermost frame where that is another; empty where it is not certain. `for_device` says whether that place shows
    that it waits for the device: else it may sleep there for any reason. `reason` says in words why `waits` is unknown.
    """

    label: str
    waits: bool | None
    share: float
    share_interval: Interval
    asleep: float
    to_return_us: float
    to_ready_us: float
    samples: int
    where: str = ""
    for_device: bool = False
    reason: str = ""

    def metrics(self, name: str) -> list[Metric]:
        """The share, as info, and a count, 1 where the call waits; no count where that is unknown."""
        share = Metric(
            f"{name} returns at", self.share, "of the time to ready", "info", "lower", self.share_interval, self.samples
        )
        if self.waits is None:
            return [share]
        return [share, Metric(f"{name} waits", int(self.waits), "waits", "count")]

    def __str__(self) -> str:
        return (
            f"returns at {self.share:.0%} of its time to ready ({self.to_return_us:.4g} of {self.to_ready_us:.4g} us)"
        )


def asynchrony(call: Call, *, seconds: float = 5.0) -> Asynchrony:
    """Find out whether `call` waits for the device before it returns, and where; for about `seconds`.

    Warms the call first; a compile while sampling raises `RecompilationError`.
    """
    subject = Subject(call, single=True)
    with steady(subject):
        timed = _timed(subject, seconds)
        if timed.waits is False:
            return timed
        places = _places(subject, min(_STACKS_SECONDS, seconds))
    place = certain_place(places)
    in_waits = sum(stacks for each, stacks in places.items() if each.waits) / max(places.total(), _LEAST_STACKS)
    sleeps = timed.waits and (place.waits or (counts_delays() and not _jax_waits(call)))
    if sleeps or in_waits * timed.share > WAITED:
        return dataclasses.replace(timed, waits=True, where=place.line, for_device=place.waits)
    reason = _NOT_ITS_OWN
    if timed.waits is None:
        reason = _WORKS if timed.share_interval.low > EARLY else _TOO_NEAR
    return dataclasses.replace(timed, waits=None, reason=reason.format(timed))


def _timed(subject: Subject, seconds: float) -> Asynchrony:
    """Run the call until it is certain whether it waits, or time is up. Without the place."""
    clock = _SleepClock(subject.call.fn)
    subject.call.fn = clock
    samples: list[Sample] = []
    asleep_us: list[float] = []
    deadline = time.monotonic() + seconds
    check, next_check = 0, _FIRST_CHECK
    while True:
        samples.append(run_block(subject))
        asleep_us.append(clock.asleep_ns / 1e3)
        out_of_time = time.monotonic() > deadline or len(samples) >= MOST_SAMPLES
        if len(samples) < next_check and not (out_of_time and len(samples) >= _LEAST_RUNS):
            continue
        check, next_check = check + 1, 2 * len(samples)
        columns = columns_us(samples, subject.call.label)
        estimate = _estimate(subject.call.label, columns, np.asarray(asleep_us), error_of_check(check, DECIDING_ERROR))
        if out_of_time or estimate.waits is not None:
            subject.call.fn = clock.fn
            return estimate


def _estimate(label: str, columns: np.ndarray, asleep_us: np.ndarray, error: float) -> Asynchrony:
    shares, asleep = columns[:, 0] / columns[:, 1], asleep_us / columns[:, 1]
    share = float(np.median(shares))
    share_interval, asleep_interval = median_interval(shares, error), median_interval(asleep, error)
    waits: bool | None = None
    if asleep_interval.low > WAITED:
        waits = True
    elif share_interval.high < EARLY and asleep_interval.high <= WAITED:
        waits = False
    if math.isinf(share_interval.half_width):
        share_interval = Interval(0.0, max(1.0, share))
    to_return_us, to_ready_us = (float(column) for column in np.median(columns, axis=0))
    asleep_share = max(0.0, float(np.median(asleep)))
    return Asynchrony(label, waits, share, share_interval, asleep_share, to_return_us, to_ready_us, len(columns))


class _SleepClock:
    """Calls `fn`. `asleep_ns` is how long the last call slept in this thread: it neither ran nor was kept from it."""

    def __init__(self, fn: Callable):
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.asleep_ns = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        delay, cpu, start = thread_delay_ns(), time.thread_time_ns(), now_ns()
        outputs = self.fn(*args, **kwargs)
        wall, cpu = now_ns() - start, time.thread_time_ns() - cpu
        self.asleep_ns = wall - cpu - (thread_delay_ns() - delay)
        return outputs


def _jax_waits(call: Call) -> bool:
    """Whether JAX itself may wait in a call: on a CPU, without asynchronous dispatch or over several devices.

    A 1 ms program over eight of them returned at 97 % of its time to ready and slept for two thirds of that (2-core
    x86-64 machine, jax 0.10.2).
    """
    arrays = [leaf for leaf in jax.tree.leaves((call.args, call.kwargs)) if isinstance(leaf, jax.Array)]
    devices: set[Any] = set().union(*(array.sharding.device_set for array in arrays)) or {jax.devices()[0]}
    if next(iter(devices)).platform != "cpu":
        return False
    return len(devices) > 1 or not jax.config.read("jax_cpu_enable_async_dispatch")


def _places(subject: Subject, seconds: float) -> Counter["StackPlace"]:
    """Where the thread is in some more runs."""
    places: Counter[StackPlace] = Counter()
    runs, deadline = 0, time.monotonic() + seconds
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(min(switch_seconds, _SWITCH_SECONDS))  # of 5 ms, so that stacks are read when they are due
    try:
        with StackSampler(_STACKS_EVERY_S) as sampler:
            while runs < _LEAST_RUNS or time.monotonic() < deadline:
                with sampler.during_call(places):
                    outputs = subject.call.run()
                jax.block_until_ready(outputs)
                runs += 1
    finally:
        sys.setswitchinterval(switch_seconds)
    return places


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
    operating system took away. Where it does not tell that (on Linux it does), they are those without a certain line: a
    machine that keeps the process from running keeps the sampler of its stack too. Sampling stops at three stalls.
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
        """Whether a stall in a hundred calls would have shown twice with probability 0.999."""
        return self.calls - self.machine >= ENOUGH and (counts_delays() or not self.machine)

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
    every_s = min(max(limit_us / 10e6, 2e-3), 0.05)  # several stacks in the shortest stall, and few in other calls
    what = f"looking for stalls of {call.label}"
    with steady(subject), progress.sampling(what, seconds) as report, StackSampler(every_s) as sampler:
        started = time.monotonic()  # a collection before it took all of 0.5 s on a busy machine
        delay_ns, read_at = process_delay_ns(without=sampler.thread), now_ns()
        while len(samples) < CALLS and (len(samples) < _LEAST_CALLS or time.monotonic() - started < seconds):
            if len(samples) >= _FIRST_MEDIAN and len(_of_the_code(slow, limit_us)) >= _STOP_AT:
                break
            sampler.after_s = limit_us / 2e6
            if now_ns() - read_at > _SNAPSHOT_NS:  # what is long past is not charged to a slow call
                delay_ns, read_at = process_delay_ns(without=sampler.thread), now_ns()
            if report is not None:
                report()
            places: Counter[StackPlace] = Counter()
            with sampler.during_call(places):
                samples.append(run_block(subject))
            us = samples[-1].to_ready / 1e3
            if us > limit_us:
                before_ns, delay_ns, read_at = delay_ns, process_delay_ns(without=sampler.thread), now_ns()
                slow.append(Stall(us, max(0, delay_ns - before_ns) / 1e3, certain_place(places).line))
            if us > limit_us or len(samples) in (_FIRST_MEDIAN, 5 * _FIRST_MEDIAN):
                limit_us = _limit_us(statistics.median(sample.to_ready for sample in samples) / 1e3, over_us)
        seconds = time.monotonic() - started
    to_ready_us = columns_us(samples, call.label)[:, 1]
    median_us = float(statistics.median(to_ready_us))
    limit_us = _limit_us(median_us, over_us)
    stalls = _of_the_code(slow, limit_us)
    machine = sum(each.us > limit_us for each in slow) - len(stalls)
    longest_us = float(to_ready_us.max())
    return Stalls(call.label, len(samples), median_us, limit_us, longest_us, tuple(stalls), machine, seconds)


def _limit_us(median_us: float, over_us: float | None) -> float:
    return median_us + (max((TIMES - 1) * median_us, LEAST_US) if over_us is None else over_us)


def _of_the_code(slow: list[Stall], limit_us: float) -> list[Stall]:
    """Those that are above the limit without what the operating system took."""
    return [each for each in slow if each.us - each.taken_us > limit_us and (counts_delays() or each.where)]


class StackPlace(NamedTuple):
    """`line` is the user's `file:line`, with the innermost frame where that is another: "train.py:3, in
    equinox/_jit.py:246 in _call".

    What waits in a module of Python's own, such as `threading`, is named by the frame that called that. `waits` is true
    where the innermost frame's own line or function shows that it waits for the device.
    """

    line: str
    waits: bool


NO_PLACE = StackPlace("", False)


class StackSampler:
    """Reads the stack of the thread that makes it, every `every_s` seconds once a call has lasted `after_s`.

    A context manager, with a thread of its own. To read a stack holds Python's lock for some 50 us, and takes nothing
    else from the call.
    """

    def __init__(self, every_s: float, after_s: float = 0.0):
        self.every_s = every_s
        self.after_s = after_s
        self._caller = threading.get_ident()
        self._call: tuple[float, Counter[StackPlace]] | None = None
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._sample, name="perfsuite stacks", daemon=True)

    def __enter__(self) -> "StackSampler":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.thread.join()

    @contextlib.contextmanager
    def during_call(self, places: Counter[StackPlace]) -> Iterator[None]:
        """Count in `places` where the stack is during a call, the body."""
        self._call = time.perf_counter(), places
        try:
            yield
        finally:
            self._call = None

    def _sample(self) -> None:
        due = time.perf_counter()
        while not self._stop.wait(max(0.0, due - time.perf_counter())):
            now, call = time.perf_counter(), self._call
            if call is not None and now - call[0] >= self.after_s:
                place = NO_PLACE
                # Who waits for Python's lock gets it when the thread lets go of it, which is where it waits for the
                # device: counted there, it would make a call that computes look like one that waits.
                if now - due < self.every_s / 2:
                    with contextlib.suppress(Exception):  # the code runs on while its frame is described
                        place = _place_of(sys._current_frames()[self._caller])
                if self._call is call:
                    call[1][place] += 1
            due = max(due, time.perf_counter() - self.every_s) + self.every_s


def certain_place(places: Counter[StackPlace]) -> StackPlace:
    """Where the thread waited: a place that shows it, or the one of more than half of the stacks; else `NO_PLACE`."""
    best = max(places, key=lambda place: (place.waits, places[place]), default=NO_PLACE)
    return best if best.waits or 2 * places[best] > places.total() else NO_PLACE


def _place_of(frame: FrameType) -> StackPlace:
    line, module = callsite.location(frame), frame.f_globals.get("__name__") or ""
    if callsite.is_harness(module):  # the call is in C++, and the line of the harness that called it says nothing
        return StackPlace(line, False)
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    is_jax = module.partition(".")[0] in ("jax", "jaxlib")
    waits = any(name in text for name in _WAITS) or (is_jax and any(each.runs(frame) for each in WAITING))
    caller = callsite.outside_of_python(frame)
    inner = f"{short_path(caller.f_code.co_filename)}:{caller.f_lineno}"
    return StackPlace(line if inner == line else f"{line}, in {inner} in {caller.f_code.co_qualname}", waits)


def counts_delays() -> bool:
    """Whether the operating system counts delays. Elsewhere time that a neighbour took looks like sleep."""
    return os.path.exists("/proc/thread-self/schedstat")


def thread_delay_ns() -> int:
    """How long this thread has waited for a processor since it began."""
    return _delay_ns("/proc/thread-self/schedstat")


def process_delay_ns(*, without: threading.Thread | None = None) -> int:
    """How long all threads of this process but one have waited for a processor, in sum.

    The sum is the most that it can have cost a call, whose threads may wait one after the other or at once.
    """
    skipped = None if without is None else str(without.native_id)
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return 0
    return sum(_delay_ns(f"/proc/self/task/{thread}/schedstat") for thread in threads if thread != skipped)


def _delay_ns(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):  # another system, a kernel without it, or a thread that has ended
        return 0
