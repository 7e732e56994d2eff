"""`words`: numbers, intervals and counts as every message and report writes them."""

import math

import pytest

from perfsuite.measure.metric import Interval
from perfsuite.measure.words import change, folded, number, percent, plural, span


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (133, "133"),
        (133.0, "133"),
        (23_600_000, "23,600,000"),
        (1.23456, "1.235"),
        (0.00001234, "1.234e-05"),
        (-2.5, "-2.5"),
        (-1200.0, "-1,200"),
        (1234.5, "1,234"),
        (586_912.3, "586,900"),
        (-12_345.678, "-12,350"),
        (1.5e15 + 0.5, "1.5e+15"),
        (2.36e13, "23,600,000,000,000"),
        (2.5e18, "2.5e+18"),
        (0.1 + 0.2, "0.3"),
    ],
)
def test_numbers_have_four_digits_and_whole_ones_all_of_theirs(value, text):
    assert number(value) == text


def test_an_interval_stands_behind_its_metric():
    assert span(1.0621, Interval(1.0554, 1.07)) == "1.062 [1.055, 1.07]"


@pytest.mark.parametrize(
    "interval", [None, Interval(0.0, math.inf), Interval(-math.inf, math.inf), Interval(-math.inf, 2)]
)
def test_an_interval_that_is_open_is_not_written(interval):
    assert span(1.5, interval) == "1.5"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 programs"), (1, "1 program"), (2, "2 programs"), (1021, "1,021 programs")]
)
def test_one_is_singular_and_every_other_number_plural(count, text):
    assert plural(count, "program") == text


def test_a_plural_without_s_is_given():
    assert [plural(count, "process", "processes") for count in (1, 2)] == ["1 process", "2 processes"]


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
        (8.9, "+890 %"),
        (11.0, "x 12"),
        (-13.0, "x -12"),
        (-1e30, "x -1e+30"),
        (math.inf, "from 0"),
        (-0.5, "-50 %"),
        (-0.999, "-99.9 %"),
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
    assert folded([(path, "is new") for path in paths]) == [(place, "is new")]


def test_two_places_are_named_and_another_statement_stays_apart():
    said = [("args[0]['a']", "is new"), ("args[0]['b']", "is new"), ("args[1]", "is old")]
    assert folded(said) == said
