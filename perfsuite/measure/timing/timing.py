"""`time_call`: how long one call takes in the steady state, until it returns and until its outputs are ready."""

import dataclasses
import time
from typing import ClassVar

import numpy as np

from perfsuite.measure import peers, progress
from perfsuite.measure.call import Call, with_room
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.timing.block import Sample, Subject, columns_us, quickest_us, rounding_us, run_block, steady
from perfsuite.measure.timing.intervals import (
    INFORMING_ERROR,
    LEAST_FOR_MEDIAN,
    median_is_precise,
    median_within_run,
    quantile_interval,
)

LEAST_SAMPLES = 100
LEAST_FOR_TAIL = 1000
"""With fewer samples the 99th percentile hardly has one."""
PRECISION = 0.01
"""Sampling stops once the half-widths of the medians are this share of them, or when time is up."""


@dataclasses.dataclass(frozen=True)
class Duration:
    """Microseconds a call: the median, that of the quickest calls, and the 99th percentile, with their intervals.

    These hold within this run, and the next one may lie outside. The interval of the 99th percentile takes slow calls
    to be independent; its upper end is infinite where the samples are too few for one.
    """

    median_us: float
    quickest_us: float
    interval_us: Interval
    p99_us: float
    p99_interval_us: Interval

    def __str__(self) -> str:
        return f"{self.median_us:.4g} us [{self.interval_us.low:.4g}, {self.interval_us.high:.4g}]"


@dataclasses.dataclass(frozen=True)
class Timing:
    """The steady state of one call.

    `to_return` is what the host pays, `to_ready` what the user waits. Where both are alike, the call waits for the
    device, or the device is done before the host. `calls_per_block` is above 1 where one call is too short for the
    clock; `harness_us` is the cost of measuring, which no sample includes.
    """

    label: str
    to_return: Duration
    to_ready: Duration
    samples_us: np.ndarray  # (samples,), to ready
    calls_per_block: int
    harness_us: float

    suffixes: ClassVar = (" to return", " to ready", " p99")

    def metrics(self, name: str) -> list[Metric]:
        """The metrics that a gate takes: medians to return and to ready, and the tail.

        The range of a few samples is no interval: such a metric has none.
        """
        enough = len(self.samples_us) >= LEAST_FOR_MEDIAN
        metrics = (
            (self.to_return.median_us, self.to_return.interval_us if enough else None, self.to_return.quickest_us),
            (self.to_ready.median_us, self.to_ready.interval_us if enough else None, self.to_ready.quickest_us),
            (self.to_ready.p99_us, self.to_ready.p99_interval_us, None),
        )
        return [
            Metric(name + suffix, value, "us", "time", "lower", interval, len(self.samples_us), quickest=quickest)
            for suffix, (value, interval, quickest) in zip(self.suffixes, metrics, strict=True)
        ]


@with_room
def time_call(
    call: Call, *, seconds: float = 5.0, least_samples: int = LEAST_SAMPLES, precision: float = PRECISION
) -> Timing:
    """Time `call` in the steady state, for at most `seconds` of sampling, but 3 samples in any case.

    Warms the call first. A compile while sampling raises `RecompilationError`: it is never a sample. The garbage
    collector is off inside the blocks. Sampling ends early after `least_samples` where the half-widths of the
    medians are at most the share `precision` of them. Raises `MeasurementError` when the clock gives times that are not
    positive.
    """
    subject = Subject(call)
    samples: list[Sample] = []
    next_check = least_samples
    # Several processes agree once in 10 blocks, or in the blocks that take a hundredth of the time: to agree takes them
    # 1 to 2 ms (two processes, 2 busy cores, jax 0.10.2).
    every = int(min(10, max(1, seconds * 1e7 / max(subject.call_ns * subject.calls, 1))))
    with steady(subject), progress.sampling(f"timing {call.label}", seconds) as report:
        deadline = time.monotonic() + seconds
        while True:
            decides = peers.alone() or len(samples) % every == 0
            if len(samples) >= 3 and decides and not peers.agreed(time.monotonic() < deadline):
                break
            if report is not None:
                report()
            samples.append(run_block(subject))
            if len(samples) == next_check:
                next_check *= 2
                columns = np.asarray(peers.slowest(samples)).T
                if peers.agreed(all(median_is_precise(column, precision) for column in columns)):
                    break
    to_return, to_ready = columns_us(peers.slowest(samples), call.label).T
    rounding = rounding_us(subject)
    return Timing(
        label=call.label,
        to_return=duration(to_return, rounding),
        to_ready=duration(to_ready, rounding),
        samples_us=to_ready,
        calls_per_block=subject.calls,
        harness_us=sum(subject.harness) / 1e3,
    )


def duration(samples_us: np.ndarray, rounding_us: float = 0.0) -> Duration:
    """Median, interval and tail of one run's samples in microseconds, each of which may be off by `rounding_us`."""
    return Duration(
        median_us=float(np.median(samples_us)),
        quickest_us=float(quickest_us(samples_us)),
        interval_us=median_within_run(samples_us).widened(rounding_us),
        p99_us=float(np.quantile(samples_us, 0.99)),
        p99_interval_us=quantile_interval(samples_us, 0.99, INFORMING_ERROR).widened(rounding_us),
    )
