"""`asynchrony`: whether a call returns before the device is done, so that the host's next work hides behind its work.

A call that waits is told from one whose host work is longer than the device's by what its thread does meanwhile: it
sleeps. Wall time less the thread's processor time, less what the operating system took away, is the time it slept.
Where the system does not say what it took away (`scheduling`), a call waits only if it is seen to wait.
"""

import collections
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from perfsuite.measure.call import Call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.measurement import Interval, Metric
from perfsuite.measure.stats.intervals import DECIDING_ERROR, error_of_look, median_interval
from perfsuite.measure.timing.block import Sample, Subject, collector_off, run_block
from perfsuite.measure.timing.clock import now_ns
from perfsuite.measure.timing.scheduling import is_known, thread_delay_ns
from perfsuite.measure.timing.stack_sampler import Place, Watch, eager_switching, most_seen
from perfsuite.measure.timing.timing import columns_us

EARLY = 0.5
"""A call that has returned by this share of its time to ready returns before the device is done."""

WAITED = 0.1
"""A call waits that sleeps, or is seen to wait, for this share of its time to ready before it returns."""

FIRST_LOOK = 20
MOST_SAMPLES = 320
_WATCH_EVERY_S = 1e-3
_WATCH_SECONDS = 0.5
_LEAST_WATCHED = 3
_LEAST_LOOKS = 10
_NOTABLE = 0.1


@dataclasses.dataclass(frozen=True)
class Asynchrony:
    """Whether a call waits for the device before it returns: `waits`, or None where that could not be told.

    `share` is the time to return over the time to ready, the median of `samples` pairs, and `asleep` the share of the
    time to ready that its thread slept before it returned. `where` has the places that the thread was seen at, the
    most likely to wait first: the user's `file:line`, and the innermost frame where that is another. `reason` says in
    words why it could not be told.
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

    def metrics(self, name: str) -> list[Metric]:
        """A count, 1 where the call waits, which is missing where that could not be told; and the share, as info."""
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

    The call is warmed first; a compile while sampling raises `RecompilationError`. Raises `MeasurementError` where
    JAX's asynchronous dispatch is off, because every call waits then.
    """
    slept = _Slept(call.fn)
    subject = Subject(call)
    subject.calls, subject.harness = 1, Sample(0.0, 0.0)  # a second call would queue behind the first
    slept.fn, subject.call.fn = subject.call.fn, slept.around(subject.call.fn)
    samples: list[Sample] = []
    asleep_us: list[float] = []
    places: collections.Counter[Place] = collections.Counter()
    looks = 0
    waits: bool | None = None
    try:
        with collector_off(), compiles.forbid():
            deadline = time.monotonic() + seconds
            look, next_look = 0, FIRST_LOOK
            while True:
                samples.append(run_block(subject))
                asleep_us.append(slept.ns / 1e3)
                out_of_time = time.monotonic() > deadline or len(samples) >= MOST_SAMPLES
                if len(samples) < next_look and not (out_of_time and len(samples) >= _LEAST_WATCHED):
                    continue
                look, next_look = look + 1, 2 * len(samples)
                columns = columns_us(samples, call.label)
                metrics = _metrics(columns, np.asarray(asleep_us), error_of_look(look, DECIDING_ERROR))
                waits = _decided(*metrics)
                if out_of_time or waits is not None:
                    break
            if waits is not False:
                subject.call.fn = slept.fn
                places, looks = _watched(subject, min(_WATCH_SECONDS, seconds))
    finally:
        subject.call.fn = slept.fn
        subject.give_back()
    if waits is not False and not compiles.forbidden() and not _dispatches_early():
        raise MeasurementError(
            f"{call.label}: JAX's asynchronous dispatch is off here, so every call waits for the device, whatever its "
            "code does. Leave jax_cpu_enable_async_dispatch on to find out which calls wait"
        )
    share, share_interval, asleep, _ = metrics
    to_return, to_ready = (float(column) for column in np.median(columns, axis=0))
    if waits is None and looks >= _LEAST_LOOKS:
        seen_waiting = sum(count for place, count in places.items() if place.waits) / looks * share
        waits = True if seen_waiting > WAITED else None
    best = most_seen(places)
    by_jax = waits is True and not (best and best.waits) and _over_several_cpus(call)
    if by_jax:
        waits = None
    others = [place for place, count in places.most_common(3) if place != best and count > _NOTABLE * places.total()]
    made = Asynchrony(
        label=call.label,
        waits=waits,
        share=share,
        share_interval=share_interval or Interval(0.0, max(1.0, share)),
        asleep=max(0.0, asleep),
        where=tuple(map(str, [best, *others])) if best else (),
        to_return_us=to_return,
        to_ready_us=to_ready,
        samples=len(samples),
    )
    if waits is not None:
        return made
    return dataclasses.replace(made, reason=_BY_JAX if by_jax else _why(made, share_interval is not None))


_BY_JAX = (
    "JAX runs a program over several devices of a CPU in part while it dispatches it, and no line was seen that waits: "
    "on an accelerator it can be told"
)


def _over_several_cpus(call: Call) -> bool:
    """Whether a call's arrays lie over several CPU devices: a 1 ms program over eight of them returned at 97 % of its
    time to ready and slept for two thirds of that, of JAX's own doing (2-core x86-64 machine, jax 0.10.2).
    """
    leaves = jax.tree.leaves((call.args, call.kwargs))
    meshes: list[Any] = [leaf.sharding.device_set for leaf in leaves if isinstance(leaf, jax.Array)]
    return any(len(devices) > 1 and next(iter(devices)).platform == "cpu" for devices in meshes)


class _Slept:
    """The nanoseconds that a function's last call spent asleep in this thread: neither running nor kept from it."""

    def __init__(self, fn: Callable):
        self.fn = fn
        self.ns = 0.0

    def around(self, fn: Callable) -> Callable:
        @functools.wraps(fn, updated=())
        def timed(*args: Any, **kwargs: Any) -> Any:
            delay, cpu, start = thread_delay_ns(), time.thread_time_ns(), now_ns()
            outputs = fn(*args, **kwargs)
            wall, cpu = now_ns() - start, time.thread_time_ns() - cpu
            self.ns = wall - cpu - (thread_delay_ns() - delay)
            return outputs

        return timed


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

    control = Subject(Call(jax.jit(much), (jax.numpy.eye(300),), {}, 0))
    control.calls, control.harness = 1, Sample(0.0, 0.0)
    shares = [sample.to_return / sample.to_ready for sample in (run_block(control) for _ in range(5))]
    return min(shares) < EARLY


def _metrics(
    columns: np.ndarray, asleep_us: np.ndarray, error: float
) -> tuple[float, Interval | None, float, Interval | None]:
    """Time to return and time asleep, each over the time to ready: medians and intervals."""
    share = columns[:, 0] / columns[:, 1]
    asleep = asleep_us / columns[:, 1]
    return (
        float(np.median(share)),
        median_interval(share, error),
        float(np.median(asleep)),
        median_interval(asleep, error),
    )


def _decided(
    share: float, share_interval: Interval | None, asleep: float, asleep_interval: Interval | None
) -> bool | None:
    if share_interval is None or asleep_interval is None:
        return None
    if asleep_interval.low > WAITED:
        return True if is_known() else None
    return False if share_interval.high < EARLY and asleep_interval.high <= WAITED else None


def _watched(subject: Subject, seconds: float) -> tuple["collections.Counter[Place]", int]:
    """Where the thread is in some more runs, and how often it was looked at."""
    places: collections.Counter[Place] = collections.Counter()
    runs, deadline = 0, time.monotonic() + seconds
    with eager_switching(), Watch(_WATCH_EVERY_S) as watch:
        while runs < _LEAST_WATCHED or time.monotonic() < deadline:
            watch.begin()
            try:
                outputs = subject.call.run()
            finally:
                places += watch.end()
            jax.block_until_ready(outputs)
            runs += 1
    return places, watch.looks


def _why(made: Asynchrony, bounded: bool) -> str:
    if not bounded:
        return f"{made.samples} samples are too few to tell: allow more --perf-seconds"
    if made.share_interval.low > EARLY:
        return (
            f"it {made}, and its thread works all that time rather than waits: the device has too little to do to tell "
            "waiting from dispatch, or its work is done in the calling thread, as on CPU where the program calls back "
            "into Python. Take a larger input, and a program without callbacks"
        )
    return f"it {made}: too near to call. Take a larger input, or allow more --perf-seconds"
