"""`gate.merging`: what becomes of recorded metrics when new ones are recorded."""

import dataclasses

import pytest
from support.entries import HERE, OTHER_HOST, UPGRADED, compiled, count, ratio, reported

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.environment import target_environment
from perfsuite.gate.merging import merge
from perfsuite.measure.metric import Interval


def recorded(old, new, **options):
    """What happens to one metric `old` when `new` is recorded."""
    before = Baselines("cpu", {"t": {"metric": old}} if old else {})
    after, changes = merge(before, {"t": {"metric": new}}, **options)
    (change,) = changes
    assert after.get("t", "metric") == change.new
    return change.action, change.direction, change.new


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


def test_a_donation_that_is_neither_lost_nor_made_is_not_better():
    old = Baselines("cpu", {"t": {"program lost donations": count(1)}})
    for value, direction in ((0, "same"), (2, "worse")):
        _, (change,) = merge(old, {"t": {"program lost donations": count(value)}})
        assert (change.action, change.direction) == ("update", direction)


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


@pytest.mark.parametrize("unit", ["instructions", "calls to trace"])
def test_sizes_that_their_gate_does_not_tell_apart_are_kept_and_never_drift(unit):
    def size(value, unit=unit):
        return dataclasses.replace(count(value), unit=unit, kind="size")

    old, again, more = size(10_000), size(10_080), size(10_160)
    assert recorded(old, again) == ("keep", "same", old)
    assert recorded(old, more) == ("update", "worse", more)
    upgraded = dataclasses.replace(again, environment=UPGRADED)
    assert recorded(old, upgraded) == ("update", "same", upgraded)
    assert recorded(size(10_000, "FLOP"), size(10_080, "FLOP"))[0] == "update", "exact in every process"


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
    for value, direction in ((0.5, "better"), (1.0, "same"), (1.1, "same"), (2.2, "worse")):
        new = ratio(value, value - 0.01, value + 0.01)
        assert recorded(old, new) == ("update", direction, new)


def test_a_sampled_metric_within_noise_but_of_other_versions_is_updated():
    new = ratio(1.07, 1.05, 1.09, environment=UPGRADED)
    assert recorded(ratio(1.06, 1.05, 1.08), new) == ("update", "same", new)


def test_a_sampled_metric_within_noise_is_kept_whichever_packages_its_test_names_and_updated_for_another_version():
    none, one, newer, more = (
        ratio(1.06, 1.05, 1.08, environment=dataclasses.replace(HERE, packages=packages))
        for packages in ((), (("a", "1"),), (("a", "2"),), (("a", "1"), ("b", "1")))
    )
    for old, new in ((none, one), (one, none), (one, more)):
        assert recorded(old, new) == ("keep", "same", old)
    assert recorded(one, newer) == ("update", "same", newer)


def test_a_comparison_of_too_few_pairs_leaves_the_ratio_that_gates_and_a_metric_made_info_replaces_it():
    old = ratio(1.06, 1.05, 1.08)
    few = dataclasses.replace(old, value=1.4, interval=None, samples=7)
    assert recorded(old, few) == ("keep", "same", old)
    assert recorded(few, old) == ("update", "same", old)
    meant = dataclasses.replace(few, kind="info")
    assert recorded(old, meant) == ("update", "not comparable", meant)


def test_a_tail_without_an_upper_end_replaces_that_of_another_processor():
    old = Entry(9.0, "us", "time", "measured", OTHER_HOST, Interval(8.0, 12.0), 1000)
    new = Entry(5.0, "us", "time", "measured", HERE, None, 400)
    assert recorded(old, new) == ("update", "not comparable", new)


def test_small_steps_do_not_carry_the_baseline_away():
    baselines = Baselines("cpu", {"t": {"metric": ratio(1.0, 0.98, 1.02)}})
    actions = []
    for value in (1.02, 1.04, 1.06, 1.08):
        baselines, (change,) = merge(baselines, {"t": {"metric": ratio(value, value - 0.02, value + 0.02)}})
        actions.append(change.action)
    assert actions == ["keep", "keep", "update", "keep"]


def test_an_unsampled_ratio_is_updated_when_it_differs():
    old, new = (ratio(value, samples=None) for value in (1.06, 1.061))
    assert recorded(old, new) == ("update", "same", new)


def test_a_time_with_other_flags_is_updated_as_not_comparable():
    new = Entry(5, "us", "time", "measured", dataclasses.replace(HERE, xla_flags="--xla_a"))
    assert recorded(Entry(9, "us", "time", "measured", HERE), new) == ("update", "not comparable", new)


@pytest.mark.parametrize(("kind", "direction"), [("ratio", "worse"), ("time", "not comparable")])
def test_a_ratio_or_a_time_of_another_processor_is_replaced(kind, direction):
    old, new = (Entry(value, "x", kind, "measured", of, samples=50) for value, of in ((5, HERE), (19, OTHER_HOST)))
    assert recorded(old, new) == ("update", direction, new)
    same = dataclasses.replace(new, value=5)
    assert recorded(old, same)[0] == "update", "its processor is another one now"


@pytest.mark.parametrize("provenance", ["measured", "compiled"])
def test_information_is_written_only_with_another_metric_of_its_test_and_is_neither_better_nor_worse(provenance):
    def info(seconds, environment=HERE, unit="s"):
        return Entry(seconds, unit, "info", provenance, environment)

    old = Baselines("cpu", {"t": {"import": info(1.0), "share": info(0.5, unit="share"), "calls": count(3)}})
    new = {"import": info(9.0), "share": info(0.1, unit="share"), "calls": count(3)}
    merged, changes = merge(old, {"t": new})
    assert merged == old
    assert {change.action for change in changes} == {"keep"}
    merged, changes = merge(old, {"t": new | {"calls": count(4)}})
    assert merged.metrics["t"] == new | {"calls": count(4)}
    assert {change.id: change.direction for change in changes} == {"import": "same", "share": "same", "calls": "worse"}
    merged, (change,) = merge(old, {"t": {"import": info(9.0, UPGRADED)}})
    assert (merged.metrics["t"]["import"].value, change.direction) == (9.0, "same")


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


def test_a_metric_is_recorded_under_its_id_whatever_people_call_it():
    old = Baselines("cpu", {"ran": {"id": count(label="step flops"), "other": count(label="eval flops")}})
    after, _ = merge(old, {"ran": {"id": count(4, label="train flops")}}, trim={"ran"})
    assert after.metrics == {"ran": {"id": count(4, label="train flops")}}


def test_merging_leaves_the_old_baselines_as_they_were():
    before = {test: dict(entries) for test, entries in OLD.metrics.items()}
    merge(OLD, {"ran": {"a": count(9), "new": count()}}, trim={"ran"}, gone={"not run"})
    assert before == OLD.metrics
