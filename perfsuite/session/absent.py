"""Recorded metrics that are not made any more: a gate that is gone must be said, as loudly as one that fails."""

from collections.abc import Collection, Iterator, Mapping

from perfsuite.gate.baseline import Entry
from perfsuite.gate.environment import incomparable
from perfsuite.gate.verdict import Result, Verdict, judge_absent
from perfsuite.measure.metric import Metric
from perfsuite.session.session import PerfSession, test_of


def absent(
    session: PerfSession,
    test: str,
    metrics: Collection[Metric],
    unknown: Mapping[tuple[str, str | None], str],
    lost: str = "",
) -> list[Result]:
    """The gates of recorded metrics that a test did not make. It came to its end, or to what `lost` says.

    `unknown` says of metrics, by id and target, why their instrument could not tell them.
    """
    if not session.mode.gates:
        return []
    made = {(metric.id, metric.target) for metric in metrics}
    results = (
        judge_absent(
            test, id, entry, target, unknown.get((id, target)) or lost or _why_not_here(session, entry, target)
        )
        for id, entry, target in _recorded(session, session.test_key(test))
        if (id, target) not in made
    )
    return [result for result in results if result.verdict not in _removed(session)]


def gone(session: PerfSession) -> list[Result]:
    """The gates of recorded metrics whose tests are gone from a file that was collected whole, or passed unmeasured.

    Metrics that cannot be made here are left out: their tests may be there on another machine.
    """
    if not session.mode.gates:
        return []
    if _removed(session):
        return []
    keys = {key for baselines in session.known_files() for key in session.gone_tests(baselines.metrics)}
    return [
        judge_absent(test_of(key), id, entry, target, "")
        for key in sorted(keys)
        for id, entry, target in _recorded(session, key)
        if not _why_not_here(session, entry, target)
    ]


def _removed(session: PerfSession) -> tuple[Verdict, ...]:
    """The verdicts of metrics that --perf-save removes, and says so itself."""
    return (Verdict.MISSING,) if "missing" in session.options.save else ()


def _recorded(session: PerfSession, key: str) -> Iterator[tuple[str, Entry, str | None]]:
    """What gates of the recorded metrics of a test, and may come from this session: id, entry and target."""
    for baselines in session.known_files():
        target = None if baselines.device == session.device else baselines.device
        for id, entry in baselines.metrics.get(key, {}).items():
            # What was measured on a target cannot be made here.
            if entry.gates and (target is None or entry.provenance == "compiled"):
                yield id, entry, target


def _why_not_here(session: PerfSession, entry: Entry, target: str | None) -> str:
    """Why this session may lack a metric though its test is as it was; empty where it may not.

    Its compiler is absent, or the metric could not be compared if it were there.
    """
    if target is not None:
        from perfsuite.measure.targets import targets  # most baselines are of the present device
        from perfsuite.measure.targets.target_available import TargetUnavailable, check_available

        try:
            check_available(targets.target(target).platform)
        except (ValueError, TargetUnavailable) as error:
            return str(error)
    now, then = session.environment_of(target), entry.environment
    if then is not None and then.process_count != now.process_count:
        return f"process count differs ({then.process_count}, now {now.process_count})"
    return incomparable(entry.kind, entry.unit, then, now) or ""
