"""With --perf-changed: a call that is as it was when its baseline was recorded is not timed again.

What its baseline says takes the place of what would be measured. Everything that speaks against that has a call timed:
another machine or another version, a baseline without a fingerprint, a budget that the recorded value does not keep.
"""

import contextvars
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from perfsuite.gate.baseline import Entry
from perfsuite.gate.verdict import judge_budget
from perfsuite.measure.call import Call
from perfsuite.measure.errors import MeasurementError, RecompilationError
from perfsuite.measure.fingerprint.fingerprint import Fingerprint, differing, fingerprint, together
from perfsuite.measure.fingerprint.values import Unknown
from perfsuite.measure.later import when_read
from perfsuite.measure.metric import Metric
from perfsuite.session.recorder import Measured
from perfsuite.session.session import Need, PerfSession

T = TypeVar("T")

_TIMED: tuple[str, tuple[Need, ...]] = ("a timing", ("quiet",))


@dataclasses.dataclass(frozen=True)
class Look:
    """A look at calls before they are timed: their fingerprint, where there is one, and what need not be timed.

    `recorded` are the metrics of the baseline, by what they are called after the name; empty where the calls have to
    be timed. `left` says that other processes time them.
    """

    fingerprint: Fingerprint | None = None
    recorded: Mapping[str, Metric] = dataclasses.field(default_factory=dict)
    left: bool = False

    def of(self, metrics: Iterable[Metric]) -> list[Metric]:
        """Metrics that were timed, with the fingerprint."""
        kept = None if self.fingerprint is None else dict(self.fingerprint)
        return [dataclasses.replace(metric, fingerprint=kept) for metric in metrics]


@dataclasses.dataclass(frozen=True)
class Timed:
    """What an instrument is about to time: calls, and `how` ("to ready"), which is part of the fingerprint.

    `gated` are the metrics that it makes, by what they are called after the name, and `told` are those that nothing
    gates. `limits` are those of the budget, for some of them.
    """

    calls: Callable[[], Iterable[Call]]
    how: str
    gated: Sequence[str]
    told: Sequence[str] = ()
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)


class _HasToBeTimed(Exception):  # noqa: N818  (a report, not a fault)
    """The message says why."""


def look(session: PerfSession, test: str, measured: Measured, timed: Timed) -> Look:
    """Look whether calls have to be timed, in a session that takes fingerprints. Says in `session.looks` why they do.

    Raises `MeasurementError` or `RecompilationError` for calls that cannot be timed, and `Deferred` in a worker of
    pytest-xdist where they have to be.
    """
    __tracebackhide__ = True
    if not session.mode.fingerprints or session.group is not None:
        return Look()
    left = session.mode.leaves_times
    now: Fingerprint | None = None
    try:
        entries = _recorded(session, test, measured, timed) if session.options.changed else {}
        now = _fingerprint(timed)
        if left or not session.options.changed:
            return Look(now, left=left)
        recorded = next(iter(entries.values())).fingerprint or {}
        if parts := differing(recorded, now):
            raise _HasToBeTimed(f"{' and '.join(parts[:2])} changed")
        return Look(now, {what: _metric(measured, what, entry) for what, entry in entries.items()})
    except _HasToBeTimed as why:
        if str(why):
            session.looks[str(why)] += 1
        session.check(*_TIMED)
        return Look(now, left=left)


def when_timed(session: PerfSession, kind: type[T], measure: Callable[[], T], **known: Any) -> T:
    """A `kind` of which only the fields `known` are known. `measure` gives the others when a test reads one.

    Reading one raises `Deferred` in a worker of pytest-xdist.
    """
    context = contextvars.copy_context()

    def measured() -> T:
        __tracebackhide__ = True
        session.check(*_TIMED)
        return context.run(measure)

    return when_read(kind, measured, **known)


def _fingerprint(timed: Timed) -> Fingerprint:
    try:
        return together(map(fingerprint, timed.calls()), timed.how)
    except Unknown as why:
        raise _HasToBeTimed(f"no fingerprint: {why}") from None
    except (MeasurementError, RecompilationError):
        raise
    except Exception as error:  # of the code under test, which may not like to be profiled
        raise _HasToBeTimed(f"no fingerprint: {type(error).__name__}: {error}") from None


def _recorded(session: PerfSession, test: str, measured: Measured, timed: Timed) -> dict[str, Entry]:
    """The baselines that may stand for what is timed. Raises `_HasToBeTimed` where they may not."""
    entries = session.baselines.metrics.get(session.test_key(test), {})
    found = {what: entry for what in timed.gated if (entry := entries.get(measured.id_of(what))) is not None}
    if len(found) < len(timed.gated):
        raise _HasToBeTimed  # its verdict says so
    for what, entry in found.items():
        if entry.environment != session.environment or entry.provenance != "measured":
            raise _HasToBeTimed("the machine or a version is another one")
        if not entry.fingerprint or entry.fingerprint != found[timed.gated[0]].fingerprint:
            raise _HasToBeTimed("its baseline has no fingerprint")
        if what in timed.limits:
            gate = judge_budget(test, _metric(measured, what, entry), timed.limits[what])
            if gate.verdict != "unchanged":
                raise _HasToBeTimed("its baseline does not keep the budget")
    told = {
        what: entry
        for what in timed.told
        if (entry := entries.get(measured.id_of(what))) is not None and entry.environment == session.environment
    }
    if missing := timed.limits.keys() - found.keys() - told.keys():
        raise _HasToBeTimed(f"{', '.join(sorted(missing))} has no baseline of this machine")
    return found | told


def _metric(measured: Measured, what: str, entry: Entry) -> Metric:
    """The metric that stands for a timing."""
    return Metric(
        f"{measured.name} {what}",
        entry.value,
        entry.unit,
        entry.kind,
        entry.better,
        entry.interval,
        entry.samples,
        id=measured.id_of(what),
        recorded=True,
    )
