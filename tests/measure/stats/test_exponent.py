"""`measure.stats.exponent`: the power with which a count grows."""

import pytest

from perfsuite.measure.stats.exponent import MOST, growth_exponent


@pytest.mark.parametrize("power", [0.5, 1, 1.5, 2, 3, 7])
@pytest.mark.parametrize("intercept", [0, 5, 1e6])
@pytest.mark.parametrize("units", [(1, 2, 4), (4, 12, 24, 36, 48, 60), (10, 11, 12), (60, 4, 24)])
def test_the_power_is_found_whatever_does_not_depend_on_the_size(power, intercept, units):
    values = [intercept + 3.0 * size**power for size in units]
    assert growth_exponent(units, values) == pytest.approx(power, abs=2e-3)


def test_a_line_of_counts_has_a_power_of_exactly_one():
    assert growth_exponent([2, 4, 8, 16], [1000, 1250, 1750, 2750]) == 1.0


@pytest.mark.parametrize(
    ("values", "power"), [((5, 5, 5), 0), ((1, 2, 2), 0), ((1, 2, 3), 0), ((3, 3, 4), MOST), ((9, 5, 1), 0)]
)
def test_growth_that_is_no_power(values, power):
    assert growth_exponent([1, 2, 4], values) == pytest.approx(power, abs=1e-3)


@pytest.mark.parametrize("units", [(1, 2), (1, 2, 2), (0, 1, 2), (-1, 1, 2)])
def test_it_takes_three_sizes_above_zero(units):
    assert growth_exponent(units, [each**2 for each in units]) is None
