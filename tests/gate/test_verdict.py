"""`gate.verdict`: what is called good, bad, or not decided."""

import dataclasses
import math

import pytest

from perfsuite.gate.baseline import Entry, digest
from perfsuite.gate.environment import Environment, target_environment
from perfsuite.gate.messages import reason, why_open
from perfsuite.gate.verdict import (
    Evidence,
    Part,
    Rerun,
    Verdict,
    judge_baseline,
    judge_budget,
    ratio_limit,
    strictly,
    with_rerun,
)
from perfsuite.measure.metric import ESTIMATED, Estimate, Interval, Metric

HERE = Environment("cpu", 2, "Xeon", "3.11.7", "0.10.2", "0.10.1", equinox="0.13.8")
TEST = "tests/test_step.py::test_step"
KINDS = {
    "count": ("calls", 100),
    "size": ("B", 1000),
    "ratio": ("x", 1.2),
    "time": ("us", 50.0),
}


def changed(**fields):
    return dataclasses.replace(HERE, **fields)


def metric(value, kind="ratio", low=None, high=None, **fields):
    if low is None and kind in ("ratio", "time"):
        low = high = value
    interval = None if low is None else Interval(low, high)
    return Metric("step", value, KINDS.get(kind, ("s", 0))[0], kind, interval=interval, **fields)


def entry(value, kind="ratio", environment=HERE, **fields):
    return Entry(value, KINDS.get(kind, ("s", 0))[0], kind, fields.pop("provenance", "measured"), environment, **fields)


def against(metric, recorded, **arguments):
    return judge_baseline(TEST, metric, recorded, **{"now": HERE, **arguments})


# Budgets.


def test_verdicts_have_an_order_a_word_and_those_that_fail():
    assert [str(each) for each in sorted(Verdict, reverse=True)] == [
        *("fail", "missing", "inconclusive", "not comparable", "new"),
        *("improved", "recorded", "not judged", "pass", "info"),
    ]
    assert f"{Verdict.NOT_COMPARABLE}" == "not comparable"
    assert [each for each in Verdict if each.fails] == [Verdict.MISSING, Verdict.FAIL]


@pytest.mark.parametrize(
    ("measured", "limit", "verdict"),
    [
        (metric(1.02, low=1.01, high=1.05), 1.05, Verdict.PASS),
        (metric(1.2, low=1.06, high=1.25), 1.05, Verdict.FAIL),
        (metric(1.05, low=1.0, high=1.1), 1.05, Verdict.INCONCLUSIVE),
        (metric(100, "count"), 100, Verdict.PASS),
        (metric(101, "count"), 100, Verdict.FAIL),
    ],
)
def test_a_budget_is_broken_where_the_whole_interval_is_over_it(measured, limit, verdict):
    result = judge_budget(TEST, measured, limit)
    assert (result.verdict, result.source, result.limit, result.failed) == (
        verdict,
        "budget",
        limit,
        verdict == Verdict.FAIL,
    )
    assert bool(reason(result)) == (verdict != Verdict.PASS)


# Baselines.


def test_no_baseline_is_new_and_no_failure():
    result = against(metric(1.2), None)
    assert (result.verdict, result.source, result.failed, reason(result)) == (
        Verdict.NEW,
        None,
        False,
        "step has no baseline",
    )


@pytest.mark.parametrize(
    ("kind", "passes", "fails"),
    [
        ("count", 100, 101),
        ("size", 1010, 1011),
        ("ratio", 2.4, 2.4001),
        ("time", 100.0, 100.1),
    ],
)
def test_each_kind_has_its_own_tolerance(kind, passes, fails):
    recorded = entry(KINDS[kind][1], kind)
    assert against(metric(passes, kind), recorded).verdict == Verdict.PASS
    assert against(metric(fails, kind), recorded).verdict == Verdict.FAIL


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (2.41, 2.6, Verdict.FAIL),
        (2.3, 2.6, Verdict.INCONCLUSIVE),
        (1.1, 2.4, Verdict.PASS),
        (0.5, 0.59, Verdict.IMPROVED),
        (0.5, 0.61, Verdict.PASS),
    ],
)
def test_a_ratio_is_judged_by_its_interval_and_not_its_value(low, high, verdict):
    assert against(metric((low + high) / 2, low=low, high=high), entry(1.2)).verdict == verdict


def test_a_time_of_less_than_half_is_an_improvement_where_twice_the_time_fails():
    def verdict(value):
        return against(metric(value, "time", value, value), entry(100.0, "time")).verdict

    assert [verdict(value) for value in (49.0, 51.0, 199.0, 201.0)] == [
        Verdict.IMPROVED,
        Verdict.PASS,
        Verdict.PASS,
        Verdict.FAIL,
    ]


def test_a_size_within_its_tolerance_is_no_improvement():
    recorded = entry(1000, "size")
    assert against(metric(990, "size"), recorded).verdict == Verdict.PASS
    assert against(metric(989, "size"), recorded).verdict == Verdict.IMPROVED


def test_a_lower_bound_is_no_improvement_and_fails_where_it_is_worse():
    def verdict(value):
        return against(metric(value, "size", at_least=("while at m.py:2",)), entry(1000, "size")).verdict

    assert [verdict(value) for value in (500, 1000, 1011)] == [Verdict.PASS, Verdict.PASS, Verdict.FAIL]


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_less_to_guard_is_no_improvement_and_what_is_lost_fails(better):
    def verdict(value):
        measured = Metric("donations", value, "buffers", "count", better, id="program reused donations")
        return against(measured, Entry(4, "buffers", "count", "measured", HERE, better=better)).verdict

    lost = [Verdict.PASS, Verdict.PASS, Verdict.FAIL]
    assert [verdict(value) for value in (3, 4, 5)] == (lost if better == "lower" else lost[::-1])


@pytest.mark.parametrize(
    ("value", "verdict"), [(49.9, Verdict.FAIL), (50.0, Verdict.PASS), (200.0, Verdict.PASS), (200.1, Verdict.IMPROVED)]
)
def test_where_higher_is_better_a_lower_metric_fails(value, verdict):
    measured = Metric("tokens", value, "1/s", "ratio", "higher", Interval(value, value))
    recorded = Entry(100.0, "1/s", "ratio", "measured", HERE, better="higher")
    result = against(measured, recorded)
    assert (result.verdict, result.limit) == (verdict, pytest.approx(50.0))


def test_the_limit_of_a_metric_that_higher_is_better_for_is_never_minus_zero():
    measured = Metric("tokens", 0.0, "1/s", "ratio", better="higher")
    result = against(measured, Entry(0.0, "1/s", "ratio", "measured", HERE, better="higher"))
    assert math.copysign(1, result.limit) == 1


def test_a_baseline_below_zero_tolerates_in_the_right_direction():
    recorded = entry(-10.0)
    verdicts = [against(metric(value), recorded, tolerance=0.05).verdict for value in (-9.5, -9.4, -10.6)]
    assert verdicts == [Verdict.PASS, Verdict.FAIL, Verdict.IMPROVED]


def test_a_baseline_of_zero_allows_zero_alone():
    assert against(metric(0, "count"), entry(0, "count")).verdict == Verdict.PASS
    assert against(metric(1, "count"), entry(0, "count")).verdict == Verdict.FAIL
    assert against(metric(1, "size"), entry(0, "size")).verdict == Verdict.FAIL


def test_the_tests_own_tolerance_replaces_that_of_ratios_and_times():
    assert against(metric(1.3), entry(1.2), tolerance=0.1).verdict == Verdict.PASS
    assert against(metric(1.21), entry(1.2), tolerance=0.005).verdict == Verdict.FAIL
    assert against(metric(1.2001), entry(1.2), tolerance=0.0).verdict == Verdict.FAIL


# What is not known well enough.


@pytest.mark.parametrize("kind", ["ratio", "time"])
@pytest.mark.parametrize("value", [0.1, 1.2, 900.0])
def test_a_sampled_metric_without_an_interval_neither_passes_nor_fails(kind, value):
    bare = Metric("step", value, KINDS[kind][0], kind)
    assert against(bare, entry(1.2, kind)).verdict == Verdict.INCONCLUSIVE
    assert judge_budget(TEST, bare, 1.2).verdict == Verdict.INCONCLUSIVE


def test_a_comparison_of_too_few_pairs_is_undecided_against_a_recorded_ratio():
    few = Metric("step", 1.2, "x", "ratio", samples=3)
    assert against(few, entry(1.2)).verdict == Verdict.INCONCLUSIVE
    assert against(few, None).verdict == Verdict.NEW


def test_a_metric_that_gates_no_longer_says_so():
    result = against(metric(5.0, "info"), Entry(5.0, "s", "time", "measured", HERE))
    assert result.verdict == Verdict.NOT_COMPARABLE
    assert reason(result) == "step: recorded as time, now info: no gate judges information"


def test_a_metric_of_another_unit_is_not_comparable():
    """As an estimated time is by another model."""
    result = against(Metric("step", 9.0, f"{ESTIMATED} 2", "size"), Entry(5.0, ESTIMATED, "size", "compiled", HERE))
    assert (result.verdict, result.baseline) == (Verdict.NOT_COMPARABLE, None)


def test_a_tail_without_an_upper_end_can_fail_and_is_else_information():
    def verdict(low):
        return against(metric(low, "time", low, math.inf), entry(50.0, "time")).verdict

    assert [verdict(low) for low in (10.0, 100.0, 100.1)] == [Verdict.INFO, Verdict.INFO, Verdict.FAIL]
    assert judge_budget(TEST, metric(10.0, "time", 10.0, math.inf), 50.0).verdict == Verdict.INCONCLUSIVE


def test_a_failure_says_its_cause_and_a_pass_does_not():
    assert against(metric(3.5), entry(1.2), evidence=Evidence("a sleep")).cause == "a sleep"
    assert against(metric(1.2), entry(1.2), evidence=Evidence("a sleep")).cause == ""


LIBRARIES = {"jax:flatten": 50, "equinox:combine": 30, "optax:update": 15, "jax:cache": 5}


def test_instructions_that_are_no_longer_named_are_no_growth_of_the_others():
    others, named, heavy = (f"libpython.so:{function}" for function in ("others in f", "List_New in f", "abs in g"))
    made = {others: 116_500, heavy: 58_000}
    measured = Metric("step", 174_500, "instructions", "size", detail=made, places={named: "x.py:1", heavy: "x.py:9"})
    then = {others: 100_000, digest(named): 16_000, heavy: 48_000}
    result = against(measured, Entry(164_000, "instructions", "size", "measured", HERE, detail=then))
    assert result.grown == (Part(heavy, 10_000, "x.py:9"), Part(others, 500))


@pytest.mark.parametrize(
    ("then", "now", "grown"),
    [
        # The worst three, of those that grew.
        (
            (100, LIBRARIES),
            (128, {**LIBRARIES, "jax:flatten": 52, "equinox:combine": 25, "optax:update": 25, "mine:hash": 20}),
            [Part("mine:hash", 20), Part("optax:update", 10), Part("jax:flatten", 2)],
        ),
        (
            (50, dict.fromkeys("abcde", 10)),
            (60, {"a": 11, "b": 15, "c": 12, "d": 13, "e": 9}),
            [*map(Part, "bdc", (5, 3, 2))],
        ),
        ((100, {"a": 50}), (101, {"a": 50}), []),
        ((80, {"a": 80}), (80, {"a": 79, "b": 1}), []),
    ],
)
def test_the_parts_that_grew_are_known_the_worst_first(then, now, grown):
    result = against(metric(now[0], "count", detail=now[1]), entry(then[0], "count", detail=then[1]))
    assert list(result.grown) == grown


def test_a_part_has_its_place_and_where_higher_is_better_those_that_fell_are_known():
    recorded = Entry(5, "buffers", "count", "compiled", better="higher", detail={"params": 3, "cache": 2})
    places = {"params": "model.py:3 in f"}
    measured = Metric("step", 2, "buffers", "count", better="higher", detail={"params": 2}, places=places)
    assert against(measured, recorded).grown == (Part("cache", -2), Part("params", -1, place="model.py:3 in f"))


# What is not compared.


def test_an_info_metric_never_gates_but_shows_what_is_on_file():
    result = against(metric(900.0, "info"), entry(1.0, "info"))
    assert (result.verdict, result.baseline, result.limit) == (Verdict.INFO, 1.0, None)
    in_ms = against(dataclasses.replace(metric(900.0, "info"), unit="ms"), entry(1.0, "info"))
    assert (in_ms.verdict, in_ms.baseline) == (Verdict.INFO, None)
    assert against(metric(900.0, "info"), None).verdict == Verdict.INFO


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        (Entry(1.2, "us", "ratio", "measured", HERE), None),  # a table would show a change from 1.2 us to 900 x
        (Entry(1.2, "x", "time", "measured", HERE), 1.2),
        (Entry(1.2, "x", "ratio", "measured", HERE, better="higher"), 1.2),
    ],
)
def test_a_metric_that_changed_its_unit_kind_or_direction_is_not_compared(recorded, shown):
    result = against(metric(900.0), recorded)
    assert (result.verdict, result.baseline) == (Verdict.NOT_COMPARABLE, shown)
    assert "pytest --perf-save replaces it" in reason(result)


def test_a_time_of_another_machine_is_not_compared_and_says_what_differs():
    result = against(metric(900.0, "time"), entry(50.0, "time", changed(processor="EPYC")))
    assert (result.verdict, reason(result)) == (Verdict.NOT_COMPARABLE, "step: host processor differs (EPYC, now Xeon)")


def test_a_ratio_of_another_host_with_the_same_device_is_compared():
    assert against(metric(3.5), entry(1.2, environment=changed(processor="EPYC"))).verdict == Verdict.FAIL
    assert against(metric(3.5), entry(1.2, environment=changed(device_kind="TPU v4"))).verdict == Verdict.NOT_COMPARABLE


def test_a_library_upgrade_makes_nothing_incomparable():
    older = changed(jax="0.9.0", jaxlib="0.9.0", equinox="0.12.0")
    for kind, (_, value) in KINDS.items():
        result = against(metric(3 * value if kind != "count" else 300, kind), entry(value, kind, older))
        assert result.verdict == Verdict.FAIL, kind
        assert "jax 0.9.0 -> 0.10.2" in result.versions


# When a comparison may stop.


def test_a_comparison_may_stop_at_the_limit_that_its_baseline_is_judged_by():
    limit = ratio_limit(entry(1.2), HERE, None)
    assert limit == against(metric(1.2), entry(1.2)).limit
    assert ratio_limit(entry(1.2), HERE, 0.5) == against(metric(1.2), entry(1.2), tolerance=0.5).limit
    assert ratio_limit(entry(1.2), HERE, 0.0) == 1.2


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        entry(50.0, "time"),
        entry(1.2, environment=changed(device_kind="TPU v4")),
        Entry(1.2, "x", "ratio", "reported", source="a document"),
    ],
)
def test_a_comparison_without_a_baseline_that_gates_has_no_limit(recorded):
    assert ratio_limit(recorded, HERE, None) is None


# What is not here.


def test_a_compiled_metric_is_compared_whatever_host_and_compiler_it_came_from():
    compiled = target_environment(HERE, "TPU v5 lite", libtpu="0.0.43")
    recorded = Entry(3, "copies", "count", "compiled", dataclasses.replace(compiled, libtpu="0.0.42"))
    result = against(Metric("step copies", 4, "copies", "count", target="tpu-v5e"), recorded, now=compiled)
    assert result.failed
    assert reason(result) == (
        "libtpu 0.0.42 -> 0.0.43: step copies @ tpu-v5e is 4 copies, +1 (+33.3 %) over the baseline 3 copies"
    )
    assert against(Metric("step copies", 3, "copies", "count", target="tpu-v5e"), recorded).verdict == Verdict.PASS


# The load of the machine.


@pytest.mark.parametrize("kind", ["ratio", "time"])
@pytest.mark.parametrize(
    ("value", "quickest", "verdict"),
    [
        (2.5, 2.3, Verdict.FAIL),
        (2.5, 1.9, Verdict.INCONCLUSIVE),
        (1.9, 1.5, Verdict.PASS),
        (0.4, 0.6, Verdict.IMPROVED),
    ],
)
def test_a_baseline_is_broken_where_the_quickest_blocks_break_it_too(kind, value, quickest, verdict):
    result = against(metric(value, kind, quickest=quickest), entry(1.0, kind))
    assert (result.verdict, result.slowed_in_part, result.open_over) == (
        verdict,
        verdict == Verdict.INCONCLUSIVE,
        verdict == Verdict.INCONCLUSIVE,
    )
    assert (why_open(result) == "whose quickest blocks keep the limit") == result.slowed_in_part


def test_the_quickest_blocks_soften_no_budget():
    result = judge_budget(TEST, metric(2.0, quickest=1.0), 1.5)
    assert (result.verdict, result.slowed_in_part) == (Verdict.FAIL, False)


def test_an_open_metric_whose_value_keeps_the_limit_is_not_over_it():
    assert not against(metric(1.9, low=1.8, high=2.1), entry(1.0)).open_over
    assert against(metric(2.1, low=1.8, high=2.2), entry(1.0)).open_over
    higher = Metric("tokens", 45.0, "1/s", "ratio", "higher", Interval(40.0, 60.0))
    assert against(higher, Entry(100.0, "1/s", "ratio", "measured", HERE, better="higher")).open_over


# A fresh process.


def test_a_gate_that_strictness_fails_still_says_what_the_quickest_blocks_give():
    result = strictly(against(metric(2.5, quickest=1.5), entry(1.0)), ("inconclusive",))
    assert result.failed
    assert result.slowed_in_part


@pytest.mark.parametrize(
    ("seen", "fails", "verdict", "more_seconds"),
    [
        (Estimate(2.5, Interval(2.4, 2.6)), True, Verdict.FAIL, None),
        (Estimate(1.0, Interval(0.9, 1.1)), False, Verdict.INCONCLUSIVE, False),
        (Estimate(2.0, Interval(1.5, 2.5)), False, Verdict.INCONCLUSIVE, True),
        (None, True, Verdict.FAIL, None),
    ],
)
def test_a_failure_counts_unless_a_fresh_process_keeps_the_limit(seen, fails, verdict, more_seconds):
    rerun = Rerun(seen, "" if seen else "SIGABRT")
    result = with_rerun(against(metric(2.5), entry(1.0)), rerun, fails=fails)
    assert (result.verdict, result.rerun) == (verdict, rerun)
    if verdict == Verdict.INCONCLUSIVE:
        assert ("--perf-seconds" in result.to_settle) == more_seconds
        assert why_open(result) == "not confirmed in a fresh process"


# Another processor.


@pytest.mark.parametrize(
    ("value", "processor", "verdict"),
    [
        (2.3, "EPYC", Verdict.PASS),
        (2.5, "Xeon", Verdict.FAIL),
        (2.5, "EPYC", Verdict.INCONCLUSIVE),
        (4.7, "EPYC", Verdict.INCONCLUSIVE),  # the limit is 2.4
        (4.9, "EPYC", Verdict.FAIL),
    ],
)
def test_a_sampled_ratio_over_the_baseline_of_another_processor_is_open_unless_far_over_it(value, processor, verdict):
    recorded = entry(1.2, environment=changed(processor=processor))
    result = against(metric(value, samples=300), recorded)
    assert (result.verdict, result.processor) == (verdict, "EPYC" if verdict == Verdict.INCONCLUSIVE else "")
    assert result.to_settle.startswith("a baseline of this processor") == (verdict == Verdict.INCONCLUSIVE)
    if verdict == Verdict.INCONCLUSIVE:
        assert why_open(result) == "over a baseline of another processor (EPYC)"


def test_a_sampled_ratio_that_should_be_higher_is_open_where_it_is_not_far_under():
    recorded = dataclasses.replace(entry(1.2, environment=changed(processor="EPYC")), better="higher")
    for value, verdict in (
        (0.55, Verdict.INCONCLUSIVE),
        (0.31, Verdict.INCONCLUSIVE),
        (0.29, Verdict.FAIL),
    ):  # the limit is 0.6
        assert against(metric(value, samples=300, better="higher"), recorded).verdict == verdict
