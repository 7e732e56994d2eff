"""`measure.timing.timing`: the steady state of one call."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import FakeBlocks, FakeDevice, takes

from perfsuite.measure.call import call
from perfsuite.measure.metric import Interval
from perfsuite.measure.timing import timing
from perfsuite.measure.timing.timing import LEAST_FOR_TAIL, LEAST_SAMPLES, duration, time_call


@pytest.fixture
def blocks(monkeypatch):
    return FakeBlocks().install(monkeypatch, timing)


# The metrics.


def test_median_interval_and_tail_are_those_of_the_samples():
    samples = np.random.default_rng(0).permutation(np.arange(1.0, 1001))
    summary = duration(samples)
    assert (summary.median_us, summary.quickest_us) == (500.5, pytest.approx(50.95))
    assert 400 < summary.interval_us.low < 500 < 501 < summary.interval_us.high < 600
    assert summary.p99_us == pytest.approx(990.01)
    assert summary.p99_interval_us.low < 990 < summary.p99_interval_us.high


@pytest.mark.parametrize("us", [10, 10.004, 10.05, 10.096])
def test_an_interval_holds_what_the_tick_of_the_clock_hides(monkeypatch, us):
    device = FakeDevice(tick_ns=100).install(monkeypatch, resolution_ns=100)
    measured = time_call(call(device.run, us * 1e3), seconds=0.05)
    assert measured.calls_per_block == 5
    for each in (measured.to_return, measured.to_ready):
        assert each.interval_us.low <= us <= each.interval_us.high
        assert each.interval_us.half_width <= 0.005 * us


@pytest.mark.parametrize("size", [3, 30, 100, 367])
def test_one_stall_in_few_samples_says_nothing_of_the_tail(size):
    samples = np.full(size, 100.0)
    samples[1] = 1e6
    assert duration(samples).p99_interval_us == Interval(100, math.inf)


def test_the_metrics_of_a_timing_are_times_with_their_intervals(blocks):
    measured = time_call(call(takes(*[(100, 900)] * 4, *[(110, 910)] * 6)))
    metrics = measured.metrics("step")
    assert [metric.name for metric in metrics] == ["step to return", "step to ready", "step p99"]
    assert {(metric.unit, metric.kind, metric.better) for metric in metrics} == {("us", "time", "lower")}
    assert [metric.value for metric in metrics] == [
        measured.to_return.median_us,
        measured.to_ready.median_us,
        pytest.approx(910),
    ]
    intervals = measured.to_return.interval_us, measured.to_ready.interval_us, measured.to_ready.p99_interval_us
    assert tuple(metric.interval for metric in metrics) == intervals
    assert {metric.samples for metric in metrics} == {len(measured.samples_us)}


@pytest.mark.parametrize(("samples", "known"), [(5, False), (6, True)])
def test_the_range_of_a_few_samples_is_no_interval_for_a_gate(blocks, samples, known):
    measured = time_call(call(takes(1e6)), seconds=samples - 0.5)
    to_return, to_ready, _ = measured.metrics("step")
    assert len(measured.samples_us) == samples
    assert [metric.interval is not None for metric in (to_return, to_ready)] == [known, known]


# When sampling stops.


def test_a_quiet_call_is_sampled_until_the_median_is_known(blocks):
    assert len(time_call(call(takes(100)), seconds=1e9).samples_us) == LEAST_SAMPLES


def test_a_quiet_call_is_sampled_as_often_as_the_tail_needs(blocks):
    measured = time_call(call(takes(100)), seconds=1e9, least_samples=LEAST_FOR_TAIL)
    assert len(measured.samples_us) == LEAST_FOR_TAIL
    assert math.isfinite(measured.to_ready.p99_interval_us.high)


@pytest.mark.parametrize("noisy_column", [0, 1])
def test_a_noisy_call_is_sampled_until_its_time_is_up(blocks, noisy_column):
    samples = np.tile((100.0, 1000.0), (5000, 1))
    samples[:, noisy_column] *= np.random.default_rng(0).choice([1, 1.5], size=5000)
    measured = time_call(call(takes(*map(tuple, samples))), seconds=1)
    assert 1 <= sum(measured.samples_us) / 1e6 < 1.002


def test_a_call_that_becomes_known_well_enough_is_sampled_no_longer(blocks):
    noise = np.random.default_rng(0).uniform(950, 1050, size=10_000)
    measured = time_call(call(takes(*noise)), seconds=1e9)
    assert measured.to_ready.interval_us.half_width <= 0.01 * measured.to_ready.median_us
    assert len(measured.samples_us) in (2 * LEAST_SAMPLES, 4 * LEAST_SAMPLES, 8 * LEAST_SAMPLES)


@pytest.mark.parametrize("seconds", [0, 0.001, 2.5])
def test_a_slow_call_is_sampled_three_times_at_least_and_no_longer_than_allowed(blocks, seconds):
    measured = time_call(call(takes(1e6)), seconds=seconds)
    assert len(measured.samples_us) == 3


# With functions of JAX.


class Scale(eqx.Module):
    factor: jax.Array

    def __call__(self, x):
        return self.factor * x


def busy(*_):
    return sum(range(2000))


X = jnp.ones(3)
JITTED = {
    "array": call(jax.jit(lambda x: x + 1), X),
    "nothing": call(lambda: busy() and None),
    "a tuple of nothing": call(lambda: busy() and ()),
    "no arrays": call(lambda: {"loss": busy()}),
    "not a number": call(jax.jit(lambda x: x * jnp.nan), X),
    "no elements": call(jax.jit(lambda x: x[:0]), X),
    "keywords": call(jax.jit(lambda x, *, scale: x * scale), X, scale=2.0),
    "carried array": call(jax.jit(lambda x: x + 1, donate_argnums=0), jnp.ones(3), carry=1),
    "carried list": call(jax.jit(lambda a, b: [a + 1, b, a.sum()], donate_argnums=(0, 1)), X + 1, X + 2, carry=2),
    "carried dict": call(jax.jit(lambda state: {"w": state["w"] + 1}, donate_argnums=0), {"w": jnp.ones(3)}, carry=1),
    "carried module": call(eqx.filter_jit(lambda m: Scale(m.factor + 1), donate="all"), Scale(jnp.ones(3)), carry=1),
}  # fmt: skip


@pytest.mark.parametrize("subject", JITTED.values(), ids=JITTED.keys())
def test_calls_of_every_kind_can_be_timed_again_and_again(subject):
    for _ in range(2):
        measured = time_call(subject, seconds=0.005)
        assert 0 < measured.to_return.median_us <= measured.to_ready.median_us <= measured.to_ready.p99_us
    subject.run()
