"""What a session does where a test measures: a mode is a table of functions, chosen once, when the session starts.

`fresh` has the mode that gates, and measures in the same way what --perf-save records. Here are those of the processes
that `perfsuite against` starts.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.measure.metric import Metric

if TYPE_CHECKING:  # every session has a mode, and few time anything
    from perfsuite.gate.limits import Compared, Limits
    from perfsuite.measure.call import Call
    from perfsuite.measure.timing.block import Until
    from perfsuite.measure.timing.comparison import Comparison, Settled

MOMENT = 0.01
"""Seconds for each metric that a fresh process measures on the way to the comparison that is asked for."""

LOOK = 0.1
"""Seconds for a comparison of which only the order of magnitude is asked: enough for an interval of short calls."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """The two calls of one comparison, in the test `item`. `name` is unique in the test."""

    item: pytest.Item
    name: str
    candidate: "Call"
    reference: "Call"
    until: "Until"
    seconds: float

    @property
    def metric(self) -> str:
        """The name of the metric of the ratio."""
        return f"{self.name} ratio to {self.until}"

    def compare(self, *, seconds: float | None = None, settled: "Settled | None" = None) -> "Comparison":
        """Sample both calls, for at most `seconds`, or the pair's own. With 0, as few pairs as give any metric."""
        from perfsuite.measure.timing.comparison import compare_calls  # see the top

        seconds = self.seconds if seconds is None else seconds
        return compare_calls(self.candidate, self.reference, until=self.until, seconds=seconds, settled=settled)


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """`here(given)`, to be run at one place of the test `item` in fresh processes, each like one on another machine.

    It returns plain values. `metric` is the id of what the instrument measures. `under_valgrind` asks for one process,
    which Valgrind runs, and which has other tests of the file that count instructions too.
    """

    item: pytest.Item
    metric: str
    here: Callable[[Mapping[str, str]], Any]
    processes: int
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    under_valgrind: bool = False


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a fresh process hands back: the metrics of the test, or the values of an instrument.

    `failure` says why it handed nothing back, and can follow a colon.
    """

    metrics: list[Metric] = dataclasses.field(default_factory=list)
    values: Any = None
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class Mode:
    """What a session is for. The defaults gate nothing, and start no process."""

    compare: "Callable[[Pair, Limits], Compared]"
    """Compares the two calls of a pair, as well as the limits need it."""
    gates: bool = False
    """Whether metrics are judged at all."""
    seconds: Callable[[float], float] = float
    """The most time for one gate of a test that asks for so much."""
    seconds_to_know: Callable[[float], float] = float
    """The same for a gate whose metric is exact, and which only takes so long where it is in doubt."""
    timing: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Arguments for each timing of one call."""
    about_to_time: "Callable[[pytest.Item, Sequence[str], Sequence[Call]], None]" = lambda item, titles, calls: None
    """Called before a test times calls, with the titles of the metrics that it makes of them."""
    measure_again: Callable[[pytest.Item, Sequence[str]], Answer] = lambda item, titles: Answer(failure="none starts")
    """All metrics of a test by a fresh process: those with these titles are over their baselines."""
    elsewhere: Callable[[Elsewhere], list[Any] | None] = lambda asked: None
    """What each fresh process returned; None where the session starts none. Raises `MeasurementError`."""


def exact(note: "Callable[[str, Sequence[str], str | None, str | None], None]") -> Mode:
    """The first process on one side of `perfsuite against`: what is exact.

    It takes one look at what is sampled, which other processes time, and notes what that runs: test, titles of the
    metrics, and the hashes of programs and host calls.
    """
    from perfsuite.gate.limits import Compared  # see the top
    from perfsuite.measure.runtime.what_runs import host_calls_hash, programs_hash

    return Mode(
        compare=lambda pair, limits: Compared(pair.compare(seconds=LOOK)),
        seconds=lambda asked: MOMENT,
        about_to_time=lambda item, titles, calls: note(
            item.nodeid, titles, programs_hash(calls), host_calls_hash(calls)
        ),
    )


def timing_one_side(note: Callable[[str, str, float, str], None], seconds: float) -> Mode:
    """The other processes on one side of `perfsuite against`.

    Each times every comparison for `seconds`, and notes its times: test, name, value, unit.
    """
    import numpy as np  # see the top

    from perfsuite.gate.limits import Compared

    names: Counter[tuple[str, str]] = Counter()

    def compare(pair: Pair, limits: "Limits") -> "Compared":
        comparison = pair.compare(settled=lambda ratio, overhead: False)
        test = pair.item.nodeid
        # Under the name that the gate gives the metric.
        note(test, pair.metric, comparison.ratio.value, "x")
        names[test, pair.name] += 1
        number = names[test, pair.name]
        name = pair.name if number == 1 else f"{pair.name} #{number}"
        sides = ("candidate", comparison.candidate_us), ("reference", comparison.reference_us)
        for side, samples in sides:
            for moment, us in zip(("return", "ready"), np.median(samples, axis=0), strict=True):
                note(test, f"{name} {side} to {moment}", float(us), "us")
        return Compared(comparison)

    # What is known within this process may be another thing a second later: all of the time is used.
    return Mode(
        compare, seconds=lambda asked: seconds, seconds_to_know=lambda asked: seconds, timing={"precision": 0.0}
    )
