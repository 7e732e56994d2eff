"""`asynchrony`: whether a call returns before the device is done, so that the host's next work hides behind its work.

The thread of a call that waits sleeps; that of a call whose host work takes longer than the device's does not. Wall
time less the thread's processor time, less what the operating system took away, is the time asleep. Where something
else than the code may be why it sleeps, a call waits only if looks at its stack see it wait for the device. So does one
that does not sleep: jax 0.12 gives the thread that waits work of the CPU's.
"""

import dataclasses
import functools
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from perfsuite.measure.call import Call
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.stats import intervals
from perfsuite.measure.stats.error_rates import DECIDING_ERROR, error_of_look
from perfsuite.measure.stats.intervals import median_interval
from perfsuite.measure.timing.block import Sample, Subject, columns_us, run_block, steady
from perfsuite.measure.timing.clock import now_ns
from perfsuite.measure.timing.scheduling import is_known, thread_delay_ns
from perfsuite.measure.timing.stack_sampler import StackPlace, Watch, certain_place, eager_switching

EARLY = 0.5
"""A call that has returned by this share of its time to ready returns before the device is done."""

WAITED = 0.1
"""A call waits if it sleeps, or is seen to wait, for this share of its time to ready before it returns."""

FIRST_LOOK = 20
MOST_SAMPLES = 320
_WATCH_EVERY_S = 1e-3
_WATCH_SECONDS = 0.5
_LEAST_RUNS = 3
_LEAST_LOOKS = 10

_WORKS = (
    "it {0}, and its thread works all that time rather than waits: the device has too little to do to tell waiting "
    "from dispatch, or its work is done in the calling thread, as on CPU where the program calls back into Python. "
    "Take a larger input, and a program without callbacks"
)
_TOO_NEAR = "it {0}: too near to call. Take a larger input, or allow more --perf-seconds"
_NOT_ITS_OWN = (
    "it {0}, and no look saw a line that waits for the device. On a CPU JAX itself waits in a program over several "
    "devices, and in every call where jax_cpu_enable_async_dispatch is off: an accelerator can tell. Only Linux tells "
    "what other processes took"
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
        """A count, 1 where the call waits, which is missing where that is unknown; and the share, as info."""
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
    intervals.load()
    subject = Subject(call, single=True)
    with steady(subject):
        sampled = _sampled(subject, seconds)
        if sampled.waits is False:
            return sampled
        places = _watched(subject, min(_WATCH_SECONDS, seconds))
    place = certain_place(places)
    seen = sum(looks for each, looks in places.items() if each.waits) / max(places.total(), _LEAST_LOOKS)
    sleeps = sampled.waits and (place.waits or (is_known() and not _jax_waits(call)))
    if sleeps or seen * sampled.share > WAITED:
        return dataclasses.replace(sampled, waits=True, where=place.line, for_device=place.waits, reason="")
    return dataclasses.replace(sampled, waits=None, reason=sampled.reason or _NOT_ITS_OWN.format(sampled))


def _sampled(subject: Subject, seconds: float) -> Asynchrony:
    """Run the call until it is known whether it waits, or time is up."""
    clock = _SleepClock(subject.call.fn)
    subject.call.fn = clock
    samples: list[Sample] = []
    asleep_us: list[float] = []
    deadline = time.monotonic() + seconds
    look, next_look = 0, FIRST_LOOK
    while True:
        samples.append(run_block(subject))
        asleep_us.append(clock.asleep_ns / 1e3)
        out_of_time = time.monotonic() > deadline or len(samples) >= MOST_SAMPLES
        if len(samples) < next_look and not (out_of_time and len(samples) >= _LEAST_RUNS):
            continue
        look, next_look = look + 1, 2 * len(samples)
        columns = columns_us(samples, subject.call.label)
        estimated = _estimated(subject.call.label, columns, np.asarray(asleep_us), error_of_look(look, DECIDING_ERROR))
        if out_of_time or estimated.waits is not None:
            subject.call.fn = clock.fn
            return estimated


def _estimated(label: str, columns: np.ndarray, asleep_us: np.ndarray, error: float) -> Asynchrony:
    """What the samples say, without the place."""
    shares, asleep = columns[:, 0] / columns[:, 1], asleep_us / columns[:, 1]
    share = float(np.median(shares))
    share_interval, asleep_interval = median_interval(shares, error), median_interval(asleep, error)
    waits: bool | None = None
    if asleep_interval.low > WAITED:
        waits = True
    elif share_interval.high < EARLY and asleep_interval.high <= WAITED:
        waits = False
    reason = _WORKS if share_interval.low > EARLY else _TOO_NEAR
    if math.isinf(share_interval.half_width):
        share_interval = Interval(0.0, max(1.0, share))
    to_return_us, to_ready_us = (float(column) for column in np.median(columns, axis=0))
    asleep_share = max(0.0, float(np.median(asleep)))
    estimated = Asynchrony(
        label, waits, share, share_interval, asleep_share, to_return_us, to_ready_us, samples=len(columns)
    )
    return estimated if waits is not None else dataclasses.replace(estimated, reason=reason.format(estimated))


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


def _watched(subject: Subject, seconds: float) -> Counter[StackPlace]:
    """Where the thread is in some more runs."""
    places: Counter[StackPlace] = Counter()
    runs, deadline = 0, time.monotonic() + seconds
    with eager_switching(), Watch(_WATCH_EVERY_S) as watch:
        while runs < _LEAST_RUNS or time.monotonic() < deadline:
            with watch.during_call(places):
                outputs = subject.call.run()
            jax.block_until_ready(outputs)
            runs += 1
    return places
