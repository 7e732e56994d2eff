"""`measure.metric`: one named metric."""

import math

import numpy as np
import pytest

from perfsuite.measure.metric import Interval, Metric, title


def metric(**fields):
    return Metric(**{"name": "step to ready", "value": 12.5, "unit": "us", "kind": "time", **fields})


@pytest.mark.parametrize("ends", [(2.0, 1.0), (math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)])
def test_an_interval_has_its_ends_in_order(ends):
    with pytest.raises(ValueError, match="empty or not a number"):
        Interval(*ends)


@pytest.mark.parametrize("name", ["", " ", None, 3, "two\nlines", "a\ttab"])
def test_a_metric_needs_a_name_that_fits_a_line_of_a_table(name):
    with pytest.raises(ValueError, match="needs a name"):
        metric(name=name)


@pytest.mark.parametrize("fields", [{"kind": "speed"}, {"better": "more"}])
def test_an_unknown_kind_or_direction_is_named_with_those_that_there_are(fields):
    with pytest.raises(ValueError, match=r"step to ready: .* must be .*lower.*|step to ready: .* one of count, size"):
        metric(**fields)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_is_finite(value):
    with pytest.raises(ValueError, match="step to ready: value must be finite"):
        metric(value=value)


@pytest.mark.parametrize("value", [None, "3", True, 1j, np.arange(3)])
def test_a_metric_is_a_number(value):
    with pytest.raises(TypeError, match="step to ready: value must be an int or a float"):
        metric(value=value)


def test_a_count_is_whole():
    assert metric(value=3.0, kind="count").value == 3
    with pytest.raises(ValueError, match=r"a count must be whole, got 3\.5"):
        metric(value=3.5, kind="count")


@pytest.mark.parametrize("target", ["", "TPU v5 lite", "../tpu-v5e", "tpu/v5e", "tpu-v5e\n", "-", ".json"])
def test_a_target_is_the_name_of_a_baseline_file_and_leads_nowhere_else(target):
    with pytest.raises(ValueError, match="step to ready: target must be a name like 'tpu-v5e'"):
        metric(target=target)


def test_the_title_tells_a_metric_of_a_target_from_the_same_one_made_here():
    assert metric().title == metric().name == "step to ready"
    assert metric(target="tpu-v5e").title == title("step to ready", "tpu-v5e") == "step to ready @ tpu-v5e"
