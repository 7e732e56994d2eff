"""`gate.merging`: what becomes of recorded metrics when new ones are recorded."""

import dataclasses

import pytest
from support.entries import HERE, OTHER_HOST, UPGRADED, compiled, count, ratio, reported

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.environment import target_environment
from perfsuite.gate.merging import merge


def recorded(old, new, **options):
    """What happens to one metric `old` when `new` is recorded."""
    before = Baselines("cpu", {"t": {"metric": old}} if old else {})
    after, changes = merge(before, {"t": {"metric": new}}, **options)
    (change,) = changes
    assert after.get("t", "metric") == change.new
    return change.action, change.direction, change.new


# What becomes of one metric.


def test_a_metric_within_its_noise_is_kept():
    old = ratio(1.0, 0.9, 1.1)
    assert recorded(old, ratio(1.05, 0.95, 1.15)) == ("keep", "same", old)


def test_a_narrow_metric_takes_the_place_of_a_wide_one_that_it_meets():
    wide, narrow = ratio(1.0, 0.7, 1.4), ratio(1.1, 1.08, 1.12)
    assert recorded(wide, narrow) == ("update", "same", narrow)
    assert recorded(wide, ratio(1.1, 1.0, 1.2))[0] == "keep", "wide as well"
    assert recorded(ratio(1.1, 1.0, 1.14), narrow)[0] == "keep", "not wide"
    time = dataclasses.replace(wide, kind="time", unit="us")
    assert recorded(time, dataclasses.replace(narrow, kind="time", unit="us"))[0] == "keep", "a time may double"
    higher = [dataclasses.replace(each, better="higher") for each in (ratio(1.0, 0.97, 1.4), ratio(1.1, 1.08, 1.12))]
    assert recorded(*higher)[0] == "keep", "its limit starts at the lower end"


def test_what_a_save_may_not_replace_is_kept():
    old, new = (ratio(value, value, value) for value in (1.0, 2.0))
    assert recorded(old, new, kinds=("new", "better")) == ("keep", "same", old)
    few = Entry(1.0, "x", "info", "measured", HERE, samples=3)
    assert recorded(old, few) == ("keep", "same", old)


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
    old, new = (ratio(value, samples=None) for value in (1.06, 1.061))
    assert recorded(old, new) == ("update", "worse", new)


def test_a_time_with_other_flags_is_updated_as_not_comparable():
    new = Entry(5, "us", "time", "measured", dataclasses.replace(HERE, xla_flags="--xla_a"))
    assert recorded(Entry(9, "us", "time", "measured", HERE), new) == ("update", "not comparable", new)


# One metric on several processors.


def after(*saves, **options):
    """The baselines after these entries of one metric were saved one after the other, and what the last save did."""
    baselines, change = Baselines("cpu"), None
    for entry in saves:
        baselines, (change,) = merge(baselines, {"t": {"metric": entry}}, **options)
    return baselines, change


def on(baselines, processor):
    return baselines.on(processor).get("t", "metric")


@pytest.mark.parametrize(("kind", "unit"), [("ratio", "x"), ("time", "us")])
def test_a_ratio_or_a_time_of_a_further_processor_stands_beside_the_first(kind, unit):
    one, other = (
        Entry(value, unit, kind, "measured", each, samples=50) for value, each in ((9, HERE), (5, OTHER_HOST))
    )
    baselines, change = after(one, other)
    assert (change.action, change.old, change.new) == ("create", None, other)
    assert (baselines.get("t", "metric"), on(baselines, "Xeon"), on(baselines, "EPYC")) == (one, one, other)
    assert on(baselines, "Xeon of next year") == one
    assert baselines.by_name == {"t": {"metric": one, "metric on EPYC": other}}
    for entry in (one, other):
        again, change = after(one, other, entry)
        assert (again, change.action, change.old) == (baselines, "keep", entry)


@pytest.mark.parametrize("make", [count, lambda value, environment=HERE: ratio(value, None, None, environment, None)])
def test_a_count_and_a_ratio_of_no_samples_are_the_same_on_every_processor(make):
    baselines, change = after(make(3), make(4, environment=OTHER_HOST))
    assert (change.action, change.direction) == ("update", "worse")
    assert baselines == Baselines("cpu", {"t": {"metric": make(4, environment=OTHER_HOST)}})


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_a_ratio_that_no_processor_explains_is_worse_when_it_is_first_saved_on_another(better):
    values = (1.0, 3.0) if better == "lower" else (3.0, 1.0)
    first, second = (
        ratio(value, environment=of, better=better) for value, of in zip(values, (HERE, OTHER_HOST), strict=True)
    )
    baselines, change = after(first, second)
    assert (change.action, change.direction, on(baselines, "EPYC")) == ("create", "worse", second)
    before, _ = after(first)
    assert merge(before, {"t": {"metric": second}}, kinds=("new",))[0] == before
    assert merge(before, {"t": {"metric": second}}, kinds=("worse",))[0] == baselines


@pytest.mark.parametrize(("environment", "gone"), [(HERE, "metric on EPYC"), (OTHER_HOST, "metric")])
def test_what_got_better_or_worse_on_one_processor_is_another_code_on_all(environment, gone):
    changed = ratio(4.0, 3.9, 4.1, environment)
    before, _ = after(ratio(1.0, 0.9, 1.1), ratio(2.0, 1.9, 2.1, OTHER_HOST))
    baselines, (change, removed) = merge(before, {"t": {"metric": changed}})
    assert (change.action, change.direction) == ("update", "worse")
    assert (removed.name, removed.action, removed.direction) == (gone, "trim", "not comparable")
    assert baselines == Baselines("cpu", {"t": {"metric": changed}})


@pytest.mark.parametrize("environment", [UPGRADED, dataclasses.replace(OTHER_HOST, jax="0.11.0")])
def test_an_upgrade_that_costs_nothing_on_one_processor_leaves_the_others(environment):
    first, second = ratio(1.0, 0.9, 1.1), ratio(1.0, 0.9, 1.1, OTHER_HOST)
    upgraded = ratio(1.05, 0.95, 1.15, environment)
    baselines, change = after(first, second, upgraded)
    assert (change.action, change.direction) == ("update", "same")
    assert on(baselines, environment.processor) == upgraded
    assert {on(baselines, "Xeon"), on(baselines, "EPYC")} == {first, second, upgraded} - {change.old}


def test_a_ratio_without_samples_takes_the_place_of_those_of_all_processors():
    before, _ = after(ratio(1.0, 0.9, 1.1), ratio(2.0, 1.9, 2.1, OTHER_HOST))
    new = ratio(1.0, 0.9, 1.1, UPGRADED, samples=None)
    baselines, (change, removed) = merge(before, {"t": {"metric": new}})
    assert (change.action, change.direction, removed.name, removed.action) == (
        "update",
        "same",
        "metric on EPYC",
        "trim",
    )
    assert baselines == Baselines("cpu", {"t": {"metric": new}})


def test_a_time_with_other_flags_leaves_those_of_other_processors():
    first, second = (Entry(value, "us", "time", "measured", of) for value, of in ((9, HERE), (5, OTHER_HOST)))
    flagged = dataclasses.replace(first, environment=dataclasses.replace(HERE, x64=True))
    baselines, change = after(first, second, flagged)
    assert (change.action, change.direction) == ("update", "not comparable")
    assert (on(baselines, "Xeon"), on(baselines, "EPYC")) == (flagged, second)


@pytest.mark.parametrize("first", [{}, {"t": {"metric": ratio(3.0, environment=OTHER_HOST)}}])
def test_a_file_that_git_merged_wrongly_is_mended_by_the_next_save(first):
    merged = Baselines("cpu", first, other_processors={"EPYC": {"t": {"metric": ratio(2.0, environment=OTHER_HOST)}}})
    for value in (2.0, 3.0, 4.0):
        new = ratio(value, environment=OTHER_HOST)
        assert merge(merged, {"t": {"metric": new}})[0] == Baselines("cpu", {"t": {"metric": new}})
    assert merge(merged, {"other": {"a": count()}})[0].get("t", "metric").environment == OTHER_HOST
    assert merge(merged, {}, trim={"t"})[0] == Baselines("cpu")


def test_a_metric_that_is_gone_is_gone_on_all_processors():
    baselines, _ = after(ratio(1.0), ratio(2.0, environment=OTHER_HOST))
    for how in ({"trim": {"t"}}, {"gone": {"t"}}):
        assert merge(baselines, {}, **how)[0] == Baselines("cpu")


def test_only_what_is_to_be_saved_is_saved_of_a_further_processor():
    first, second = ratio(1.0), ratio(2.0, environment=OTHER_HOST)
    before = Baselines("cpu", {"t": {"metric": first}})
    assert merge(before, {"t": {"metric": second}}, kinds=("better", "worse"))[0] == before
    assert on(merge(before, {"t": {"metric": second}}, kinds=("new",))[0], "EPYC") == second


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


def test_a_metric_is_recorded_under_its_id_whatever_people_call_it():
    old = Baselines("cpu", {"ran": {"id": count(label="step flops"), "other": count(label="eval flops")}})
    after, _ = merge(old, {"ran": {"id": count(4, label="train flops")}}, trim={"ran"})
    assert after.metrics == {"ran": {"id": count(4, label="train flops")}}


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
