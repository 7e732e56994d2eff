"""The likely cause of a metric over its limit, and what to do about it: what a person would look at first."""

import collections
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from perfsuite.gate.advice import TELLING, advice_on
from perfsuite.measure.first_call.first_call import FirstCall
from perfsuite.measure.private.libraries import waits
from perfsuite.measure.runtime.dispatches import MOVE_IN, Dispatches
from perfsuite.measure.runtime.host_calls import CallOrigin, HostCalls
from perfsuite.measure.timing.comparison import Comparison
from perfsuite.measure.timing.scaling import Scaling
from perfsuite.measure.timing.waits import Asynchrony
from perfsuite.measure.words import number, plural

WAITS = 0.8
"""A call that waits has a time to return above this share of its time to ready. Short programs, which return while the
device works, are far below it: at a half where they take 50 us."""

HOST_CALL_US = 0.1
"""About what one Python or C call costs: the 27 500 calls of a `filter_jit` step over 607 arrays take it 4.5 ms longer
than the 2 calls of a flat one (2-core x86-64 machine, Python 3.11)."""

PROGRAM_US = 4.0
"""About what one program costs the host at least: a jitted `x + 1` of three numbers takes 4.1 us, outside jit 8.3 us
(2-core x86-64 machine, Python 3.11, jax 0.10.2)."""

NAMED = 3
"""How many functions a message names."""

NOTICEABLE = 0.1
"""More host calls, programs or work on the device are named as a cause when they account for this share of the
overhead."""

EXPLAINING = 0.5
"""What happens on the device, or while the thread sleeps, is named as the cause when it accounts for this share."""

READ_LATER = "Return the array, and read it some steps later"

PASS_IT = "an array that a function closes over becomes a part of its program: pass it as an argument"

COMPUTE_IT = "it depends on no argument, so that the compiler computes it, slowly: compute it once, and pass it"

_LIKE_EQUATIONS = ("lowering_calls", "stablehlo_bytes")
"""Metrics of a first call that follow its equations, for JAX lowers one after the other."""


class _Cause(NamedTuple):
    """What makes a candidate slower, in words, and the microseconds that it accounts for."""

    us: float
    words: str


_NOTHING = _Cause(0.0, "")


def likely_cause(
    comparison: Comparison,
    candidate: HostCalls,
    reference: HostCalls,
    *,
    programs: tuple[Dispatches, Dispatches] | None = None,
    longer_us: float = 0.0,
    watched: Callable[[], tuple[Asynchrony, Asynchrony] | None] = lambda: None,
) -> str:
    """Name what makes the candidate slower, a line for each cause, the largest first; empty where none is found.

    `programs` are those that the candidate and the reference run, `longer_us` is by how much longer the candidate's
    devices work in traces of both. `watched` watches both for a while, to see whether they wait.
    """
    overhead_us = comparison.overhead_us.value
    candidates = [_more_host_calls(comparison, candidate, reference)]
    if programs is not None:
        candidates.append(_more_programs(comparison, *programs))
    candidates.append(_Cause(longer_us, f"operations on the device take longer, by {longer_us:.4g} us a run"))
    candidates = [cause for cause in candidates if cause.us and cause.us >= NOTICEABLE * overhead_us]
    causes = [cause.words for cause in sorted(candidates, key=lambda cause: -cause.us)]
    # A call that is busy on the host returns late too, and waits for nothing.
    waiting = ""
    if _return_share(comparison.candidate_us) > WAITS > _return_share(comparison.reference_us):
        waiting = _known_to_wait(comparison, _extra(candidate, reference))
    if not (waiting or causes):
        waiting = _seen_to_wait(comparison, watched())
    return "\nalso: ".join([*causes, *filter(None, [waiting])])


def _more_host_calls(comparison: Comparison, candidate: HostCalls, reference: HostCalls) -> _Cause:
    more = candidate.total - reference.total
    if more <= 0:
        return _NOTHING
    counts = f"{candidate.total} host calls against {reference.total} of {comparison.reference}"
    sentence = f"Python on the host: {counts}, above all {_most_host_calls(candidate, reference)}"
    return _Cause(more * HOST_CALL_US, sentence)


def _more_programs(comparison: Comparison, candidate: Dispatches, reference: Dispatches) -> _Cause:
    more = candidate.total - reference.total
    if more <= 0:
        return _NOTHING
    counts = f"{plural(candidate.total, 'program')} against {reference.total} of {comparison.reference}"
    named = []
    for eager in (True, False):
        now, then = (side.by_operation if eager else side.by_program for side in (candidate, reference))
        places = candidate.places(eager=eager)
        named += [(now[name] - then.get(name, 0), name, places[name]) for name in now if now[name] > then.get(name, 0)]
    named.sort(key=lambda each: (-each[0], each[1]))
    most = ", ".join(f"{name} (+{extra}) at {place}" for extra, name, place in named[:NAMED])
    advice = f"\n  {MOVE_IN}" if candidate.eager_operations > reference.eager_operations else ""
    return _Cause(more * PROGRAM_US, f"more programs: {counts}, above all {most}{advice}")


def unexplained(comparison: Comparison, candidate: HostCalls, reference: HostCalls) -> str:
    """What the host's calls say where `likely_cause` names nothing."""
    if candidate.total == reference.total:
        return "the host's calls did not change"
    counts = f"{candidate.total} host calls against {reference.total} of {comparison.reference}"
    return f"the host's calls do not explain it ({counts})"


def _return_share(samples_us: np.ndarray) -> float:
    to_return, to_ready = np.median(samples_us, axis=0)
    return float(to_return / to_ready)


def _most_host_calls(candidate: HostCalls, reference: HostCalls) -> str:
    named = _telling(_extra(candidate, reference))
    return ", ".join(f"{origin} (+{calls})" for origin, calls in named.items()) + _advised(named)


def busiest(counted: HostCalls) -> str:
    """Where most of the host calls of a call that makes too many come from, and what to do about it."""
    named = _telling(counted.by_origin)
    return f"busiest: {', '.join(f'{origin} ({calls})' for origin, calls in named.items())}{_advised(named)}"


def costliest(counted: FirstCall, field: str) -> str:
    """What makes most of a metric of a first call that is too high, and what to do about it."""
    parts = counted.parts("equations" if field in _LIKE_EQUATIONS else field)
    unit = {"lowering_calls": " equations", "stablehlo_bytes": " equations", "constant_bytes": " bytes"}.get(field, "")
    named = []
    for part, amount in list(parts.amounts.items())[:NAMED]:
        place = f" at {parts.places[part]}" if part in parts.places else ""
        named.append(f"{part} ({amount:,}{unit}){place}")
    return f"most of it: {', '.join(named)}" + (f"\n  {advice}" if (advice := to_do(field)) else "")


LINEAR = 1.05
"""A metric that grows with a higher power of the size is said to."""


def growing(scaling: Scaling, power: float = LINEAR) -> str:
    """How a metric grows with the size, and a count's steepest part; empty where it may be with `power` or less."""
    if scaling.exponent is None or scaling.exponent.interval.low <= power:
        return ""
    pairs = sorted(zip(scaling.units.tolist(), scaling.values.tolist(), strict=True))
    values = ", ".join(f"{number(value)} at {units:g}" for units, value in pairs)
    sentence = f"it grows with the power {scaling.exponent.value:.3g} of the size ({values})"
    if scaling.smallest is None or scaling.largest is None:
        line = f"R^2 of a line is {scaling.r_squared:.3f}, its intercept {number(scaling.intercept)} us"
        return f"{sentence}; {line}"
    small, large = scaling.smallest.detail or {}, scaling.largest.detail or {}
    times = float(scaling.units.max() / scaling.units.min())
    if large:
        part = max(large, key=lambda name: large[name] - times * small.get(name, 0))
        place = (scaling.largest.places or {}).get(part)
        sentence += f"; above all {part} ({small.get(part, 0):,} -> {large[part]:,})"
        sentence += f" at {place}" if place else ""
    return sentence


def to_do(field: str) -> str:
    """What to do about a metric of a first call that is too high; empty where that depends on the code."""
    if field in ("folded_flops", "folded_bytes"):
        return COMPUTE_IT
    return PASS_IT if field in ("constants", "constant_bytes") else ""


def _extra(candidate: HostCalls, reference: HostCalls) -> dict[CallOrigin, int]:
    """What the candidate's code calls that makes more host calls than the same does for the reference, at any line."""
    then: collections.Counter[str] = collections.Counter()
    for origin, calls in reference.by_origin.items():
        then[origin.function] += calls
    extra: dict[CallOrigin, int] = {}
    for origin, calls in candidate.by_origin.items():
        allowed = min(calls, then[origin.function])
        then[origin.function] -= allowed
        if calls > allowed:
            extra[origin] = calls - allowed
    return dict(sorted(extra.items(), key=lambda item: (-item[1], str(item[0]))))


def _telling(calls: dict[CallOrigin, int]) -> dict[CallOrigin, int]:
    """The few that make most of the calls; `calls` has the busiest first."""
    least = TELLING * sum(calls.values())
    return {origin: count for origin, count in list(calls.items())[:NAMED] if count >= least}


def _advised(named: dict[CallOrigin, int]) -> str:
    advice = list(dict.fromkeys(advice_on(str(origin)) for origin in named))
    return "".join(f"\n  {text}" for text in advice if text)


def _known_to_wait(comparison: Comparison, extra: Mapping[CallOrigin, int]) -> str:
    waiting = [origin for origin in extra if waits(origin.function)]
    if not waiting:
        return ""
    mine, theirs = _return_share(comparison.candidate_us), _return_share(comparison.reference_us)
    return (
        f"{comparison.candidate} returns only when the device is done ({mine:.0%} of its time has passed by then, "
        f"{theirs:.0%} for {comparison.reference}): {waiting[0]} waits. {READ_LATER}"
    )


def _seen_to_wait(comparison: Comparison, both: tuple[Asynchrony, Asynchrony] | None) -> str:
    """Most of what waits is C++, which no host call shows; but its thread sleeps."""
    if both is None:
        return ""
    ours, theirs = both
    more_us = ours.asleep * ours.to_ready_us - theirs.asleep * theirs.to_ready_us
    if not ours.where or not 0 < EXPLAINING * comparison.overhead_us.value <= more_us:
        return ""
    does, advice = "sleeps", f"If it waits for the device there: {READ_LATER[0].lower()}{READ_LATER[1:]}"
    if ours.for_device:
        does, advice = "waits for the device", READ_LATER
    where = f"for {ours.asleep:.0%} of its time before it returns, at {ours.where}"
    return f"{comparison.candidate} {does} {where}. {advice}"
