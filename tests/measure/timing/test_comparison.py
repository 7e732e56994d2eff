"""`measure.timing.comparison`: two calls in one run, in random order."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import FakeBlocks, FakeSubject, takes

from perfsuite.measure.call import call
from perfsuite.measure.metric import Estimate, Interval
from perfsuite.measure.timing import block, comparison
from perfsuite.measure.timing.block import Sample
from perfsuite.measure.timing.comparison import Rule, compare_calls, fewest_pairs, is_bounded
from perfsuite.measure.timing.shift import rank_sum_interval, sequence_interval, shift


@pytest.fixture
def blocks(monkeypatch):
    return FakeBlocks().install(monkeypatch, comparison)


def sides(candidate_us, reference_us):
    """Two calls whose blocks take these microseconds, in turn."""
    lists = [samples if isinstance(samples, list) else [samples] for samples in (candidate_us, reference_us)]
    return call(takes(*lists[0], name="candidate")), call(takes(*lists[1], name="reference"))


def never(ratio, overhead):
    return False


# The metrics.


def test_the_ratio_is_candidate_over_reference_and_the_overhead_their_difference(blocks):
    compared = compare_calls(*sides(300, 200))
    assert (compared.candidate, compared.reference) == ("candidate", "reference")
    assert compared.ratio.value == pytest.approx(1.5)
    assert compared.overhead_us == Estimate(100, Interval(100, 100))


def test_until_chooses_what_is_compared(blocks):
    both = sides((100, 900), (200, 300))
    assert compare_calls(*both, until="return").ratio.value == pytest.approx(0.5)
    assert compare_calls(*both, until="return").overhead_us.value == pytest.approx(-100)
    assert compare_calls(*both, until="ready").ratio.value == pytest.approx(3)
    assert compare_calls(*both).until == "ready"


def test_the_ratio_is_the_median_over_pairs_and_not_of_the_medians(blocks):
    # Both sides jump together, as on a machine whose pace changes: every window says 1.1.
    moment = [0]

    def side(name, us):
        def run():
            moment[0] += 1
            return Sample(*[1e3 * us * (1, 10, 0.1)[moment[0] // 4000 % 3]] * 2)

        run.__name__ = name
        return call(run)

    compared = compare_calls(side("candidate", 110), side("reference", 100), settled=never, seconds=3)
    assert compared.window == 5
    assert compared.ratio.value == pytest.approx(1.1)
    assert compared.ratio.interval.high == pytest.approx(1.1)


def test_the_metrics_of_a_comparison_gate_the_ratio_alone(blocks):
    compared = compare_calls(*sides([300, 310], 200))
    ratio, overhead = compared.metrics("step")
    assert (ratio.name, ratio.kind, ratio.unit, ratio.better) == ("step ratio to ready", "ratio", "x", "lower")
    assert (overhead.name, overhead.kind, overhead.unit) == ("step overhead to ready", "info", "us")
    assert ratio.interval == compared.ratio.interval
    assert overhead.interval == compared.overhead_us.interval
    assert ratio.samples == overhead.samples == compared.pairs
    assert compare_calls(*sides(300, 200), until="return").metrics("a")[0].name == "a ratio to return"


# The order.


def test_every_window_has_both_sides_as_often_and_every_order_as_likely(blocks):
    compared = compare_calls(*sides(300, 200), settled=never, seconds=1)
    turns = np.array(timed(blocks.order)[-2 * compared.pairs :]).reshape(-1, 2 * compared.window)
    assert len(turns) * compared.window == compared.pairs
    assert (turns.sum(1) == compared.window).all()
    # Each place is the candidate's half of the time, and no two neighbours are alike more often than the lot has it.
    deviations = 5 * 0.5 / math.sqrt(len(turns))
    assert np.abs(turns.mean(0) - 0.5).max() < deviations
    alike = (turns[:, 1:] == turns[:, :-1]).mean(0)
    assert np.abs(alike - 4 / 9).max() < deviations
    assert len({tuple(window) for window in turns}) > 100


def timed(order):
    """The blocks that count, as whether they are the candidate's: the first after a change of sides does not."""
    blocks = [label == "candidate" for label in order]
    return [now for before, now in itertools.pairwise(blocks) if before == now]


def test_a_side_first_runs_a_block_that_does_not_count_wherever_the_sides_change(blocks):
    """What the candidate leaves behind takes 100 us of whatever runs next: it must be the candidate's."""
    left = []

    def block_of(name):
        def run():
            late, left[:] = 100 * len(left), ["work"] if name == "candidate" else []
            return Sample(1e3 * (100 + late), 1e3 * (100 + late))

        run.__name__ = name
        return call(run)

    compared = compare_calls(block_of("candidate"), block_of("reference"), settled=never, seconds=0.2)
    assert compared.ratio.interval.low == pytest.approx(2)
    assert set(compared.reference_us[:, 1]) == {100}


def test_the_first_tenth_of_the_time_does_not_count(blocks):
    compared = compare_calls(*sides([500] * 40 + [110] * 10_000, 100), settled=never, seconds=1)
    assert set(compared.candidate_us[:, 1]) == {110}
    assert compared.seconds == pytest.approx(1, abs=0.01), "but it is part of the time"


def test_the_blocks_that_do_not_count_take_no_time_from_slow_calls(blocks):
    slow, fast = (compare_calls(*sides(us, us), settled=never, seconds=5) for us in (100e3, 1e3))
    assert 23 <= slow.pairs <= 24, "4.5 seconds, of 0.2 each"
    assert blocks.seconds > 5 + slow.seconds
    assert 1300 < fast.pairs < 1600, "of 2250"


def test_pairs_too_few_for_an_interval_bound_nothing(blocks):
    compared = compare_calls(*sides(1e6, 1e6), settled=never, seconds=10)
    assert compared.pairs == 5
    assert not compared.bounded


def test_a_seed_repeats_the_order_and_none_does_not(blocks):
    orders = []
    for seed in (1, 1, 2, None, None):
        blocks.order.clear()
        compare_calls(*sides(300, 200), settled=never, seconds=0.05, seed=seed)
        orders.append(tuple(blocks.order))
    assert orders[0] == orders[1]
    assert len({orders[0], *orders[2:]}) == 4


def test_the_ratio_of_the_quickest_blocks_is_that_without_other_processes(blocks):
    """They slow nine of ten blocks of the candidate, which uses more cores, by a factor of three."""
    disturbed = [900] * 9 + [300]
    compared = compare_calls(call(takes(*disturbed, name="candidate")), call(takes(200)), settled=never, seconds=1)
    ratio, _ = compared.metrics("candidate/reference")
    assert (ratio.value, ratio.quickest) == (pytest.approx(4.5), pytest.approx(1.5))


# When sampling stops.


def test_it_looks_after_120_pairs_and_stops_as_soon_as_it_is_settled(blocks):
    assert compare_calls(*sides(300, 200), settled=lambda *_: True).pairs == 120


def test_without_a_limit_it_stops_once_the_ratio_is_known_to_half_a_percent(blocks):
    rng = np.random.default_rng(1)
    compared = compare_calls(*sides(list(100 + rng.normal(size=50_000)), 100), seconds=5)
    interval = compared.ratio.interval
    assert math.log(interval.high / interval.low) / 2 <= 0.005
    assert 120 <= compared.pairs < 2000


@pytest.mark.parametrize("seconds", [0, 1, 3.9])
def test_slow_calls_still_make_three_pairs(blocks, seconds):
    compared = compare_calls(*sides(2e6, 1e6), seconds=seconds)
    assert compared.pairs == 3


def test_a_look_without_an_interval_settles_nothing(blocks):
    asked = []
    compared = compare_calls(*sides(2e6, 1e6), settled=lambda *now: asked.append(now) or True, seconds=20)
    assert not asked
    assert compared.seconds > 20, "a look after a quarter of the time has three pairs"


def test_too_few_pairs_leave_the_metric_open(blocks):
    compared = compare_calls(*sides([2e6, 3e6, 4e6], 1e6), seconds=12)
    assert 3 <= compared.pairs < 10
    assert not compared.bounded
    assert compared.ratio.interval == Interval(0, math.inf)
    assert compared.overhead_us.interval == Interval(-math.inf, math.inf)
    ratios = compared.candidate_us[:, 1] / compared.reference_us[:, 1]
    assert compared.ratio.value == pytest.approx(math.exp(np.median(np.log(ratios))))
    assert compared.overhead_us.value == np.median(compared.candidate_us[:, 1] - compared.reference_us[:, 1])
    assert [metric.interval for metric in compared.metrics("step")] == [None, None]


# What goes wrong in the middle.


def test_where_the_sides_change_the_last_one_is_drained(blocks, monkeypatch):
    """Before the other has a block, also one that is not timed."""
    monkeypatch.setattr(FakeSubject, "drain", lambda subject: blocks.order.append(f"drain {subject.call.label}"))
    compare_calls(*sides(100, 100), settled=never, seconds=0.01)
    order = blocks.order
    assert order.count("drain candidate") > 3
    for last, now in itertools.pairwise(order):
        if now.startswith("drain"):
            assert now == f"drain {last}"
    blocks_alone = [(last, now) for last, now in itertools.pairwise(order) if "drain" not in last + now]
    assert all(last == now for last, now in blocks_alone)


def test_an_interval_is_no_narrower_than_what_the_clocks_tick_hides(blocks, monkeypatch):
    """Of times that are alike to the tick: 10 us calls, one tick of 0.1 us in each."""
    monkeypatch.setattr(comparison, "rounding_us", lambda *subjects: 0.1)
    compared = compare_calls(*sides(10, 10), settled=never, seconds=0.1)
    assert compared.ratio.interval.low == pytest.approx(1 / 1.01)
    assert compared.ratio.interval.high == pytest.approx(1.01)
    assert compared.overhead_us.interval == Interval(-0.1, 0.1)


# The rule.


def times(pairs, seed=0):
    return np.random.default_rng(seed).uniform(100, 200, size=(2, pairs))


@pytest.mark.parametrize(
    ("pairs", "window", "sequential"),
    [(0, 1, False), (9, 1, False), (10, 2, False), (49, 2, False), (50, 5, False), (199, 5, False), (200, 5, True)],
)
def test_the_pairs_for_which_there_is_time_choose_window_and_rule(pairs, window, sequential):
    rule = Rule(pairs)
    assert (rule.window, rule.sequential) == (window, sequential)


def test_a_sequence_is_checked_after_120_pairs_and_then_after_every_15_percent_more():
    rule, checks = Rule(10_000), []
    for pairs in range(5, 500, 5):
        if rule.is_due(pairs, 0.1):
            checks.append(pairs)
            rule.estimates(*times(pairs))
    assert checks == [120, 140, 165, 190, 220, 255, 295, 340, 395, 455]
    assert rule.is_due(500, 1.01), "and when time is up"


def test_a_rank_sum_is_checked_after_a_quarter_of_the_time_and_at_the_end():
    rule = Rule(40)
    assert not rule.is_due(8, 0.2)
    assert rule.is_due(12, 0.25)
    rule.estimates(*times(12))
    assert not rule.is_due(30, 0.9)
    assert rule.is_due(40, 1.01)


def test_a_estimate_of_a_sequence_is_that_of_the_logarithms_and_of_the_times():
    candidate, reference = times(200)
    ratio, overhead = Rule(200).estimates(candidate, reference)
    both = candidate.reshape(-1, 5), reference.reshape(-1, 5)
    logs = np.log(both[0]), np.log(both[1])
    expected = sequence_interval(logs, 0.001)
    assert ratio.value == math.exp(shift([logs]))
    assert (ratio.interval.low, ratio.interval.high) == (math.exp(expected.low), math.exp(expected.high))
    assert (overhead.value, overhead.interval) == (shift([both]), sequence_interval(both, 0.001))


def test_a_sequence_whose_time_is_up_too_early_is_judged_by_the_rank_sum():
    candidate, reference = times(50)
    ratio, overhead = Rule(200).estimates(candidate, reference)
    assert overhead.interval == rank_sum_interval([(candidate.reshape(-1, 5), reference.reshape(-1, 5))], 0.001)
    assert is_bounded(ratio)


@pytest.mark.parametrize("error", [0.05, 0.001, 1e-5])
def test_the_fewest_pairs_for_an_interval_are_known_before(error):
    least = fewest_pairs(error)
    assert is_bounded(Rule(least, error).estimates(*times(least))[0])
    assert not is_bounded(Rule(least, error).estimates(*times(least - 2))[0])


# Simulated noise.


def simulated(monkeypatch, candidate, reference, *, seed, **arguments):
    blocks = FakeBlocks().install(monkeypatch, comparison, bare=True)
    moment = iter(range(1_000_000))

    def side(stream):
        return call(lambda: Sample(*[1e6 * stream(next(moment))] * 2))

    return compare_calls(side(candidate), side(reference), seed=seed, **arguments), blocks


def excludes_one(ratio, overhead):
    return not ratio.interval.low <= 1 <= ratio.interval.high


def lognormal(rng):
    draws = iter(np.exp(0.02 * rng.normal(size=10_000)).tolist())
    return lambda moment: next(draws)


def drifting(rng):
    """Every block is 1 % slower than the one before it, whichever side it is of: who comes second always loses."""
    draws = iter(np.exp(0.002 * rng.normal(size=10_000)).tolist())
    return lambda moment: 1.01 ** (moment % 100) * next(draws)


def test_comparisons_of_the_same_code_raise_no_alarm(monkeypatch):
    """`tests/promise/test_simulated_gates.py` has the rates; this one samples as `compare_calls` does."""
    for seed, noise in enumerate([lognormal, drifting] * 60):
        rng = np.random.default_rng(seed)
        compared, _ = simulated(monkeypatch, noise(rng), noise(rng), settled=excludes_one, seconds=0.5, seed=seed)
        assert not excludes_one(compared.ratio, compared.overhead_us)


@pytest.mark.parametrize(("noise", "seconds"), [(lognormal, 1), (drifting, 4)])
def test_a_planted_slowdown_is_found_and_its_size_is_inside_the_interval(monkeypatch, noise, seconds):
    rng = np.random.default_rng(13)
    found = covered = 0
    for seed in range(40):
        slow = noise(rng)
        compared, _ = simulated(
            monkeypatch,
            lambda moment, slow=slow: 1.03 * slow(moment),
            noise(rng),
            settled=excludes_one,
            seconds=seconds,
            seed=seed,
        )
        found += compared.ratio.interval.low > 1
        covered += compared.ratio.interval.low <= 1.03 <= compared.ratio.interval.high
    assert found == 40
    assert covered >= 38


# With functions of JAX.


@pytest.mark.parametrize("for_all", [0, 1])
def test_two_sides_wait_alike_where_one_was_found_to_need_all_its_outputs(monkeypatch, for_all):
    """On a busy machine that is found of the same call on one side and not on the other."""
    step = jax.jit(lambda x: x + 1)
    found = iter(range(2))
    measured = block.waiting_for

    def waiting_for(*of):
        return jax.block_until_ready if next(found) == for_all else measured(*of)

    monkeypatch.setattr(block, "waiting_for", waiting_for)
    x = jnp.ones(3)
    waits = {subject.wait for subject in block.subjects_alike(call(step, x), call(step, x))}
    assert waits == {jax.block_until_ready}
