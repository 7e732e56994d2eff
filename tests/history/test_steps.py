"""`history.steps`: a series moves where a step was planted, and noise alone does not move it.

At most one series in a hundred may move by noise alone, and none by noise that the rule supposes or a gate allows. The
measured counts are of seeded series, as many as are named; the tests try a part of them.
"""

import math

import numpy as np
import pytest
from support.git_project import HERE, TEST, count, ratio, with_versions

from perfsuite.gate.baseline import Entry
from perfsuite.history.reading import Series
from perfsuite.history.steps import places_of, runs_of, steps_of, version_marks
from perfsuite.measure.metric import Interval

NOISE = 0.02
"""Of the simulated ratios, from save to save: as much as a machine that is not quiet has."""

HUNDRED = 100 * 19
"""The places of a hundred series of 20 saves."""


def noisy(seed, length=20, noise=NOISE, correlation=0.0):
    """Noise about 1.2, relative; its standard deviation, and the correlation from save to save."""
    noises = np.random.default_rng(seed).normal(size=length) * noise
    for place in range(1, length):
        noises[place] = correlation * noises[place - 1] + math.sqrt(1 - correlation**2) * noises[place]
    return 1.2 * np.exp(noises)


def series(entries):
    """A series of nothing but these."""
    return Series(TEST, "metric", tuple(entries))


def ratios(values):
    """A series of ratios whose intervals say half of what they vary by."""
    return series(ratio(float(value), 0.01) for value in values)


def times(values):
    """A series of times whose intervals say 1 % each way."""
    return series(
        Entry(float(value), "us", "time", "measured", HERE, Interval(float(value) * 0.99, float(value) * 1.01))
        for value in values
    )


def moved(metric, places=None):
    """The steps of a series that is searched alone, or among others with so many places."""
    runs, _ = runs_of(metric)
    return steps_of(metric, runs, places or places_of(runs))


def places_moved(*arguments):
    """Where the steps are."""
    return [step.version for step in moved(*arguments)]


def alarms(make, count=200):
    """How many of the series that `make` makes of seeds move."""
    return sum(bool(moved(make(seed))) for seed in range(count))


@pytest.mark.parametrize("length", [4, 8, 20, 50])
def test_ratios_without_a_step_stay_silent(length):
    """Measured: of 1000 series of 4, 8, 20 and 50 saves, none moves."""
    assert alarms(lambda seed: ratios(noisy(seed, length))) == 0


def test_two_saves_of_a_ratio_seldom_differ_by_noise():
    """Measured: 2 of 1000."""
    assert alarms(lambda seed: ratios(noisy(seed, 2)), 1000) <= 4


@pytest.mark.parametrize("length", [20, 50])
def test_times_of_a_machine_with_slow_and_fast_days_stay_silent(length):
    """Measured: none of 1000, and with 30 % of noise in place of 8 % 2 and 0."""
    assert alarms(lambda seed: times(noisy(seed, length, 0.08, 0.9)), 300) == 0
    assert alarms(lambda seed: times(noisy(seed, length, 0.30, 0.9)), 300) <= 2


@pytest.mark.parametrize("length", [8, 20, 50])
def test_a_ratio_of_a_machine_with_slow_and_fast_days_stays_silent(length):
    """Measured: none of 1000. With 4 % of noise in place of 2 % 3, 20 and 6: more than one in a hundred."""
    assert alarms(lambda seed: ratios(noisy(seed, length, correlation=0.9)), 300) == 0


@pytest.mark.parametrize("length", [8, 20, 50])
def test_more_noise_than_the_least_is_seen_in_the_series(length):
    """Measured: 4, 1 and 0 of 1000."""
    assert alarms(lambda seed: ratios(noisy(seed, length, 0.04)), 500) <= 4


@pytest.mark.parametrize("length", [20, 50])
def test_two_runners_that_take_turns_make_no_steps(length):
    """The times, or the ratios, of one of them are 10 % higher. Measured: no time of 1000, 5 ratios and 1."""

    def of_either(seed):
        return noisy(seed, length) * np.where(np.random.default_rng((seed, 1)).random(length) < 0.5, 1.1, 1.0)

    assert alarms(lambda seed: times(of_either(seed))) == 0
    assert alarms(lambda seed: ratios(of_either(seed)), 500) <= 5


def test_a_hundred_series_at_once_make_no_more_alarms_than_one():
    """Of 20 histories, each with a hundred ratios of 20 saves, of two saves, and a hundred times."""
    seeds = range(2000)
    assert not any(moved(ratios(noisy(seed)), HUNDRED) for seed in seeds)
    assert not any(moved(ratios(noisy(seed, 2)), 100) for seed in seeds)
    assert not any(moved(times(noisy(seed, 20, 0.08, 0.9)), HUNDRED) for seed in seeds)


def test_heavy_tails_and_bad_saves_make_hardly_any_steps():
    """Measured: 4 and 12 of 1000; all steps of the latter are a bad save that is the first or the last."""

    def heavy(seed):
        return np.exp(np.random.default_rng(seed).standard_t(4, size=20) * NOISE)

    def with_bad_saves(seed):
        rng = np.random.default_rng(seed)
        return np.exp(rng.normal(size=20) * np.where(rng.random(20) < 0.05, 5, 1) * NOISE)

    assert alarms(lambda seed: ratios(heavy(seed)), 500) <= 5
    assert alarms(lambda seed: ratios(with_bad_saves(seed)), 500) <= 9


@pytest.mark.parametrize(("places", "least"), [(19, 92), (HUNDRED, 82)])
def test_a_ratio_that_grew_by_12_percent_is_found_at_its_place(places, least):
    """Measured: 193 of 200 series that are searched alone, 177 of 200 among a hundred."""
    found = 0
    for seed in range(100):
        values = noisy(seed)
        values[12:] *= 1.12
        found += places_moved(ratios(values), places) == [12]
    assert found >= least


def test_a_step_that_a_gate_allows_is_none_however_clear_it_is():
    values = noisy(1, 100, noise=0.001)
    values[50:] *= 1.04
    assert moved(ratios(values)) == []


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_a_time_that_more_than_doubles_is_found_at_its_place(correlation):
    """Measured: 199 of 200 with either correlation; among a hundred series 198 and 181 of 200."""
    found = 0
    for seed in range(100):
        values = noisy(seed, noise=0.08, correlation=correlation)
        values[12:] *= 2.5
        found += places_moved(times(values)) == [12]
    assert found >= 97


def test_a_ratio_that_was_worse_for_a_while_moved_twice():
    values = noisy(3)
    values[7:13] *= 1.16
    assert places_moved(ratios(values)) == [7, 13]
    longer = noisy(4, 35)
    for start in (7, 21):
        longer[start : start + 7] *= 1.16
    assert places_moved(ratios(longer)) == [7, 14, 21, 28]


def test_a_ratio_that_grows_with_every_save_has_moved():
    for length in (4, 8, 12, 20):
        assert moved(ratios(1.0 + np.arange(length)))


def test_one_bad_save_in_the_middle_makes_no_step():
    values = noisy(1)
    values[9] *= 1.5
    assert moved(ratios(values)) == []


def test_the_last_save_may_be_a_step():
    values = noisy(2)
    values[-1] *= 1.2
    (step,) = moved(ratios(values))
    assert (step.version, step.worse) == (19, True)


def test_the_gates_rule_decides_between_two_saves():
    assert moved(ratios([1.0, 1.04])) == []  # within the tolerance
    (step,) = moved(ratios([1.0, 1.2]))
    assert (step.before, step.after, step.worse) == (1.0, 1.2, True)
    assert not moved(series([ratio(1.0, 0.1), ratio(1.2, 0.14)]))  # the intervals overlap


def test_a_count_or_size_moves_with_any_other_value_and_nothing_else_does():
    assert [(step.version, step.after) for step in moved(series(map(count, [2, 2, 3, 3, 2])))] == [(2, 3), (4, 2)]
    sizes = [Entry(size, "bytes", "size", "compiled") for size in (10_000, 10_001)]
    (step,) = moved(series(sizes))
    assert step.change == pytest.approx(1e-4)


def test_an_entry_that_saves_keep_is_one_observation():
    kept = ratio(1.0, 0.01)
    (run,), _ = runs_of(series([kept] * 30 + [ratio(1.2, 0.01)]))
    assert [observation.version for observation in run] == [0, 30]


def test_a_metric_that_was_removed_and_added_again_goes_on():
    assert places_moved(series([count(2), None, None, count(3)])) == [3]
    assert moved(series([None, count(2), None, count(2)])) == []


def test_metrics_at_or_below_zero_have_steps_too():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(-5, 0.2, 10), rng.normal(3, 0.2, 10)])
    entries = [Entry(float(value), "us", "info", "measured", HERE) for value in values]
    assert places_moved(series(entries)) == [10]


def test_an_info_metric_moves_when_it_doubles():
    def of(*values):
        return moved(series(Entry(value, "s", "info", "compiled") for value in values))

    assert of(10.0, 19.0, 11.0, 6.0) == []
    assert [step.after for step in of(10.0, 21.0)] == [21.0]
    assert [step.after for step in of(21.0, 10.0)] == [10.0]


def test_marks_are_where_the_versions_of_a_metric_change():
    newer = with_versions(jax="0.11.0")
    marked = series([count(1), None, count(1, newer), count(1, newer), count(1)])
    assert version_marks(marked) == [(2, ["jax 0.10.2 -> 0.11.0"]), (4, ["jax 0.11.0 -> 0.10.2"])]


def test_levels_are_the_medians_of_both_sides():
    values = [1.0, 1.01, 0.99, 1.0, 1.01, 1.21, 1.2, 1.19, 1.2, 1.21]
    (step,) = moved(ratios(values))
    assert (step.version, step.before, step.after) == (5, 1.0, 1.2)
    assert math.isclose(step.change, 0.2)
