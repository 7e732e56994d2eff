"""`gate.baseline`: what an entry holds, and what becomes of entries when new metrics are recorded."""

import dataclasses

import pytest

from perfsuite.gate.baseline import Baselines, Entry, entry_of, merge
from perfsuite.gate.environment import Environment, target_environment
from perfsuite.measure.metric import Interval, Metric

HERE = Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.2")
UPGRADED = dataclasses.replace(HERE, jax="0.11.0")
OTHER_HOST = dataclasses.replace(HERE, processor="EPYC")


def count(value=3, environment=HERE, **fields):
    return Entry(value, "compiles", "count", "measured", environment, **fields)


def ratio(value, low=None, high=None, environment=HERE, **fields):
    interval = None if low is None else Interval(low, high)
    return Entry(value, "x", "ratio", "measured", environment, interval, **fields)


def compiled(value=3, **fields):
    return Entry(value, "compiles", "count", "compiled", **fields)


def reported(value=3, source="a paper"):
    return Entry(value, "compiles", "count", "reported", source=source)


def recorded(old, new, **options):
    """What happens to one metric `old` when `new` is recorded."""
    before = Baselines("cpu", {"t": {"metric": old}} if old else {})
    after, changes = merge(before, {"t": {"metric": new}}, **options)
    (change,) = changes
    assert after.get("t", "metric") == change.new
    return change.action, change.direction, change.new


# What an entry holds.


def test_entry_of_a_metric_keeps_all_of_it():
    metric = Metric("step/calls", 12, "calls", "count", "higher", Interval(11, 13), samples=5, detail={"b": 1, "a": 2})
    entry = entry_of(metric, HERE)
    assert entry == Entry(
        12, "calls", "count", "measured", HERE, Interval(11, 13), 5, "higher", detail={"a": 2, "b": 1}
    )
    assert list(entry.detail) == ["a", "b"]


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


def test_noise_is_half_the_interval_relative_to_the_value():
    assert ratio(2.0, 1.9, 2.14).noise == 0.06
    assert ratio(-2.0, -2.1, -1.9).noise == 0.05
    assert ratio(2.0).noise is None
    assert ratio(0.0, -1, 1).noise is None
    assert ratio(5e-324, -1e308, 1e308).noise is None


def test_only_measured_and_compiled_metrics_gate_and_info_never_does():
    assert count().gates
    assert compiled().gates
    assert not reported().gates
    assert not Entry(54.0, "s", "info", "measured", HERE).gates


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [
        ({"value": float("nan")}, ValueError, "value must be finite, got nan"),
        ({"value": 10**400}, ValueError, "value must be finite"),
        ({"value": True}, TypeError, "value must be a number, got True"),
        ({"value": "3"}, TypeError, "value must be a number, got '3'"),
        ({"value": 2.5}, ValueError, "a count must be whole, got 2.5"),
        ({"kind": "speed"}, ValueError, "kind must be one of count, size, ratio, time, info, got 'speed'"),
        ({"provenance": "guessed"}, ValueError, "provenance must be one of measured, compiled, reported"),
        ({"better": "bigger"}, ValueError, "better must be one of lower, higher"),
        ({"unit": None}, TypeError, "unit must be of type str"),
        ({"interval": Interval(0, float("inf"))}, ValueError, "high must be finite, got inf"),
        ({"interval": (1, 2)}, TypeError, "interval must be of type Interval"),
        ({"samples": 0}, ValueError, "samples must be at least 1, got 0"),
        ({"samples": 2.0}, TypeError, "samples must be of type int"),
        ({"detail": {"f": 1.5}}, TypeError, "detail must be of type int, got 1.5"),
        ({"detail": {1: 1}}, TypeError, "a name in detail must be of type str"),
        ({"detail": [1]}, TypeError, "detail must be of type Mapping"),
        ({"environment": None}, ValueError, "a measured metric must have the environment"),
        ({"environment": "67b74798"}, TypeError, "environment must be of type Environment"),
        ({"source": "a paper"}, ValueError, "only a reported metric has a `source`, this one is measured"),
        ({"provenance": "reported"}, ValueError, "must name its document"),
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


# What becomes of one metric.


def test_a_first_metric_is_created():
    assert recorded(None, count()) == ("create", "same", count())


def test_the_same_metric_again_is_kept():
    assert recorded(count(), count()) == ("keep", "same", count())


@pytest.mark.parametrize(
    ("better", "lower_is", "higher_is"), [("lower", "better", "worse"), ("higher", "worse", "better")]
)
def test_a_changed_count_is_updated_and_said_to_be_better_or_worse(better, lower_is, higher_is):
    old = count(3, better=better)
    assert recorded(old, count(2, better=better)) == ("update", lower_is, count(2, better=better))
    assert recorded(old, count(4, better=better)) == ("update", higher_is, count(4, better=better))


def test_an_equal_count_of_other_versions_keeps_its_value_and_updates_its_environment():
    assert recorded(count(), count(environment=UPGRADED)) == ("update", "same", count(environment=UPGRADED))


def test_an_equal_count_of_another_host_is_kept():
    # Otherwise every runner of a mixed fleet would rewrite every line.
    assert recorded(count(), count(environment=OTHER_HOST)) == ("keep", "same", count())


def test_an_equal_compiled_metric_of_another_host_is_kept_and_one_of_another_compiler_updated():
    def compiled_on(host, libtpu="0.0.42"):
        return compiled(environment=target_environment(host, "TPU v5 lite", libtpu=libtpu))

    other_host = dataclasses.replace(OTHER_HOST, python="3.13.1", device_count=8, xla_flags="--a")
    assert recorded(compiled_on(HERE), compiled_on(other_host)) == ("keep", "same", compiled_on(HERE))
    newer = compiled_on(HERE, "0.0.43")
    assert recorded(compiled_on(HERE), newer) == ("update", "same", newer)


def test_where_a_part_is_in_the_source_is_not_recorded():
    # Every edit moves lines.
    metric = Metric("copies", 1, "copies", "count", detail={"step": 1}, places={"step": "model.py:3 in f"})
    assert entry_of(metric, HERE) == entry_of(dataclasses.replace(metric, places=None), HERE)


def test_an_equal_count_of_other_parts_is_updated():
    new = count(detail={"f": 1, "g": 2})
    assert recorded(count(detail={"f": 2, "g": 1}), new) == ("update", "same", new)


@pytest.mark.parametrize(
    "new",
    [
        ratio(1.06, 1.05, 1.08),
        pytest.param(ratio(1.09, 1.055, 1.10), id="old value within the new interval"),
        pytest.param(ratio(1.10, 1.07, 1.12), id="the intervals overlap"),
        pytest.param(ratio(1.07), id="new value within the old interval"),
    ],
)
def test_a_sampled_metric_within_its_noise_is_kept(new):
    old = ratio(1.06, 1.05, 1.08, samples=300)
    assert recorded(old, new) == ("keep", "same", old)


def test_a_sampled_metric_beyond_its_noise_is_updated():
    old = ratio(1.06, 1.05, 1.08)
    assert recorded(old, ratio(1.10, 1.09, 1.12)) == ("update", "worse", ratio(1.10, 1.09, 1.12))
    assert recorded(old, ratio(1.00, 0.99, 1.01)) == ("update", "better", ratio(1.00, 0.99, 1.01))


def test_a_sampled_metric_within_noise_but_of_other_versions_is_updated():
    new = ratio(1.07, 1.05, 1.09, environment=UPGRADED)
    assert recorded(ratio(1.06, 1.05, 1.08), new) == ("update", "same", new)


def test_a_comparison_of_too_few_pairs_leaves_the_ratio_that_gates_and_a_metric_made_info_replaces_it():
    old = ratio(1.06, 1.05, 1.08)
    few = dataclasses.replace(old, value=1.4, kind="info", interval=None, samples=7)
    assert recorded(old, few) == ("keep", "same", old)
    meant = dataclasses.replace(few, samples=None)
    assert recorded(old, meant) == ("update", "not comparable", meant)
    assert recorded(few, old) == ("update", "not comparable", old)


def test_small_steps_do_not_carry_the_baseline_away():
    baselines = Baselines("cpu", {"t": {"metric": ratio(1.0, 0.98, 1.02)}})
    actions = []
    for value in (1.02, 1.04, 1.06, 1.08):
        baselines, (change,) = merge(baselines, {"t": {"metric": ratio(value, value - 0.02, value + 0.02)}})
        actions.append(change.action)
    assert actions == ["keep", "keep", "update", "keep"]


def test_an_unsampled_ratio_is_updated_when_it_differs():
    assert recorded(ratio(1.06), ratio(1.061)) == ("update", "worse", ratio(1.061))


def test_a_time_of_another_host_is_updated_as_not_comparable():
    new = Entry(5, "us", "time", "measured", OTHER_HOST)
    assert recorded(Entry(9, "us", "time", "measured", HERE), new) == ("update", "not comparable", new)


def test_an_info_metric_is_left_alone_until_it_moves_by_a_quarter():
    def seconds(value):
        return Entry(value, "s", "info", "measured", HERE)

    assert recorded(seconds(50), seconds(60))[0] == "keep"
    assert recorded(seconds(50), seconds(70))[0] == "update"


@pytest.mark.parametrize("fields", [{"unit": "calls"}, {"kind": "size"}, {"better": "higher"}])
def test_a_metric_that_means_something_else_now_is_updated_as_not_comparable(fields):
    new = dataclasses.replace(count(1), **fields)
    assert recorded(count(), new) == ("update", "not comparable", new)


def test_a_measured_metric_takes_the_place_of_a_compiled_or_reported_one():
    assert recorded(compiled(), count()) == ("update", "same", count())
    assert recorded(compiled(4), count()) == ("update", "better", count())
    assert recorded(reported(4), count()) == ("update", "not comparable", count())
    assert recorded(reported(4), compiled()) == ("update", "not comparable", compiled())


def test_a_compiled_metric_displaces_a_measured_one_only_where_they_differ():
    assert recorded(count(), compiled()) == ("keep", "same", count())
    assert recorded(count(), compiled(2)) == ("update", "better", compiled(2))


def test_a_reported_metric_displaces_nothing_but_a_reported_one():
    assert recorded(count(), reported(5)) == ("keep", "same", count())
    assert recorded(compiled(), reported(5)) == ("keep", "same", compiled())
    assert recorded(reported(), reported(5))[0] == "update"
    assert recorded(reported(), reported(source="a better paper"))[0] == "update"


def test_a_change_names_the_versions_that_differ():
    _, (change,) = merge(Baselines("cpu", {"t": {"f": count()}}), {"t": {"f": count(9, environment=UPGRADED)}})
    assert change.versions == ["jax 0.10.2 -> 0.11.0"]
    _, (change,) = merge(Baselines("cpu"), {"t": {"f": count()}})
    assert change.versions == []


# What becomes of the others.


OLD = Baselines(
    "cpu", {"ran": {"a": count(), "b": count(), "c": compiled(), "d": reported()}, "not run": {"a": count()}}
)


def test_tests_that_were_not_run_keep_their_metrics():
    after, changes = merge(OLD, {"ran": {"a": count(2)}})
    assert after.metrics == OLD.metrics | {"ran": OLD.metrics["ran"] | {"a": count(2)}}
    assert [(change.test, change.name) for change in changes] == [("ran", "a")]


def test_a_test_that_ran_completely_loses_its_vanished_metrics_of_that_provenance_alone():
    after, changes = merge(OLD, {"ran": {"a": count()}}, trim={"ran", "unknown"})
    assert sorted(after.metrics["ran"]) == ["a", "c", "d"]
    assert [(change.name, change.action, change.old, change.new) for change in changes[1:]] == [
        ("b", "trim", count(), None)
    ]
    after, _ = merge(OLD, {}, trim={"ran"}, provenances=("compiled",))
    assert sorted(after.metrics["ran"]) == ["a", "b", "d"]
    after, _ = merge(OLD, {}, trim={"ran"}, provenances=("measured", "compiled"))
    assert sorted(after.metrics["ran"]) == ["d"]


def test_a_test_that_is_gone_loses_all_but_what_a_document_reported():
    after, _ = merge(OLD, {}, gone={"ran", "not run"}, trim={"ran"})
    assert after.metrics == {"ran": {"d": reported()}}


def test_merging_leaves_the_old_baselines_as_they_were():
    before = {test: dict(entries) for test, entries in OLD.metrics.items()}
    merge(OLD, {"ran": {"a": count(9), "new": count()}}, trim={"ran"}, gone={"not run"})
    assert before == OLD.metrics


def test_seconds_to_compile_for_a_target_are_left_as_they_are_until_a_version_changes():
    """They belong to the machine that compiled, so each would write its own into the file."""

    def info(seconds, libtpu, unit="s"):
        environment = dataclasses.replace(HERE, libtpu=libtpu)
        return Entry(seconds, unit, "info", "compiled", environment)

    old = Baselines("tpu-v5e", {"test": {"compile": info(10, "0.1"), "intensity": info(10, "0.1", "FLOP/byte")}})
    new = {"compile": info(99, "0.1"), "intensity": info(99, "0.1", "FLOP/byte")}
    merged, _ = merge(old, {"test": new}, provenances=("compiled",))
    assert {name: entry.value for name, entry in merged.metrics["test"].items()} == {"compile": 10, "intensity": 99}
    merged, _ = merge(old, {"test": {"compile": info(99, "0.2")}}, provenances=("compiled",))
    assert merged.metrics["test"]["compile"].value == 99
