"""`words`: numbers, intervals and counts as every message and report writes them."""

import math

import pytest

from perfsuite.measure.metric import Interval, span
from perfsuite.measure.words import change, leaf_lines, number, percent, plural


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (133.0, "133"),
        (23_600_000, "23,600,000"),
        (0.00001234, "1.234e-05"),
        (-1200.0, "-1,200"),
        (1234.5, "1,234"),
        (1.5e15 + 0.5, "1.5e+15"),
        (0.1 + 0.2, "0.3"),
    ],
)
def test_numbers_have_four_digits_and_whole_ones_all_of_theirs(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    "interval", [None, Interval(0.0, math.inf), Interval(-math.inf, math.inf), Interval(-math.inf, 2)]
)
def test_an_interval_that_is_open_is_not_written(interval):
    assert span(1.5, interval) == "1.5"


@pytest.mark.parametrize(("count", "text"), [(0, "0 programs"), (1, "1 program"), (1021, "1,021 programs")])
def test_one_is_singular_and_every_other_number_plural(count, text):
    assert plural(count, "program") == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0234567, "+2.35 %"), (-0.5, "-50 %"), (0.0, "0 %"), (123.0, "+12,300 %"), (1e-9, "+1e-07 %"), (2.5, "+250 %")],
)
def test_a_percentage_has_its_sign_and_three_digits(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, ""),
        (0.0234567, "+2.3 %"),
        (11.0, "x 12"),
        (-13.0, "x -12"),
        (math.inf, "from 0"),
        (-0.5, "-50 %"),
        (-1.0, "-100 %"),
    ],
)
def test_a_large_change_is_a_multiple(share, text):
    assert change(share) == text


@pytest.mark.parametrize(
    ("paths", "place"),
    [
        (["args[0]['a']", "args[0]['b']", "args[0]['c']"], "3 leaves of args[0]"),
        (["args[0].m[0]", "args[0].m[1]", "args[0].m[2]"], "3 leaves of args[0].m"),
        (["args[0]", "args[1]", "args[2]"], "3 leaves of args"),
        (["x", "y['a']", "z"], "3 leaves of the arguments"),
    ],
)
def test_what_is_said_of_many_leaves_is_said_once_of_what_they_are_below(paths, place):
    assert leaf_lines([(path, "is new") for path in paths]) == [(place, "is new")]
