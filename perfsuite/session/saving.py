"""The mode of a session with --perf-save: it takes every sampled metric from several processes.

What differs between processes (where memory and programs lie) is the same for all samples of one, so an interval of one
process would be too narrow for the next session. A baseline's interval is where one more process may lie.
"""

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest
import scipy

from perfsuite.gate.limits import Compared, Limits
from perfsuite.measure import progress
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.stats.error_rates import INFORMING_ERROR
from perfsuite.measure.words import number, plural
from perfsuite.processes import rerun
from perfsuite.processes.rerun import ProcessFailed
from perfsuite.session.mode import Pair, Sampled, Taken
from perfsuite.session.modes import Gating
from perfsuite.session.outcomes import test_id
from perfsuite.session.session import Deferred, PerfSession

LEAST_PROCESSES, MOST_PROCESSES = 3, 5

Seen = dict[str, list[Metric]]
"""What each process saw of each metric, by title."""


class Saving(Gating):
    """As gating, but sample until a metric is known well, and take it from several processes."""

    def __init__(self, session: PerfSession):
        super().__init__(session)
        self._ready: defaultdict[int, dict[str, list[Metric]]] = defaultdict(dict)
        """What each fresh process measured of tests whose turn has not come, by their ids."""

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        return self.confirmed(pair, pair.compare(), limits)

    def taken_again(self, item: pytest.Item, sampled: Mapping[str, Sampled]) -> Taken:
        """Measure the test in fresh processes, until its metrics are narrow or these are many."""
        session = self.session
        if not sampled or session.options.processes == 1 or session.group is not None:
            return Taken()
        if session.in_worker:
            raise Deferred("a ratio or a time, which --perf-save takes from several processes")
        seen = {title: [each.metric] for title, each in sampled.items()}
        # So much the interval may add to the limit before it counts as wide.
        allowed = {title: each.tolerance for title, each in sampled.items()}
        processes, failure = self._measured(item, seen, allowed)
        metrics = {title: over_processes(each) for title, each in seen.items()}
        said = [
            f"{item.nodeid}: {title}: {_wide(metric, seen[title])}"
            for title, metric in metrics.items()
            if len(seen[title]) > 1 and not is_narrow(metric, allowed[title])
        ]
        said += [
            f"{item.nodeid}: {title}: only {len(each)} of {processes} processes gave it with an interval"
            for title, each in seen.items()
            if len(each) < processes
        ]
        if failure:
            wanted = min(LEAST_PROCESSES, self._most)
            said.append(
                f"{item.nodeid}: its ratios and times are of {processes} of {wanted} processes, because a fresh "
                f"one measured nothing: {failure}"
            )
        return Taken(metrics, tuple(said))

    @property
    def _most(self) -> int:
        """The most processes for a test."""
        return self.session.options.processes or MOST_PROCESSES

    def _measured(self, item: pytest.Item, seen: Seen, allowed: Mapping[str, float]) -> tuple[int, str]:
        """Add what fresh processes see. Returns the number of processes, and why one of them saw nothing."""
        processes, most = 1, self._most
        while processes < most and (processes < LEAST_PROCESSES or not _all_narrow(seen, allowed)):
            try:
                metrics = self._in_process(item, processes)
            except ProcessFailed as error:
                return processes, str(error)
            processes += 1
            for metric in metrics:
                if metric.title in seen and metric.interval is not None:
                    seen[metric.title].append(metric)
        return processes, ""

    def _in_process(self, item: pytest.Item, process: int) -> list[Metric]:
        """What a test measures in a fresh process, by its number. Raises `ProcessFailed`.

        Of those that every test needs, a process goes on with the tests after it in the same file, as this one does, so
        that what they share is made once a process. A test that it does not come to starts another when it is its turn.
        """
        ready = self._ready[process]
        if item.nodeid not in ready:
            argument, items = rerun.of_file(item)
            coming = items[1:] if process < LEAST_PROCESSES else []
            others = [each.nodeid for each in coming if each.nodeid not in ready and self._may_be_sampled(each)]
            request = dataclasses.replace(self.request_for(item), argument=argument, others=others)
            beside = f" and up to {plural(len(others), 'test')} after it" if others else ""
            with progress.waiting(f"measuring {item.name}{beside} for the baseline in fresh process {process}"):
                ready.update(rerun.measure_again(item.config, request))
        return ready.pop(item.nodeid)

    def _may_be_sampled(self, item: pytest.Item) -> bool:
        """Whether a test that has not run yet may have a ratio or a time: its baseline has one, or it has none."""
        if item.get_closest_marker("perf") is None:
            return False
        test = test_id(item)
        known = self.session.baselines.metrics.get(self.session.test_key(test))
        return not known or self.session.samples(test)


def over_processes(seen: Sequence[Metric]) -> Metric:
    """One metric of what each process saw: the mean, with the interval that holds what one more process sees.

    That one is Student's prediction interval, of logarithms where all values are positive: the processes of another
    session differ as much as those of this one, and an interval of the mean alone would leave out one in three of them.
    But three may agree by chance, so it is at least as wide as what scatters within them leaves unknown of their mean.
    Two processes are too few for it: theirs are both intervals in one.
    """
    intervals = [metric.interval for metric in seen if metric.interval is not None]
    values = [metric.value for metric in seen]
    if len(seen) < LEAST_PROCESSES:
        interval = Interval(min(each.low for each in intervals), max(each.high for each in intervals))
        value = statistics.median(values)
    else:
        value, interval = _one_more([math.log(each) for each in values] if min(values) > 0 else values)
        if min(values) > 0:
            value, interval = math.exp(value), Interval(math.exp(interval.low), math.exp(interval.high))
        within = statistics.fmean(each.half_width for each in intervals) / math.sqrt(len(intervals))
        if math.isfinite(within):
            interval = interval.widened(max(0.0, within - interval.half_width))
    samples = sum(metric.samples or 0 for metric in seen)
    return dataclasses.replace(seen[0], value=value, interval=interval, samples=samples or None)


def _one_more(values: Sequence[float]) -> tuple[float, Interval]:
    """The mean of some values, and where one more of them lies with probability 1 - `INFORMING_ERROR`."""
    mean, count = statistics.fmean(values), len(values)
    quantile = -scipy.special.stdtrit(count - 1, INFORMING_ERROR / 2)
    half = float(quantile * statistics.stdev(values) * math.sqrt(1 + 1 / count))
    return mean, Interval(mean - half, mean + half)


def is_narrow(metric: Metric, allowed: float) -> bool:
    """Whether the end of the interval from which limits start is no further from the value than the share `allowed`.

    An end that is not bounded, as of the tail of a few samples, is recorded nowhere.
    """
    assert metric.interval is not None
    far = metric.interval.low if metric.better == "higher" else metric.interval.high
    return not math.isfinite(far) or abs(far - metric.value) <= allowed * abs(metric.value)


def _all_narrow(seen: Seen, allowed: Mapping[str, float]) -> bool:
    return all(is_narrow(over_processes(each), allowed[title]) for title, each in seen.items())


def _wide(metric: Metric, seen: Sequence[Metric]) -> str:
    assert metric.interval is not None
    values = ", ".join(number(each.value) for each in seen)
    end = metric.interval.low if metric.better == "higher" else metric.interval.high
    closer = "" if metric.kind == "ratio" else "use perf.compare, or "
    return (
        f"{len(seen)} processes saw {values} {metric.unit}, so the limit of its gate starts at {number(end)}; "
        f"for a closer one {closer}allow more seconds (--perf-seconds)"
    )
