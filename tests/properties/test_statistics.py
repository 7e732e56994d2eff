"""The intervals and the line of `measure.timing` over generated samples."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfsuite.measure.timing.intervals import quantile_interval
from perfsuite.measure.timing.scaling import line_fit
from perfsuite.measure.timing.shift import rank_sum_interval, shift

metrics = st.floats(-1e9, 1e9, allow_subnormal=False)
samples = st.lists(metrics, max_size=120).map(np.asarray)
quantiles = st.floats(0.01, 0.99)
errors = st.floats(1e-6, 0.5)


@given(samples, quantiles, errors, errors)
def test_a_smaller_error_never_gives_a_narrower_interval(samples, quantile, one, other):
    strict = quantile_interval(samples, quantile, min(one, other))
    loose = quantile_interval(samples, quantile, max(one, other))
    assert strict.low <= loose.low
    assert loose.high <= strict.high


@st.composite
def windows_of_sides(draw, metrics=metrics):
    """Two sides of 0 to 12 windows of one size, each of shape (windows, m)."""
    m, number = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    side = st.lists(metrics, min_size=m * number, max_size=m * number)
    return tuple(np.asarray(draw(side), dtype=np.float64).reshape(number, m) for _ in range(2))


grid = st.integers(-1000, 1000).map(float)
"""So that sums are exact, and many samples are ties."""


@given(windows_of_sides(), errors, errors)
def test_the_shifts_interval_holds_the_shift_and_a_smaller_error_never_narrows_it(windows, one, other):
    strict, loose = (rank_sum_interval([windows], error) for error in sorted((one, other)))
    assert strict.low <= loose.low <= shift([windows]) <= loose.high <= strict.high


@given(windows_of_sides(grid), errors, st.integers(-50, 50))
def test_a_side_that_is_later_by_a_constant_shifts_the_interval_by_as_much(windows, error, by):
    a, b = windows
    before, after = rank_sum_interval([(a, b)], error), rank_sum_interval([(a + by, b)], error)
    assert (after.low, after.high) == (before.low + by, before.high + by)


@given(windows_of_sides(grid), errors)
def test_exchanging_the_sides_mirrors_the_interval(windows, error):
    a, b = windows
    before, after = rank_sum_interval([(a, b)], error), rank_sum_interval([(b, a)], error)
    assert (after.low, after.high) == (-before.high, -before.low)


@given(windows_of_sides(grid), errors, st.data())
def test_what_a_whole_window_has_in_common_does_not_count(windows, error, data):
    """Drift: an offset to all blocks of a window, a different one for each."""
    a, b = windows
    drift = np.asarray(data.draw(st.lists(grid, min_size=len(a), max_size=len(a))))[:, None]
    assert rank_sum_interval([(a, b)], error) == rank_sum_interval([(a + drift, b + drift)], error)


@given(
    st.lists(st.integers(1, 10_000), min_size=2, max_size=12, unique=True).map(lambda sizes: np.asarray(sizes, float)),
    st.floats(-1e3, 1e3, allow_subnormal=False),
    st.floats(-1e3, 1e3, allow_subnormal=False),
)
@example(np.asarray([1.0, 2.0]), 2e-169, 0.0)  # the squares of such values are zero
def test_line_fit_gives_back_any_line(sizes, slope, intercept):
    values = slope * sizes + intercept
    fitted_slope, fitted_intercept, _ = line_fit(sizes, values)
    scale = 1e-6 * (1 + np.abs(values).max())
    assert fitted_slope * sizes + fitted_intercept == pytest.approx(values, abs=scale)
