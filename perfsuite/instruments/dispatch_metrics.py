"""The metrics of the programs that a call runs: of `perf.dispatches`, and of `perf.host_calls`, which has them too."""

from perfsuite.gate.verdict import Evidence
from perfsuite.measure.private.capabilities import PROGRAM_RUNS
from perfsuite.measure.runtime.dispatches import MOVE_IN, SUFFIXES, Dispatches
from perfsuite.session.recorder import Recorder


def record_dispatches(recorder: Recorder, counted: Dispatches, name: str | None, *, instrument: str) -> str:
    """Record both counts as metrics of an instrument, and return the name that they got."""
    measured = recorder.measured(instrument, counted.label, *SUFFIXES, name=name)
    for metric, cause in zip(measured.metrics(counted.metrics(measured.name)), ("", MOVE_IN), strict=True):
        recorder.add(metric, evidence=Evidence(cause=cause))
    return measured.name


def leave_dispatches(recorder: Recorder, label: str, name: str | None, *, instrument: str) -> None:
    """Note that both counts are not known here, so that their baselines are not taken for missing."""
    measured = recorder.measured(instrument, label, *SUFFIXES, name=name)
    for suffix in SUFFIXES:
        recorder.unknown[measured.id_of(suffix), None] = PROGRAM_RUNS.sentence("perf.dispatches")
