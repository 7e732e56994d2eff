"""`time_call`: how long one call takes in the steady state, until it returns and until its outputs are ready."""

import dataclasses
import math
import time
from typing import ClassVar, Literal

import numpy as np

from perfsuite.measure import peers, progress
from perfsuite.measure.call import Call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.measurement import Interval, Metric
from perfsuite.measure.stats.intervals import INFORMING_ERROR, median_interval, quantile_floor, quantile_interval
from perfsuite.measure.timing.block import Sample, Subject, collector_off, run_block

Until = Literal["return", "ready"]

LEAST_SAMPLES = 100
LEAST_FOR_TAIL = 1000
"""With fewer than 368 samples the 99th percentile has no upper end at all, with fewer than 1000 hardly one."""
PRECISION = 0.01
"""Sampling stops once the medians' intervals are this narrow (half of the width, relative), or when time is up."""


@dataclasses.dataclass(frozen=True)
class Duration:
    """Microseconds a call: the median and the 99th percentile, with their intervals.

    The upper end of the 99th percentile is infinite where there were too few samples for one.
    """

    median_us: float
    interval_us: Interval
    p99_us: float
    p99_interval_us: Interval

    def __str__(self) -> str:
        return f"{self.median_us:.4g} us [{self.interval_us.low:.4g}, {self.interval_us.high:.4g}]"


@dataclasses.dataclass(frozen=True)
class Timing:
    """The steady state of one call.

    `to_return` is what the host pays, `to_ready` what the user waits. Where both are alike, the call waits for the
    device (or the device is done before the host). `calls_per_block` is above 1 where one call is too short for the
    clock; `harness_us` is the cost of the measuring itself, which is taken off every sample already.
    """

    label: str
    to_return: Duration
    to_ready: Duration
    samples_us: np.ndarray  # (samples,), to ready
    calls_per_block: int
    harness_us: float

    suffixes: ClassVar = (" to return", " to ready", " p99")

    def metrics(self, name: str) -> list[Metric]:
        """The metrics that a gate takes: medians to return and to ready, and the tail."""
        metrics = (
            (self.to_return.median_us, self.to_return.interval_us),
            (self.to_ready.median_us, self.to_ready.interval_us),
            (self.to_ready.p99_us, self.to_ready.p99_interval_us),
        )
        return [
            Metric(name + suffix, value, "us", "time", "lower", interval, len(self.samples_us))
            for suffix, (value, interval) in zip(self.suffixes, metrics, strict=True)
        ]


def time_call(call: Call, *, seconds: float = 5.0, least_samples: int = LEAST_SAMPLES) -> Timing:
    """Time `call` in the steady state, for at most `seconds` of sampling, but 3 samples in any case.

    The call is warmed first. A compile while sampling raises `RecompilationError`: it is never a sample. The garbage
    collector is off inside the blocks. Sampling ends before time is up once `least_samples` were taken and the medians
    are known to 1 %. Raises `MeasurementError` when the clock gives times that are not positive.
    """
    subject = Subject(call)
    samples: list[Sample] = []
    look = least_samples
    try:
        with collector_off(), compiles.forbid(), progress.sampling(f"timing {call.label}", seconds) as told:
            deadline = time.monotonic() + seconds
            decided = peers.Sparing(every=1 if peers.alone() else _blocks_between_agreements(subject, seconds))
            while len(samples) < 3 or decided.going_on(lambda: time.monotonic() < deadline):
                if told is not None:
                    told()
                samples.append(run_block(subject))
                if len(samples) == look:
                    look *= 2
                    if peers.agreed(_precise(peers.slowest(samples))):
                        break
    finally:
        subject.give_back()
    to_return, to_ready = columns_us(peers.slowest(samples), call.label).T
    return Timing(
        label=call.label,
        to_return=duration(to_return),
        to_ready=duration(to_ready),
        samples_us=to_ready,
        calls_per_block=subject.calls,
        harness_us=sum(subject.harness) / 1e3,
    )


def _blocks_between_agreements(subject: Subject, seconds: float) -> int:
    """Blocks that take a hundredth of the time together, 10 at most."""
    return int(min(10, max(1, seconds * 1e7 / max(subject.call_ns * subject.calls, 1))))


def duration(samples_us: np.ndarray) -> Duration:
    """Median, interval and tail of one column of samples in microseconds."""
    interval = median_interval(samples_us, INFORMING_ERROR) or Interval(
        float(samples_us.min()), float(samples_us.max())
    )
    return Duration(
        median_us=float(np.median(samples_us)),
        interval_us=interval,
        p99_us=float(np.quantile(samples_us, 0.99)),
        p99_interval_us=quantile_interval(samples_us, 0.99, INFORMING_ERROR)
        or Interval(quantile_floor(samples_us, 0.99, INFORMING_ERROR), math.inf),
    )


def columns_us(samples: list[Sample], label: str) -> np.ndarray:
    """The samples in microseconds, shape (samples, 2), the columns to return and to ready.

    Raises `MeasurementError` for times that are not positive: a clock that stands still or runs backwards is no clock.
    """
    columns = np.asarray(samples, dtype=np.float64) / 1e3
    if not np.isfinite(columns).all() or (columns <= 0).any():
        raise MeasurementError(
            f"{label}: the clock gave times that are not positive (least: {columns.min():.3g} us); "
            "the call may do nothing at all, or the machine's clock is unsteady"
        )
    return columns


def _precise(samples: list[Sample]) -> bool:
    for column in np.asarray(samples).T:
        interval = median_interval(column, INFORMING_ERROR)
        if interval is None or interval.half_width > PRECISION * np.median(column):
            return False
    return True
