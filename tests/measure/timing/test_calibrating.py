"""`measure.timing.calibrating`: gates whose truth is known, and what is concluded from them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import FakeBlocks

from perfsuite.measure.call import call
from perfsuite.measure.metric import Interval
from perfsuite.measure.timing import calibrating, comparison
from perfsuite.measure.timing.block import Sample
from perfsuite.measure.timing.calibrating import (
    FLOOR_NS,
    LEAST_BUILDS,
    Builds,
    Planted,
    Trial,
    Workload,
    builds_within,
    count_trials,
    rate_below,
    smallest_caught,
    too_many_alarms,
)
from perfsuite.measure.timing.readiness import wait_for_nothing

STEP = jax.jit(lambda state, x: (state + x, x.sum()), donate_argnums=0)


def step_call():
    return call(STEP, jnp.zeros(3), jnp.ones(3), carry=1)


def trial(planted=0.0, low=0.99, high=1.01, thresholds=(0.01, 0.01)):
    return Trial(planted, Interval(low, high), thresholds, 100, 1.0)


# The plant.


class Clock:
    """Goes on by 10 ns a reading, and by what the call takes."""

    def __init__(self, *call_ns):
        self.now = 0
        self.call_ns = list(call_ns)

    def __call__(self):
        self.now += 10
        return self.now

    def fn(self):
        self.now += self.call_ns.pop(0)


@pytest.mark.parametrize("slowdown", [0.0, 0.005, 0.03, 0.5])
def test_the_plant_is_its_share_of_what_each_run_took(monkeypatch, slowdown):
    clock = Clock(1_000_000, 4_000_000, 250_000)
    monkeypatch.setattr(calibrating, "now_ns", clock)
    planted = Planted(call(clock.fn), lambda outputs: None, slowdown)
    for took in (1_000_000, 4_000_000, 250_000):
        start = clock.now
        planted()
        assert clock.now - start == pytest.approx((took + FLOOR_NS) * (1 + slowdown), abs=50)


def test_the_wait_for_the_outputs_belongs_to_what_the_call_took(monkeypatch):
    clock = Clock(1_000)
    monkeypatch.setattr(calibrating, "now_ns", clock)
    waited = []

    def wait(outputs):
        waited.append(outputs)
        clock.now += 99_000

    Planted(call(clock.fn), wait, 0.5)()
    assert waited == [None]
    assert clock.now == pytest.approx((100_000 + FLOOR_NS) * 1.5, abs=50)


def test_until_return_nothing_is_waited_for():
    assert Workload(step_call(), "return").wait is wait_for_nothing
    assert Workload(step_call(), "ready").wait is not wait_for_nothing


# Gates.


@pytest.mark.parametrize("until", ["return", "ready"])
def test_a_donated_state_serves_both_sides_and_outlives_the_gate(until):
    made = step_call()
    workload = Workload(made, until)
    alike = workload.trial(seconds=0.1)
    assert not alike.planted
    caught = workload.trial(1.0, seconds=20)
    assert caught.alarmed
    assert caught.interval.low > 1
    workload.give_back()
    state, _ = made.run()
    # Both sides carried it on: it is not the state of before.
    assert float(state[0]) > 2 * (alike.pairs + caught.pairs)


def test_a_call_that_cannot_be_warmed_is_given_back():
    step, runs = step_call(), []

    def fails_later(*args):
        runs.append(1)
        if len(runs) == 2:
            raise ZeroDivisionError
        return STEP(*args)

    step.fn = fails_later
    with pytest.raises(ZeroDivisionError):
        Workload(step, "ready")
    step.fn = STEP
    step.run()


@pytest.fixture
def simulated(monkeypatch):
    """Gates on a clock of their own: 1 ms calls with lognormal noise, the same noise for the same seed."""

    class Scaled(Planted):
        def __call__(self):
            return Sample(*[(1 + self.slowdown) * value for value in self.inner.run()])

    monkeypatch.setattr(calibrating, "Planted", Scaled)
    monkeypatch.setattr(calibrating, "warm", lambda fn, over: None)
    monkeypatch.setattr(calibrating, "waiting_for", lambda run, label: None)
    # In its time slower calls are fewer, so those that count would see other noise.
    monkeypatch.setattr(comparison, "BURN_IN", 0.0)

    def gate(planted, seed, noise=0.02, seconds=1.0):
        FakeBlocks().install(monkeypatch, comparison, bare=True)
        rng = np.random.default_rng(seed)
        made = call(lambda: Sample(*[1e6 * math.exp(noise * rng.normal())] * 2))
        return Workload(made, "ready").trial(planted, seconds=seconds, seed=seed)

    return gate


@pytest.mark.parametrize("seed", range(5))
def test_a_threshold_is_the_slowdown_from_which_on_the_same_noise_alarms(simulated, seed):
    plain = simulated(0.0, seed)
    assert not plain.alarmed
    upwards, downwards = plain.thresholds
    # The last look comes a pair or two earlier or later, which moves its interval by a rank.
    some = 0.001
    assert simulated(math.expm1(upwards + some), seed).alarmed
    assert not simulated(math.expm1(upwards - some), seed).alarmed
    faster = simulated(math.expm1(-downwards - some), seed)
    assert faster.interval.high < 1
    assert not faster.alarmed, "a plant that was found to be faster was not caught"
    assert simulated(math.expm1(-downwards + some), seed).interval.high >= 1


def test_what_is_derived_is_what_other_gates_catch(simulated):
    effect = smallest_caught({"": [simulated(0.0, seed) for seed in range(12)]})[""]
    assert effect is not None
    assert 0.001 < effect < 0.02
    assert sum(simulated(effect, seed).alarmed for seed in range(100, 160)) >= 58


def test_a_gate_without_an_interval_would_have_caught_nothing(simulated):
    few = simulated(0.0, 1, seconds=0.0)
    assert few.thresholds == (math.inf, math.inf)
    assert not few.alarmed


# What is counted.


@pytest.mark.parametrize(
    ("planted", "low", "high", "alarmed"),
    [
        (0.0, 0.99, 1.01, False),
        (0.0, 1.001, 1.01, True),
        (0.0, 0.98, 0.999, True),
        (0.03, 1.001, 1.01, True),
        (0.03, 0.99, 1.05, False),
        (0.03, 0.9, 0.99, False),
    ],
)
def test_an_aa_gate_alarms_either_way_and_a_plant_is_caught_when_it_is_slower(planted, low, high, alarmed):
    assert trial(planted, low, high).alarmed is alarmed


def test_gates_alarms_and_plants_are_counted():
    trials = [trial()] * 5 + [trial(low=1.001)] + [trial(0.03)] * 2 + [trial(0.03, low=1.01, high=1.02), trial(0.1)]
    counted = count_trials(trials, 0.02)
    assert (counted.gates, counted.alarms, counted.effect) == (6, 1, 0.02)
    assert counted.caught == {0.03: (1, 3), 0.1: (0, 1)}


def test_the_bound_on_a_rate_is_exact():
    assert rate_below(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert rate_below(100, 100) == 1
    assert rate_below(0, 0) == 1
    # As often as 5 % of the time, so few alarms come of the rate that it names.
    rng = np.random.default_rng(0)
    assert np.mean(rng.binomial(50, rate_below(2, 50), size=100_000) <= 2) == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize(
    ("alarms", "gates", "too_many"),
    [(0, 0, False), (0, 100, False), (1, 100, False), (1, 5, True), (2, 100, True), (2, 1000, False), (9, 1000, True)],
)
def test_more_alarms_than_chance_explains_are_too_many(alarms, gates, too_many):
    assert too_many_alarms(alarms, gates, 0.001) is too_many


# What builds differ by.


def test_the_next_build_differs_by_no_more_19_times_in_20():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        seen = [Builds.of(np.exp(centre + 0.01 * rng.normal(size=4))) for centre in (0.0, 0.5, -2.0)]
        hits += abs(0.01 * rng.normal()) < math.log1p(builds_within(seen))
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


def test_of_few_builds_nothing_is_said():
    few = [Builds(2, 0.01)] * (LEAST_BUILDS // 2 - 1)
    assert builds_within(few) is None
    assert builds_within([*few, Builds(2, 0.01)]) > 0.0196
    assert Builds.of([1.0, 1.0]) == Builds(2, 0.0)


# What is derived.


@pytest.mark.parametrize(("workloads", "gates"), [(1, 5), (1, 30), (6, 1), (6, 4)])
def test_the_next_gate_catches_it_99_times_in_100(workloads, gates):
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(1500):
        centres = rng.normal(-5, 1, size=workloads)
        drawn = np.exp(centres[:, None, None] + 0.3 * rng.normal(size=(workloads, gates, 2)))
        limits = smallest_caught({k: [trial(thresholds=tuple(pair)) for pair in drawn[k]] for k in range(workloads)})
        hits += list(np.exp(centres + 0.3 * rng.normal(size=workloads)) < np.log1p(list(limits.values())))
    # Three standard errors below 0.99; degrees of freedom are counted low, so it may be more.
    assert 0.982 < np.mean(hits) < 1


def test_it_is_no_smaller_than_what_an_aa_gate_has_missed():
    alike = [trial(thresholds=(0.01, 0.01))] * 30
    (limit,) = smallest_caught({"": [*alike, trial(thresholds=(0.01, 0.2))]}).values()
    assert limit == pytest.approx(math.expm1(0.2))


def test_a_false_alarm_does_not_make_it_smaller():
    alike = [trial(thresholds=(0.01, 0.012))] * 10
    (without,) = smallest_caught({"": alike}).values()
    (limit,) = smallest_caught({"": [*alike, trial(low=1.001, thresholds=(-0.001, 0.03))]}).values()
    assert limit > without


def test_what_cannot_be_known_is_none():
    few = {"a": [trial()], "b": [trial()]}
    assert smallest_caught(few) == {"a": None, "b": None}
    more = {"a": [trial()] * 5, "b": [trial(0.03)], "c": [trial()] * 4 + [trial(thresholds=(math.inf, math.inf))]}
    limits = smallest_caught(more)
    assert limits["a"] == pytest.approx(math.expm1(0.01))
    assert (limits["b"], limits["c"]) == (None, None)
    assert smallest_caught({}) == {}
