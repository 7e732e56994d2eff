"""`gate.budget`: limits that a test writes down itself."""

import dataclasses
import math

import pytest

from perfsuite.gate.budget import Budget, BudgetExceeded

FIELDS = [field.name for field in dataclasses.fields(Budget)]


def test_limits_are_the_fields_that_are_set():
    assert Budget(ratio=1.05, host_calls=0, compiles=2).limits() == {"ratio": 1.05, "compiles": 2, "host_calls": 0}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("limit", [math.nan, math.inf, -math.inf])
def test_a_limit_is_finite(field, limit):
    with pytest.raises(ValueError, match=rf"Budget\({field}=.*must be finite"):
        Budget(**{field: limit})


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("limit", ["1.05", True, [1.0]])
def test_a_limit_is_a_number(field, limit):
    with pytest.raises(TypeError, match=rf"Budget\({field}=\.\.\.\) must be a number"):
        Budget(**{field: limit})


@pytest.mark.parametrize("field", FIELDS)
def test_no_limit_is_negative_but_that_on_a_difference(field):
    if field == "overhead_us":
        assert Budget(overhead_us=-3.0).limits() == {"overhead_us": -3.0}
    else:
        with pytest.raises(ValueError, match="not negative"):
            Budget(**{field: -1})


def test_a_ratio_of_zero_is_a_misunderstanding():
    with pytest.raises(ValueError, match=r"ratio=1\.0 allows no slowdown"):
        Budget(ratio=0)


@pytest.mark.parametrize("field", [field for field in FIELDS if field != "ratio"])
def test_zero_is_a_limit_like_any_other(field):
    assert Budget(**{field: 0}).limits() == {field: 0}


def test_going_over_a_budget_is_a_failed_assertion():
    assert issubclass(BudgetExceeded, AssertionError)
