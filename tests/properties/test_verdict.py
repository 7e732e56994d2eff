"""`gate.verdict` over generated metrics, intervals, limits and baselines."""

import dataclasses
import json
import math

from hypothesis import assume, given
from hypothesis import strategies as st

from perfsuite.gate.baseline import Entry
from perfsuite.gate.environment import Environment
from perfsuite.gate.messages import reason
from perfsuite.gate.verdict import Result, Verdict, against_limit, judge_baseline, judge_budget
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.serialise import from_plain, plain

HERE = Environment("cpu", 2, "Xeon", "3.11.7", "0.10.2", "0.10.1", equinox="0.13.8")
UNITS = {"count": "calls", "size": "B", "ratio": "x", "time": "us", "info": "s"}
SAMPLED = ["ratio", "time"]

finite = st.floats(-1e12, 1e12, allow_subnormal=False).map(lambda x: x + 0.0)  # no minus zero
positive = st.floats(1e-6, 1e12)
counts = st.integers(0, 2**40)
tolerances = st.none() | st.floats(0, 10)


@st.composite
def intervals(draw, numbers=finite):
    low, high = sorted((draw(numbers), draw(numbers)))
    return Interval(low, high)


@st.composite
def metrics(draw, kinds=tuple(UNITS)):
    kind = draw(st.sampled_from(kinds))
    interval = draw(st.none() | intervals())
    if kind == "count":
        value, interval = draw(counts), None
    elif interval is None:
        value = draw(finite)
    else:
        value = draw(st.floats(interval.low, interval.high))
    detail = draw(st.none() | st.dictionaries(st.text(min_size=1), counts, max_size=4))
    better = draw(st.sampled_from(["lower", "higher"]))
    return Metric("metric", value, UNITS[kind], kind, better, interval, draw(st.none() | st.just(30)), detail)


@st.composite
def environments(draw):
    return dataclasses.replace(
        HERE,
        device_kind=draw(st.sampled_from(["cpu", "TPU v5e"])),
        processor=draw(st.sampled_from(["Xeon", "EPYC"])),
        python=draw(st.sampled_from(["3.11.7", "3.12.1"])),
        jax=draw(st.sampled_from(["0.10.2", "0.9.0"])),
    )


@st.composite
def entries(draw, kind, better, environment=None):
    value = draw(counts) if kind == "count" else draw(finite)
    provenance = draw(st.sampled_from(["measured", "compiled"]))
    return Entry(value, UNITS[kind], kind, provenance, environment or draw(environments()), better=better)


def entry_for(metric, **fields):
    return Entry(**{
        "value": metric.value, "unit": metric.unit, "kind": metric.kind, "provenance": "measured",
        "environment": HERE, "better": metric.better, **fields,
    })  # fmt: skip


def span(metric):
    exact = metric.kind in ("count", "size")
    return metric.interval or (Interval(metric.value, metric.value) if exact else Interval(-math.inf, math.inf))


def judged(metric, entry, tolerance=None):
    return judge_baseline("test", metric, entry, now=HERE, tolerance=tolerance)


@given(intervals(), finite)
def test_a_limit_fails_exactly_when_no_part_of_the_interval_is_at_or_under_it(interval, limit):
    verdict = against_limit(interval, limit)
    assert (verdict == Verdict.FAIL) == (not interval.low <= limit)
    assert (verdict == Verdict.PASS) == (not interval.high > limit)


@given(intervals(), finite, finite)
def test_a_wider_limit_never_turns_a_pass_into_a_failure(interval, one, other):
    order = [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL]
    tight, wide = (against_limit(interval, limit) for limit in sorted((one, other)))
    assert order.index(wide) <= order.index(tight)


@given(metrics(), finite)
def test_a_budget_fails_exactly_when_the_whole_interval_lies_above_it(metric, limit):
    result = judge_budget("test", metric, limit)
    assert result.failed == (span(metric).low > limit)
    assert bool(reason(result)) == (result.verdict != Verdict.PASS)


@given(st.data(), metrics(), tolerances)
def test_a_baseline_fails_only_when_the_whole_interval_is_worse_than_it_and_improves_only_when_better(
    data, metric, tolerance
):
    entry = data.draw(entries(metric.kind, metric.better))
    result = judged(metric, entry, tolerance)
    at = span(metric)
    best, worst = (at.low, at.high) if metric.better == "lower" else (-at.high, -at.low)
    baseline = entry.value if metric.better == "lower" else -entry.value
    if result.failed:
        assert best > baseline
    if result.verdict == Verdict.IMPROVED:
        assert worst < baseline
    if best <= baseline:
        assert not result.failed


@given(st.data(), metrics(SAMPLED), tolerances)
def test_the_limit_that_a_gate_shows_is_the_one_that_it_judged_by(data, metric, tolerance):
    entry = data.draw(entries(metric.kind, metric.better, HERE))
    result = judged(metric, entry, tolerance)
    at = span(metric)
    beyond = at.low > result.limit if metric.better == "lower" else at.high < result.limit
    assert result.failed == beyond


@given(metrics(SAMPLED), positive, st.floats(0, 10), intervals())
def test_the_limit_of_what_is_sampled_is_its_value_by_one_factor_either_way(metric, value, tolerance, interval):
    entry = entry_for(metric, value=value, interval=interval)
    result = judged(metric, entry, tolerance)
    factor = 1 + tolerance if metric.better == "lower" else 1 / (1 + tolerance)
    assert math.isclose(result.limit, entry.value * factor)


@given(st.data(), metrics(SAMPLED), tolerances, positive)
def test_what_the_quickest_blocks_say_only_opens_a_verdict(data, metric, tolerance, quickest):
    entry = data.draw(entries(metric.kind, metric.better, HERE))
    alone, both = (judged(each, entry, tolerance).verdict
                   for each in (metric, dataclasses.replace(metric, quickest=quickest)))  # fmt: skip
    assert both in (alone, Verdict.INCONCLUSIVE, *([Verdict.PASS] if alone == Verdict.IMPROVED else []))


@given(counts, counts, tolerances, st.sampled_from(["compiles", "fusions"]))
def test_a_count_passes_at_its_baseline_and_fails_at_any_increase(value, baseline, tolerance, unit):
    metric = Metric("metric", value, unit, "count")
    verdict = judged(metric, entry_for(metric, value=baseline), tolerance).verdict
    assert verdict == (Verdict.PASS if value == baseline else Verdict.FAIL if value > baseline else Verdict.IMPROVED)


@given(metrics(), tolerances)
def test_a_metric_passes_against_itself(metric, tolerance):
    assume(metric.kind != "info")
    entry = entry_for(metric)
    # The file keeps six digits, so the test repeats the metric of the file.
    repeated = dataclasses.replace(metric, value=entry.value, interval=Interval(entry.value, entry.value))
    assert judged(repeated, entry, tolerance).verdict == Verdict.PASS


@given(st.data(), metrics(), tolerances)
def test_a_reported_metric_never_gates(data, metric, tolerance):
    entry = entry_for(
        metric,
        value=data.draw(counts if metric.kind == "count" else finite),
        provenance="reported",
        environment=None,
        source="a document",
    )
    result = judged(metric, entry, tolerance)
    assert result.verdict == (Verdict.INFO if metric.kind == "info" else Verdict.NOT_COMPARABLE)


@given(st.data(), metrics(["info"]), tolerances)
def test_an_info_metric_never_gates(data, metric, tolerance):
    entry = data.draw(st.none() | entries("info", metric.better))
    assert judged(metric, entry, tolerance).verdict == Verdict.INFO


@given(st.data(), metrics(SAMPLED))
def test_a_wider_tolerance_never_fails_what_a_tighter_one_lets_pass(data, metric):
    entry = data.draw(entries(metric.kind, metric.better, HERE))
    tight, wide = sorted((data.draw(st.floats(0, 10)), data.draw(st.floats(0, 10))))
    if judged(metric, entry, wide).failed:
        assert judged(metric, entry, tight).failed


@given(st.data(), metrics(SAMPLED), tolerances)
def test_a_wider_interval_never_decides_what_a_narrower_one_left_open(data, metric, tolerance):
    entry = data.draw(entries(metric.kind, metric.better, HERE))
    at = span(metric)
    wider = Interval(at.low - data.draw(positive), at.high + data.draw(positive))
    if judged(metric, entry, tolerance).verdict == Verdict.INCONCLUSIVE:
        assert judged(dataclasses.replace(metric, interval=wider), entry, tolerance).verdict == Verdict.INCONCLUSIVE


@given(st.data(), metrics(), tolerances, finite)
def test_a_gate_survives_the_way_to_another_process(data, metric, tolerance, limit):
    entry = data.draw(st.none() | entries(metric.kind, metric.better))
    for result in (judged(metric, entry, tolerance), judge_budget("test", metric, limit)):
        assert from_plain(Result, json.loads(json.dumps(plain(result)))) == result


@given(st.data(), metrics(), tolerances)
def test_every_verdict_but_a_pass_or_info_has_a_reason(data, metric, tolerance):
    entry = data.draw(st.none() | entries(metric.kind, metric.better))
    result = judged(metric, entry, tolerance)
    assert bool(reason(result)) == (result.verdict not in (Verdict.PASS, Verdict.INFO))
    assert math.isfinite(result.limit or 0)
