"""`gate.baseline`: what an entry holds."""

import dataclasses

import pytest
from support.entries import HERE, UPGRADED, compiled, count, ratio, reported

from perfsuite.gate.baseline import Baselines, Entry, entry_of, is_guard
from perfsuite.measure.metric import Interval, Metric


def test_entry_of_a_metric_keeps_all_of_it():
    metric = Metric("step/calls", 12, "calls", "count", "higher", Interval(11, 13), samples=5, detail={"b": 1, "a": 2})
    entry = entry_of(metric, HERE)
    assert entry == Entry(
        12, "calls", "count", "measured", HERE, Interval(11, 13), 5, "higher", detail={"a": 2, "b": 1}
    )
    assert list(entry.detail) == ["a", "b"]


def test_metrics_that_guard_are_known_by_their_ids_in_files():
    guards = ("program lost donations", "program:step #2 reused donations", "program conditionals")
    others = ("program fusions", "program:conditionals flops", "lost donations")
    assert [id for id in (*guards, *others) if is_guard(id)] == list(guards)


def test_entry_of_leaves_out_an_interval_without_bounds():
    metric = Metric("step", 1.5, "x", "ratio", interval=Interval(1.2, float("inf")), samples=2)
    assert entry_of(metric, HERE) == ratio(1.5, samples=2)


def test_numbers_are_held_as_the_file_writes_them():
    entry = ratio(1.23456789, 1.2345611, 1.2345699)
    assert (entry.value, entry.interval) == (1.23457, Interval(1.23456, 1.23457))
    assert repr(ratio(133.0).value) == "133"
    assert repr(ratio(-0.0).value) == "0"
    assert repr(ratio(2.3612345e18).value) == "2.36123e+18"


def test_counts_and_sizes_are_exact():
    assert Entry(23_612_345_678_901.0, "FLOP", "size", "compiled").value == 23_612_345_678_901
    assert Entry(1_307_123_456, "bytes", "size", "compiled").value == 1_307_123_456
    assert count(1234567).value == 1234567


@pytest.mark.parametrize("value", [1.23456789, 999999.5, 4503599627370495.5, 9.3e18, 2.5, 1e300, 5e-324, -7.0, 1e15])
@pytest.mark.parametrize("kind", ["size", "ratio"])
def test_holding_a_held_number_changes_nothing(value, kind):
    once = Entry(value, "x", kind, "compiled")
    again = dataclasses.replace(once, value=float(repr(once.value)))
    assert repr(again.value) == repr(once.value)


def test_only_measured_and_compiled_metrics_gate_and_info_never_does():
    assert count().gates
    assert compiled().gates
    assert not reported().gates
    assert not Entry(54.0, "s", "info", "measured", HERE).gates


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [
        ({"value": 10**400}, ValueError, "value must be finite"),
        ({"value": True}, TypeError, "value must be a number, got True"),
        ({"better": "bigger"}, ValueError, "better must be one of lower, higher"),
        ({"interval": Interval(0, float("inf"))}, ValueError, "high must be finite, got inf"),
        ({"interval": (1, 2)}, TypeError, "interval must be of type Interval"),
        ({"samples": 0}, ValueError, "samples must be at least 1, got 0"),
        ({"detail": {"f": "1.5"}}, TypeError, "detail must be a number, got '1.5'"),
        ({"detail": {1: 1}}, TypeError, "a name in detail must be of type str"),
        ({"detail": [1]}, TypeError, "detail must be of type Mapping"),
        ({"environment": "67b74798"}, TypeError, "environment must be of type Environment"),
        ({"source": "a paper"}, ValueError, "only a reported metric has a `source`, this one is measured"),
        ({"provenance": "reported", "source": " "}, ValueError, "must name its document"),
        ({"provenance": "reported", "source": "a paper"}, ValueError, "was not made here"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(fields, error, match):
    with pytest.raises(error, match=match):
        dataclasses.replace(count(), **fields)


def test_baselines_give_an_entry_by_test_and_name():
    baselines = Baselines("cpu", {"t": {"a": count(), "b": count(environment=UPGRADED), "c": reported()}})
    assert baselines.get("t", "a") == count()
    assert baselines.get("t", "x") is None
    assert baselines.get("x", "a") is None
    assert baselines.environments == {HERE.id: HERE, UPGRADED.id: UPGRADED}


def test_where_a_part_is_in_the_source_is_not_recorded():
    # Every edit moves lines.
    metric = Metric("copies", 1, "copies", "count", detail={"step": 1}, places={"step": "model.py:3 in f"})
    assert entry_of(metric, HERE) == entry_of(dataclasses.replace(metric, places=None), HERE)
