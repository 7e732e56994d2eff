"""`measure.timing.scaling`: how a metric grows with size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import FakeBlocks, FakeDevice, takes

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Interval
from perfsuite.measure.timing import scaling
from perfsuite.measure.timing.block import Sample
from perfsuite.measure.timing.scaling import (
    LEAST_ROUNDS,
    MOST_ROUNDS,
    STEEPEST,
    calls_by_size,
    fit_scaling,
    growth_exponent,
    line_fit,
)


def fit(make_call, sizes, **options):
    return fit_scaling(*calls_by_size(make_call, sizes), **options)


@pytest.fixture
def blocks(monkeypatch):
    return FakeBlocks().install(monkeypatch, scaling)


def line(per_unit=3.0, intercept=50.0, *, to_return=1.0):
    """`make_call` whose time to ready lies on a line, and that to return on a share of it."""

    def make_call(size):
        ready = intercept + per_unit * size
        return call(takes((to_return * ready, ready), name=f"step{size}")), size

    return make_call


def leaf():
    pass


def repeated(size):
    def body():
        for _ in range(size):
            leaf()

    return call(body), size


def test_the_slope_of_the_quickest_blocks_is_that_without_other_processes(blocks):
    """They slow three of four blocks of the largest size by a factor of three."""

    def make_call(size):
        times = [100 * size] if size < 40 else [12_000] * 3 + [4_000]
        return call(takes(*times, name=f"step{size}")), size

    slope = fit(make_call, [10, 20, 40], metric="ready").metrics("step")[0]
    assert slope.quickest == pytest.approx(100)
    assert slope.value > 300


# The metrics.


@pytest.mark.parametrize(("metric", "share"), [("return", 0.5), ("ready", 1.0)])
def test_the_slope_and_intercept_are_those_of_the_line(blocks, metric, share):
    fitted = fit(line(to_return=0.5), [10, 20, 40], metric=metric)
    assert fitted.per_unit.value == pytest.approx(3 * share)
    assert fitted.intercept == pytest.approx(50 * share)
    assert fitted.r_squared == pytest.approx(1)
    assert fitted.units == pytest.approx([10, 20, 40])
    assert fitted.values == pytest.approx(np.array([80, 110, 170]) * share)
    assert (fitted.label, fitted.metric) == ("step10", metric)


def test_drift_between_the_rounds_does_not_reach_the_slope(blocks):
    """The machine slows down all the while, to ten times its pace: only the sizes of one round are near each other."""

    def fitted():
        moment = iter(range(100_000))

        def make_call(size):
            return call(lambda: Sample(*[1e3 * (100 + 3 * size + 20 * next(moment))] * 2)), size

        return fit(make_call, [10, 20, 40], seconds=0.1)

    several = [fitted() for _ in range(20)]
    assert min(each.rounds for each in several) > 20
    assert min(each.values[0] for each in several) > 500
    assert [each.per_unit.value for each in several] == pytest.approx([3] * 20, abs=1)
    # Orders are drawn by lot, and an interval misses once in 20: seven in 20 would be one chance in 30,000.
    assert sum(each.per_unit.interval.low <= 3 <= each.per_unit.interval.high for each in several) > 13


@pytest.mark.parametrize("per_unit", [0.003, 0.01, 0.017])
def test_the_interval_of_the_slope_holds_what_the_tick_of_the_clock_hides(monkeypatch, per_unit):
    device = FakeDevice(tick_ns=100).install(monkeypatch, resolution_ns=100)
    fitted = fit(lambda size: (call(device.run, 1e3 * (50 + per_unit * size)), size), [1, 2, 4], seconds=0.5)
    assert fitted.per_unit.interval.low <= per_unit <= fitted.per_unit.interval.high
    assert fitted.per_unit.interval.half_width <= 0.1, "the slope of one tick in a step of one size"


def test_the_metrics_of_a_fit_gate_the_slope_alone(blocks):
    fitted = fit(line(), [10, 20, 40])
    slope, intercept, r_squared, exponent = fitted.metrics("step")
    assert (slope.name, slope.unit, slope.kind) == ("step to return per unit", "us/unit", "time")
    assert (slope.interval, slope.samples) == (fitted.per_unit.interval, fitted.rounds)
    assert (intercept.name, intercept.unit, intercept.kind) == ("step to return intercept", "us", "info")
    assert (r_squared.name, r_squared.unit, r_squared.kind, r_squared.better) == (
        "step to return R^2",
        "1",
        "info",
        "higher",
    )
    assert (exponent.name, exponent.kind) == ("step to return exponent", "info")
    assert exponent.interval == fitted.exponent.interval


# The power of a time.


def power(blocks, times, *, sizes=(10, 20, 40), **options):
    """Of a call whose blocks take `times(size)` in turn, in microseconds: the exponent of the time to ready."""
    return fit(lambda size: (call(takes(*times(size), name=f"step{size}")), size), sizes, metric="ready", **options)


@pytest.mark.parametrize(("exact", "sizes"), [(1, (10, 20, 40)), (2, (10, 20, 40)), (2, (3, 5, 8, 13)), (3, (1, 2, 8))])
def test_the_interval_of_the_power_holds_it_and_tells_it_from_the_next(blocks, exact, sizes):
    noise = np.random.default_rng(0).uniform(0.99, 1.01, size=997)
    exponent = power(blocks, lambda size: 100 * size**exact * noise, sizes=sizes).exponent
    assert exponent.value == pytest.approx(exact, abs=0.1)
    assert exact - 0.4 < exponent.interval.low < exact < exponent.interval.high < exact + 0.4


def test_a_time_that_hardly_grows_has_any_power(blocks):
    """What differs by 1 % is no growth: where arrays lie makes as much."""
    wobbling = {10: 1000, 20: 1000, 40: 1010}
    assert power(blocks, lambda size: [wobbling[size]]).exponent.interval == Interval(0, STEEPEST)


def test_other_processes_that_slow_the_longest_calls_are_no_power(blocks):
    """They run for a while, and a call that takes longer than that is always disturbed but now and then."""
    disturbed = lambda size: [100 * size] if size < 40 else [16_000] * 3 + [4_000]
    exponent = power(blocks, disturbed).exponent
    assert exponent.value > 2.5
    assert exponent.interval.low <= 1


def test_the_power_takes_three_sizes_and_as_many_rounds_as_a_median(blocks):
    assert power(blocks, lambda size: [size], sizes=(1, 2)).exponent is None
    few = power(blocks, lambda size: [1e6 * size**2], seconds=0)
    assert few.metrics("step")[-1].interval is None, "a range decides no gate"
    assert few.exponent.value == pytest.approx(2)


# Counts.


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("dispatches", [1, 1, 1]),
        ("eager_operations", [0, 0, 0]),
        ("fast_path_misses", [0, 0, 0]),
        ("host_to_device_transfers", [0, 0, 0]),
        ("flops", [8, 16, 32]),
        ("argument_bytes", [8, 8, 8]),
    ],
)
def test_counts_of_every_instrument_are_fitted(metric, values):
    assert fit(multiplied, [4, 8, 16], metric=metric).values.tolist() == values


def test_the_work_of_a_loop_that_is_not_jitted_is_fitted():
    step = jax.jit(lambda x: x * x)
    loops = lambda size: (call(lambda x: [step(x) for _ in range(size)], jnp.zeros(2)), size)
    assert fit(loops, [2, 4, 8], metric="flops").values.tolist() == [4, 8, 16]
    with_operations = lambda size: (call(lambda x: [step(x) + x for _ in range(size)], jnp.zeros(2)), size)
    assert fit(with_operations, [2, 4, 8], metric="dispatches").values.tolist() == [4, 8, 16]


def test_a_loop_of_descriptions_cannot_run_and_asks_for_a_jitted_function():
    describing = lambda size: (call(lambda x: [x] * size, jax.ShapeDtypeStruct((size,), "float32")), size)
    with pytest.raises(MeasurementError, match=r"perf.program needs a function with .lower"):
        fit(describing, [2, 4], metric="flops")


def test_memory_that_stays_is_fitted():
    kept = []
    keeping = lambda size: (call(lambda: kept.append([jnp.zeros(2) for _ in range(size)])), size)
    assert fit(keeping, [1, 2, 4], metric="leaked_arrays").exponent.value == 1


def test_a_count_that_is_not_known_is_refused():
    with pytest.raises(MeasurementError, match=r"perf.scaling\(metric='vmem_bytes'\): it is not known of step"):
        fit(unrolled, [1, 2], metric="vmem_bytes")


def test_host_calls_are_fitted_exactly():
    fitted = fit(repeated, [1, 2, 5, 100], metric="host_calls")
    assert fitted.per_unit.value == pytest.approx(1)
    assert fitted.per_unit.interval == Interval(fitted.per_unit.value, fitted.per_unit.value)
    assert fitted.intercept == pytest.approx(1)
    assert fitted.values == pytest.approx([2, 3, 6, 101])
    assert fitted.rounds == 1


# The rounds.


def test_every_round_runs_each_size_once_in_random_order(blocks):
    def make_call(size):
        noisy = np.random.default_rng(size).uniform(50, 100, size=1000)
        return call(takes(*noisy, name=f"step{size}")), size

    fitted = fit(make_call, [1, 2, 3], seconds=0.05)
    rounds = list(zip(*[iter(blocks.order)] * 3, strict=True))
    assert len(rounds) == fitted.rounds > 100
    assert all(sorted(each) == ["step1", "step2", "step3"] for each in rounds)
    assert len(set(rounds)) == 6
    firsts = [each[0] for each in rounds]
    assert min(firsts.count(name) for name in set(firsts)) > len(rounds) / 6


def test_an_exact_line_is_known_after_the_least_number_of_rounds(blocks):
    assert fit(line(), [10, 20, 40], seconds=1e9).rounds == LEAST_ROUNDS


def test_a_noisy_line_takes_more_rounds_until_it_is_known_to_one_percent(blocks):
    def make_call(size):
        noise = np.random.default_rng(size).uniform(0, 200, size=5000)
        return call(takes(*(1000 + 3 * size + noise))), size

    fitted = fit(make_call, [10, 200, 400], seconds=1e9)
    assert LEAST_ROUNDS < fitted.rounds < MOST_ROUNDS
    assert fitted.per_unit.interval.half_width <= 0.01 * fitted.per_unit.value


def test_few_rounds_have_their_range_as_interval(blocks):
    def make_call(size):
        return call(takes(*(1e6 * size * slope for slope in (1, 2, 3)))), size

    fitted = fit(make_call, [1, 2], seconds=0)
    interval = fitted.per_unit.interval
    assert (interval.low, interval.high) == pytest.approx((1e6, 3e6))
    assert fitted.per_unit.value == pytest.approx(2e6)
    assert fitted.metrics("step")[0].interval is None, "a range decides no gate"


# What goes wrong.


@pytest.mark.parametrize("sizes", [[], [3], [3, 3, 3]])
def test_a_line_needs_two_sizes(sizes):
    with pytest.raises(ValueError, match="at least two different sizes"):
        fit(line(), sizes)


def test_a_line_needs_two_different_units():
    with pytest.raises(MeasurementError, match="make_call gives 7 units for every size"):
        fit(lambda size: (call(leaf), 7), [1, 2])


def test_make_call_gives_a_call():
    with pytest.raises(TypeError, match=r"make_call\(1\) must return \(call\(\.\.\.\), units\), got \(function, int\)"):
        fit(lambda size: (leaf, size), [1, 2])
    with pytest.raises(TypeError, match="make_call must be a function of a size, got int: 3"):
        fit(3, [1, 2])


# Counts of a first call, and with which power they grow.


def unrolled(layers):
    @jax.jit
    def step(x):
        for _ in range(layers):
            x = jnp.sin(x)
        return x

    return call(step, jnp.zeros(2)), layers


def multiplied(layers):
    @jax.jit
    def step(x):
        for _ in range(layers):
            x = x * x
        return x

    return call(step, jnp.zeros(2)), layers


def rebuilt(layers):
    """Every turn makes all that the turns before it made."""

    @jax.jit
    def step(x):
        parts = []
        for _ in range(layers):
            parts = [*(part + 1 for part in parts), x]
        return sum(parts)

    return call(step, jnp.zeros(2)), layers


@pytest.mark.parametrize("metric", ["trace_calls", "lowering_calls", "equations"])
def test_unrolled_layers_are_linear_and_a_list_that_is_rebuilt_is_not(metric):
    linear, square = (fit(each, [4, 8, 16], metric=metric) for each in (unrolled, rebuilt))
    assert linear.exponent.value == 1
    assert 1.8 < square.exponent.value <= 2
    assert square.exponent.interval.half_width == 0
    assert linear.r_squared == 1 > square.r_squared


def test_a_count_has_its_parts_at_the_largest_size():
    *_, exponent, largest = fit(rebuilt, [4, 16, 8], metric="equations").metrics("step")
    assert (exponent.name, exponent.kind) == ("step equations exponent", "info")
    assert (largest.name, largest.unit, largest.kind) == ("step equations at 16", "equations", "count")
    assert largest.id == largest.name
    assert list(largest.detail) == ["test_scaling.py:rebuilt.step"]


# The line and the power.


@pytest.mark.parametrize("constant", [0.0, 4.0, 0.1, 1e-9])
def test_line_through_a_constant_is_flat_and_explains_it(constant):
    # Three times 0.1 has a mean that is not 0.1: the fit must not compare a total of 1e-34 with a residual of 1e-34.
    assert line_fit(np.array([1.0, 2.0, 4.0]), np.full(3, constant)) == (0.0, constant, 1.0)


@pytest.mark.parametrize("power", [0.5, 1, 1.5, 2, 3, 7])
@pytest.mark.parametrize("intercept", [0, 5, 1e6])
@pytest.mark.parametrize("units", [(1, 2, 4), (4, 12, 24, 36, 48, 60), (10, 11, 12), (60, 4, 24)])
def test_the_power_is_found_whatever_does_not_depend_on_the_size(power, intercept, units):
    values = [intercept + 3.0 * size**power for size in units]
    assert growth_exponent(units, values) == pytest.approx(power, abs=2e-3)


@pytest.mark.parametrize(
    ("values", "power"),
    [((5, 5, 5), 0), ((1, 2, 2), 0), ((1, 2, 3), 0), ((3, 3, 4), STEEPEST), ((9, 5, 1), 0), ((1, 9, 9.5), 0)],
)
def test_growth_that_is_no_power(values, power):
    assert growth_exponent([1, 2, 4], values) == pytest.approx(power, abs=1e-3)


def test_growth_slower_than_the_logarithm_has_the_power_0_where_two_sizes_hardly_differ():
    """The powers that the search would come to are lost in rounding: it would divide by zero."""
    assert growth_exponent([100, 101, 200], [1, 9, 9.5]) == 0


@pytest.mark.parametrize("units", [(1, 2), (1, 2, 2), (0, 1, 2), (-1, 1, 2)])
def test_it_takes_three_sizes_above_zero(units):
    assert growth_exponent(units, [each**2 for each in units]) is None
