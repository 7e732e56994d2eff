"""The sentences of a gate: why its verdict is no plain pass, what to do first, and the message of a failed test.

Everything here is made of a gate's fields, and nothing reads a sentence back.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from perfsuite.gate.advice import TELLING, advice_on
from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.verdict import Part, Result, Verdict
from perfsuite.measure.metric import HOST_CALLS, Kind, Metric
from perfsuite.measure.words import change, number, percent, plural

OTHERS_NAMED = 4
"""How many metrics that failed beside the first a test's message names."""

_STATES = {None: "worse", Verdict.INCONCLUSIVE: "undecided", Verdict.NEW: "without a baseline"}
"""By the verdict that --perf-strict made a failure."""

_PART_OF_CALLS = re.compile(" (?:by|in) ")
"""Between the function and its origin: "tree:leaves by jax:map in step (train.py)"."""

_IRREGULAR = {"misses": "miss", "copies": "copy", "launches": "launch"}
"""Units of perfsuite that do not become a singular by losing an s."""


def reason(result: Result) -> str:
    """Why the verdict is no plain pass; empty where there is nothing to say. Further lines say what to do.

    Versions that changed since the baseline come first: an upgrade is the first thing to know of a metric that moved.
    """
    parts = [_finding(result), moved(result)]
    if result.grown:
        parts.append(growth(result.grown, result.metric.unit))
    if parts[0] and not result.note:
        parts.extend(bounds(result.metric.at_least, result.metric.at_most))
    parts.append(_rerun(result))
    if result.slowed_in_part:
        parts.append(f"its quickest blocks give {number(result.metric.quickest or 0)} {result.metric.unit}")
    if result.strict == Verdict.INCONCLUSIVE:
        parts.append("fails because it is undecided (--perf-strict=inconclusive)")
    sentence = ": ".join(filter(None, (", ".join(result.versions), "; ".join(filter(None, parts)))))
    lines = [sentence, *(f"  {text}" for text in _advice(result))]
    if settles := to_settle(result):
        lines.append(f"to settle it: {settles}")
    return "\n".join(filter(None, lines))


def in_full(result: Result) -> str:
    """The reason, the likely cause, and how the program differs from that of the baseline."""
    return "\n".join(filter(None, [reason(result), cause(result), *program_lines(result)]))


def cause(result: Result) -> str:
    """The likely cause, or what is known where the cause is not; empty where nobody looked for one."""
    if result.cause:
        return f"likely cause: {result.cause}"
    return f"cause unknown: {result.unexplained}" if result.unexplained else ""


def program_lines(result: Result) -> list[str]:
    """How the program differs from that of the baseline, in lines under a heading; none where it does not."""
    if not result.program:
        return []
    return ["differences from the baseline's program:", *(f"  {line}" for line in result.program)]


def first(result: Result) -> str:
    """The one thing to do first about a metric that fails against its baseline; empty where its reason says it."""
    if not result.failed or result.source != "baseline" or result.cause or result.note or result.strict:
        return ""
    if result.verdict == Verdict.MISSING:
        return ""
    places = [part.place for part in result.grown if part.place]
    if _advice(result):
        return ""
    if result.versions:
        versions = ", ".join(result.versions)
        return f"run it with the baseline's versions too ({versions}), to see whether the upgrade or the code causes it"
    if places:
        return f"look at {places[0]}"
    return "if you intend this change, record it: pytest --perf-save"


def explanation(result: Result) -> str:
    """All that is known of a result, and what to do first."""
    to_do = first(result)
    return "\n".join(filter(None, [in_full(result), to_do and f"first: {to_do}"]))


def by_weight(results: Iterable[Result]) -> list[Result]:
    """The failed gates with the one that matters most first, which a test's message has in full.

    What got worse comes before what is missing, undecided and new. Of what got worse, that comes first which was not
    there before, or is lost; then what grew most. A symptom costs nothing by itself, and stands behind what costs.
    """
    ranks = {None: 0, Verdict.INCONCLUSIVE: 2, Verdict.NEW: 3}

    def weight(result: Result) -> tuple[int, bool, float, bool]:
        metric = result.metric
        if result.strict or result.verdict == Verdict.MISSING:
            return ranks[result.strict] or 1, False, 0.0, False
        lost = metric.better == "higher" and metric.kind == "count"
        grown = math.inf if lost else abs(relative_change(result) or 0.0)
        return 0, metric.symptom, -grown, metric.kind != "count"

    return sorted(results, key=weight)


def failure(results: Sequence[Result]) -> str:
    """Why a test failed: the failed gate that matters most in full, what to do first, and which others failed."""
    worst, *others = by_weight(results)
    lines = [explanation(worst)]
    groups: dict[str, list[Result]] = {}
    for each in others:
        state = "missing" if each.verdict == Verdict.MISSING else _STATES[each.strict]
        groups.setdefault(state, []).append(each)
    for state, group in groups.items():
        named = short(group) if state == "worse" else _titles(group)
        lines.append(f"also {state}: {named}")
    if any(group[OTHERS_NAMED:] for group in groups.values()):
        lines.append("all of them: pytest --perf -v")
    return "\n".join(lines)


def short(results: Sequence[Result]) -> str:
    """`step flops 1,000 -> 1,100 FLOP (+10 %, model.py:42 in attend)` of the first, and how many more there are."""
    return f"{'; '.join(map(_in_short, results[:OTHERS_NAMED]))}{_and_more(results)}"


def absent_test(results: Sequence[Result], renamed: str = "") -> str:
    """That a test is gone, and what to do with its recorded metrics. `renamed` is the test that it may be now."""
    hint = f"; if it is {renamed} now, rename it in the baseline file" if renamed else ""
    return (
        f"{results[0].test} is gone, or without perf: pytest --perf-save removes "
        f"{plural(len(results), 'baseline')} ({_titles(results)}){hint}"
    )


def without_baseline(count: int) -> str:
    """How many metrics have no baseline, and how to record them."""
    verb, them = ("has", "it") if count == 1 else ("have", "them")
    return f"{plural(count, 'metric')} {verb} no baseline: pytest --perf-save records {them}"


def save_summary(file: SaveResult) -> str:
    """`27 recorded (20 new, 4 better, 3 worse), 2 removed, 98 kept`."""
    new, updated, trimmed, kept = (len(file.of(action)) for action in ("create", "update", "trim", "keep"))
    counts = {"new": new, "better": len(file.of("update", "better")), "worse": len(file.of("update", "worse"))}
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    parts = [f"{new + updated} recorded" + (f" ({kinds})" if kinds else "")]
    parts += [f"{trimmed} removed"] if trimmed else []
    return ", ".join([*parts, f"{kept + file.untouched} kept"])


def relative_change(result: Result) -> float | None:
    """How much the metric differs from its baseline: 0.02 is 2 % more; infinite from 0. None without a baseline."""
    value, baseline = result.metric.value, result.baseline
    if baseline is None:
        return None
    if value == baseline:
        return 0.0
    return (value - baseline) / abs(baseline) if baseline else math.copysign(math.inf, value)


def change_in_words(result: Result) -> str:
    """`+12 %`, `from 0`; `+12 % [+8 %, +17 %]` of a time on two sides; empty where nothing changed."""
    if result.ratio is None:
        share = relative_change(result)
        return change(share, 3) if share else ""
    low, high = result.ratio.interval.low, result.ratio.interval.high
    if not math.isfinite(high):
        return "no interval"
    return f"{percent(result.ratio.value - 1)} [{percent(low - 1)}, {percent(high - 1)}]"


def evidence_lines(result: Result) -> list[str]:
    """What explains a result of two sides, a line a fact: the reason, the parts, the likely cause, and the place."""
    lines = [
        result.incomparable,
        growth(result.grown, result.metric.unit) if result.grown else "",
        cause(result),
        f"measured at {result.where}" if result.where else "",
    ]
    return list(filter(None, lines))


def growth(parts: Sequence[Part], unit: str) -> str:
    """Which parts of a metric in `unit` got worse, by how much, and where they are."""
    if unit == HOST_CALLS:
        return f"more calls of {'; '.join(_more_calls(parts))}"
    verb = "fell" if parts[0].amount < 0 else "grew"
    at = (f"{part.name} ({_grown_by(part)})" + (f" at {part.place}" if part.place else "") for part in parts)
    return f"{verb}: {', '.join(at)}"


def _more_calls(parts: Sequence[Part]) -> Iterator[str]:
    """The functions that are called more, by what the user's code calls for it."""
    by_place: dict[str, list[Part]] = {}
    for part in parts:
        by_place.setdefault(part.place, []).append(part)
    for place, functions in by_place.items():
        names = [_PART_OF_CALLS.split(part.name)[0] for part in functions]
        called = ", ".join(f"{name} ({_grown_by(part)})" for name, part in zip(names, functions, strict=True))
        origin, _, line = place.partition(" at ")
        if names == [origin] and line:
            yield f"{called} at {line}"
        else:
            yield f"{called}, made in {place}" if line or advice_on(place) else called


def verdict_counts(verdicts: Iterable[Verdict]) -> str:
    """How many there are of each, the gravest first: `3 fail, 12 pass`."""
    counts = Counter(verdicts)
    return ", ".join(f"{counts[each]:,} {each}" for each in sorted(counts, reverse=True))


def without_estimate(kernels: Sequence[str]) -> str:
    """The first of the kernels and calls without a cost estimate, and how many more there are."""
    more = f" and {len(kernels) - 1:,} more" if kernels[1:] else ""
    return f"unknown FLOP and bytes: no estimate (in Pallas: cost_estimate=) for {kernels[0]}{more}"


def bounds(at_least: Sequence[str], at_most: Sequence[str]) -> list[str]:
    """Which loops count once, and which loops and conditionals count the most that they may run."""
    sentences = []
    if at_least:
        sentences.append(f"counts once, for its iterations depend on data: the loop at {_first_places(at_least)}")
    if at_most:
        sentences.append(f"counts the most that may run: the {_first_places(at_most)}")
    return sentences


def _first_places(places: Sequence[str]) -> str:
    return f"{', '.join(places[:OTHERS_NAMED])}{_and_more(places)}"


def _titles(results: Sequence[Result]) -> str:
    return f"{', '.join(result.metric.title for result in results[:OTHERS_NAMED])}{_and_more(results)}"


def to_settle(result: Result) -> str:
    """What would decide an open gate, where neither the instrument nor its note says it better."""
    if result.to_settle or result.note or Verdict.INCONCLUSIVE not in (result.verdict, result.strict):
        return result.to_settle
    if result.metric.interval is None and result.metric.samples is None:
        return "its interval: perf.record(..., interval=(low, high)), or (value, value) where it is exact"
    wider = "a wider budget" if result.source == "budget" else "a wider tolerance="
    longer = "" if result.metric.samples is None else ": --perf-seconds"
    return f"a narrower interval (more samples{longer}), or {wider}"


def why_open(result: Result) -> str:
    """Why a gate is undecided, in words that count several of them: `3 with the limit inside the interval`."""
    if result.note:
        return "that the instrument leaves open"
    if result.rerun is not None:
        return "not confirmed in a fresh process"
    if result.processor:
        return f"over a baseline of another processor ({result.processor})"
    if result.slowed_in_part:
        return "whose quickest blocks keep the limit"
    interval = result.metric.interval
    if interval is not None and math.isfinite(interval.low) and math.isfinite(interval.high):
        return "with the limit inside the interval"
    return "without an interval" if result.metric.samples is None else "of too few samples for an interval"


def _finding(result: Result) -> str:
    metric = result.metric
    if result.note:
        return result.note
    if result.strict == Verdict.NEW:
        return f"{metric.title} has no baseline (--perf-strict): pytest --perf-save records it"
    if result.verdict == Verdict.NEW:
        return f"{metric.title} has no baseline"
    if result.verdict == Verdict.MISSING:
        install = f"{result.incomparable}, or leave it out: --perf-allow-missing"
        to_do = install if result.incomparable else "pytest --perf-save removes it"
        return f"{metric.title} has a baseline of {_amount(metric.value, metric)} and was not measured: {to_do}"
    if result.incomparable:
        return f"{metric.title}: {result.incomparable}"
    if result.verdict not in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.IMPROVED):
        return ""
    if result.source == "budget" and result.limit is not None:
        over = _share_over(metric.value, result.limit)
        held = f"{over}over" if _is_over(result) or result.rerun else "undecided against"
        return f"{_span(metric)}, {held} the budget of {_amount(result.limit, metric)}"
    if result.baseline is None:
        return _span(metric)
    sentence = f"{_span(metric)}, {_change(metric, result.baseline)} the baseline {_amount(result.baseline, metric)}"
    if result.verdict == Verdict.IMPROVED:
        return f"{sentence}: pytest --perf-save records it"
    if result.tolerance is None or result.limit is None or metric.kind == "count":
        return sentence
    if result.baseline <= 0:
        return f"{sentence} (limit {_amount(result.limit, metric)})"
    return f"{sentence} (limit {percent(result.limit / result.baseline - 1)})"


def moved(result: Result) -> str:
    """That the metric is compared with the baseline of another call of its test; empty where it is not."""
    if not result.recorded_as:
        return ""
    return (
        f"compared with the baseline of {result.recorded_as}, because calls changed places in the test: "
        "give each its name=, or record them anew with pytest --perf-save"
    )


def _change(metric: Metric, baseline: float) -> str:
    """By how much the metric differs: `+22.1 % over`, `5 % under`; `+2 (+200 %) over` for a count."""
    difference = metric.value - baseline
    if not difference:
        return "equal to"
    share = percent(difference / abs(baseline)) if baseline else ""
    amount = share
    if metric.kind == "count" or not baseline:
        amount = _exact(difference, metric.kind) + (f" ({share})" if share else "")
    if difference < 0:
        return f"{amount.removeprefix('-')} under"
    return f"+{amount.removeprefix('+')} over"


def _share_over(value: float, limit: float) -> str:
    """`+60 % `, by how much a value is over a limit; empty where that has no meaning."""
    return f"{percent(value / limit - 1)} " if 0 < limit < value else ""


def _is_over(result: Result) -> bool:
    return result.failed and not result.strict


def _rerun(result: Result) -> str:
    """What a fresh process says of a metric that is over its limit."""
    rerun = result.rerun
    if rerun is None:
        return ""
    if rerun.seen is None:
        return f"not confirmed, because a fresh process measured nothing: {rerun.failure}"
    return f"{'confirmed' if _is_over(result) else 'not confirmed'} in a fresh process: {rerun.seen}"


def _advice(result: Result) -> list[str]:
    """What to do about host calls of no known cause, by what the user's code calls that makes them."""
    if result.metric.unit != HOST_CALLS or result.cause:
        return []
    calls: dict[str, float] = {}
    for part in result.grown:
        calls[part.place] = calls.get(part.place, 0) + part.amount
    telling = (place for place, amount in calls.items() if amount >= TELLING * sum(calls.values()))
    return list(dict.fromkeys(filter(None, map(advice_on, telling))))


def _grown_by(part: Part) -> str:
    return f"{round(part.amount, 2):+,}"


def _span(metric: Metric) -> str:
    if metric.interval is None:
        bound = "at least " if metric.at_least else "at most " if metric.at_most else ""
        if metric.at_least and metric.at_most:
            bound = "about "
        return f"{metric.title} is {bound}{_amount(metric.value, metric)}"
    low, high = metric.interval.low, metric.interval.high
    return f"{metric.title} is {_exact(metric.value, metric.kind)} {metric.unit} [{low:.6g}, {high:.6g}]"


def _amount(value: float, metric: Metric) -> str:
    """A value in the metric's unit: `1 call`, `2 calls`, `1.05 x`."""
    return f"{_exact(value, metric.kind)} {unit_of(value, metric)}"


def unit_of(value: float, metric: Metric) -> str:
    """The metric's unit as it stands beside a value: `call` beside 1, `calls` beside 2."""
    if value != 1 or metric.kind not in ("count", "size"):
        return metric.unit
    word, space, rest = metric.unit.partition(" ")
    return _IRREGULAR.get(word, word if word.endswith("ss") else word.removesuffix("s")) + space + rest


def _exact(value: float, kind: Kind) -> str:
    """More digits than tables have: a message must show on which side of a limit the value lies."""
    return f"{value:,.0f}" if kind in ("count", "size") and value == int(value) else f"{value:.6g}"


def _in_short(result: Result) -> str:
    metric = result.metric
    before = "" if result.baseline is None else f"{number(result.baseline)} -> "
    by = [change(metric.value / result.baseline - 1, 3)] if result.baseline and result.baseline > 0 else []
    by += [part.place or part.name for part in result.grown[:1]]
    value = f"{metric.title} {before}{number(metric.value)} {unit_of(metric.value, metric)}"
    return value + (f" ({', '.join(by)})" if by else "")


def _and_more(results: Sequence[object]) -> str:
    return f" and {len(results) - OTHERS_NAMED} more" if len(results) > OTHERS_NAMED else ""
