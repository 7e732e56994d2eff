"""`asynchrony`: whether a call returns before the device is done, so that the host's next work hides behind its work.

The thread of a call that waits sleeps; that of a call whose host work takes longer than the device's does not. Wall
time less the thread's processor time, less what the operating system took away, is the time asleep. Where the system
does not tell what it took away (`scheduling`), a call waits only if a look at its stack sees it wait.
"""

import collections
import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from perfsuite.measure.call import Call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.stats import intervals
from perfsuite.measure.stats.error_rates import DECIDING_ERROR, error_of_look
from perfsuite.measure.stats.intervals import median_interval
from perfsuite.measure.timing.block import Sample, Subject, columns_us, run_block, steady
from perfsuite.measure.timing.clock import now_ns
from perfsuite.measure.timing.scheduling import is_known, thread_delay_ns
from perfsuite.measure.timing.stack_sampler import StackPlace, Watch, eager_switching, most_seen

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
_NOTABLE = 0.1
"""Other places are named where the thread was seen there in this share of the looks."""

_TOO_FEW = "{0.samples} samples are too few to tell: allow more --perf-seconds"
_WORKS = (
    "it {0}, and its thread works all that time rather than waits: the device has too little to do to tell waiting "
    "from dispatch, or its work is done in the calling thread, as on CPU where the program calls back into Python. "
    "Take a larger input, and a program without callbacks"
)
_TOO_NEAR = "it {0}: too near to call. Take a larger input, or allow more --perf-seconds"
_BY_JAX = (
    "JAX runs a program over several devices of a CPU in part while it dispatches it, and no look saw a line that "
    "waits: an accelerator can tell"
)


@dataclasses.dataclass(frozen=True)
class Asynchrony:
    """Whether a call waits for the device before it returns: `waits`, or None where that is unknown.

    `share` is the time to return over the time to ready, the median of `samples` runs, and `asleep` the share of the
    time to ready that its thread slept before it returned. `where` has the places where the thread was seen, the most
    likely to wait first: the user's `file:line`, and the innermost frame where that is another. `for_device` says
    whether that place shows that it waits for the device: else it may sleep there for any reason. `reason` says in
    words why it is unknown.
    """

    label: str
    waits: bool | None
    share: float
    share_interval: Interval
    asleep: float
    where: tuple[str, ...]
    to_return_us: float
    to_ready_us: float
    samples: int
    reason: str = ""
    for_device: bool = False

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

    Warms the call first; a compile while sampling raises `RecompilationError`. Raises `MeasurementError` where JAX's
    asynchronous dispatch is off, because every call waits then.
    """
    intervals.load()
    subject = Subject(call, single=True)
    places: collections.Counter[StackPlace] = collections.Counter()
    looks = 0
    with steady(subject):
        made = _sampled(subject, seconds)
        if made.waits is not False:
            places, looks = _watched(subject, min(_WATCH_SECONDS, seconds))
    if made.waits is False:
        return made
    if not compiles.forbidden() and not _dispatches_early():
        raise MeasurementError(
            f"{call.label}: JAX's asynchronous dispatch is off here, so every call waits for the device, whatever its "
            "code does. Leave jax_cpu_enable_async_dispatch on to find out which calls wait"
        )
    return _with_places(made, call, places, looks)


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
        made = _estimated(subject.call.label, columns, np.asarray(asleep_us), error_of_look(look, DECIDING_ERROR))
        if out_of_time or made.waits is not None:
            subject.call.fn = clock.fn
            return made


def _estimated(label: str, columns: np.ndarray, asleep_us: np.ndarray, error: float) -> Asynchrony:
    """What the samples say, without the places."""
    shares, asleep = columns[:, 0] / columns[:, 1], asleep_us / columns[:, 1]
    share = float(np.median(shares))
    share_interval, asleep_interval = median_interval(shares, error), median_interval(asleep, error)
    waits: bool | None = None
    if asleep_interval.low > WAITED:
        waits = True if is_known() else None
    elif share_interval.high < EARLY and asleep_interval.high <= WAITED:
        waits = False
    reason = _WORKS if share_interval.low > EARLY else _TOO_NEAR
    if math.isinf(share_interval.half_width):
        share_interval, reason = Interval(0.0, max(1.0, share)), _TOO_FEW
    to_return_us, to_ready_us = (float(column) for column in np.median(columns, axis=0))
    made = Asynchrony(
        label=label,
        waits=waits,
        share=share,
        share_interval=share_interval,
        asleep=max(0.0, float(np.median(asleep))),
        where=(),
        to_return_us=to_return_us,
        to_ready_us=to_ready_us,
        samples=len(columns),
    )
    return made if waits is not None else dataclasses.replace(made, reason=reason.format(made))


def _with_places(made: Asynchrony, call: Call, places: "collections.Counter[StackPlace]", looks: int) -> Asynchrony:
    """With the places where the thread was seen, which may tell that it waits."""
    waits, reason = made.waits, made.reason
    if waits is None and looks >= _LEAST_LOOKS:
        seen_waiting = sum(count for place, count in places.items() if place.waits) / looks * made.share
        waits = True if seen_waiting > WAITED else None
    best = most_seen(places)
    if waits and not (best and best.waits) and _over_several_cpus(call):
        waits, reason = None, _BY_JAX
    others = [place for place, count in places.most_common(3) if place != best and count > _NOTABLE * places.total()]
    where = tuple(map(str, [best, *others])) if best else ()
    for_device = bool(waits and best and best.waits)
    return dataclasses.replace(made, waits=waits, where=where, reason="" if waits else reason, for_device=for_device)


def _over_several_cpus(call: Call) -> bool:
    """Whether a call's arrays lie over several CPU devices: a 1 ms program over eight of them returned at 97 % of its
    time to ready and slept for two thirds of that, of JAX's own doing (2-core x86-64 machine, jax 0.10.2).
    """
    leaves = jax.tree.leaves((call.args, call.kwargs))
    meshes: list[Any] = [leaf.sharding.device_set for leaf in leaves if isinstance(leaf, jax.Array)]
    return any(len(devices) > 1 and next(iter(devices)).platform == "cpu" for devices in meshes)


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


@functools.cache
def _dispatches_early() -> bool:
    """Whether a plain jitted call returns before the device is done, here: else every call waits, whatever its code.

    Only on CPU can it be off. JAX reads `jax_cpu_enable_async_dispatch` when its backend starts, so what the option
    says now need not hold.
    """
    if jax.default_backend() != "cpu":
        return True

    def much(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 16, lambda _, y: y @ y, x)

    control = Subject(Call(jax.jit(much), (jax.numpy.eye(300),), {}, 0), single=True)
    shares = [sample.to_return / sample.to_ready for sample in (run_block(control) for _ in range(5))]
    return min(shares) < EARLY


def _watched(subject: Subject, seconds: float) -> tuple["collections.Counter[StackPlace]", int]:
    """Where the thread is in some more runs, and the number of looks."""
    places: collections.Counter[StackPlace] = collections.Counter()
    runs, deadline = 0, time.monotonic() + seconds
    with eager_switching(), Watch(_WATCH_EVERY_S) as watch:
        while runs < _LEAST_RUNS or time.monotonic() < deadline:
            with watch.during_call() as seen:
                outputs = subject.call.run()
            places += seen
            jax.block_until_ready(outputs)
            runs += 1
    return places, watch.looks
