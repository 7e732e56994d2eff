"""The likely cause of a ratio over its limit, in words: what a person would look at first."""

import numpy as np

from perfsuite.measure.comparison import Comparison
from perfsuite.measure.hostcalls import HostCalls

WAITS = 0.8
"""A call whose time to return is above this share of its time to ready is said to wait for the device."""

HOST_CALL_US = 0.1
"""About what one Python or C call costs: the 27 500 calls of a `filter_jit` step over 607 arrays take it 4.5 ms longer
than the 2 calls of a flat one (2-core x86-64 machine, Python 3.11)."""

NOTICEABLE = 0.1
"""More host calls are named as the cause when they account for this share of the overhead."""

ASYNCHRONOUS = 0.5
"""A call whose time to return is below this share returns before the device is done."""


def likely_cause(comparison: Comparison, candidate: HostCalls, reference: HostCalls) -> str:
    """Name the cause of `comparison.ratio` from host calls and asynchrony."""
    causes = []
    if _return_share(comparison.candidate_us) > WAITS and _return_share(comparison.reference_us) < ASYNCHRONOUS:
        causes.append(
            f"{comparison.candidate} returns only when the device is done "
            f"({_return_share(comparison.candidate_us):.0%} of its time has passed by then, "
            f"{_return_share(comparison.reference_us):.0%} for {comparison.reference}): something in it waits"
        )
    causes.append(_host_cause(comparison, candidate, reference))
    return "; ".join(causes)


def _return_share(samples_us: np.ndarray) -> float:
    to_return, to_ready = np.median(samples_us, axis=0)
    return float(to_return / to_ready)


def _host_cause(comparison: Comparison, candidate: HostCalls, reference: HostCalls) -> str:
    more = candidate.total - reference.total
    counts = f"{candidate.total} host calls against {reference.total} of {comparison.reference}"
    if more * HOST_CALL_US < NOTICEABLE * comparison.overhead_us.value or more <= 0:
        return (
            f"not Python on the host ({counts}): the compiled program, dispatch in C++, a sleep, "
            "or work in another thread or in native code"
        )
    extra = {name: calls - reference.by_function.get(name, 0) for name, calls in candidate.by_function.items()}
    worst = sorted((name for name in extra if extra[name] > 0), key=lambda name: (-extra[name], name))[:3]
    return f"Python on the host: {counts}, above all {', '.join(f'{name} (+{extra[name]})' for name in worst)}"
