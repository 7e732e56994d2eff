"""The terminal of a session with --perf: its header, and the closing summary that lists every gate."""

import collections
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.environment import is_known_kind, namesakes
from perfsuite.gate.verdict import Gate, Verdict
from perfsuite.measure.io import relative
from perfsuite.measure.measurement import title
from perfsuite.measure.words import number, plural, span
from perfsuite.report import text
from perfsuite.report.model import SavedChange, SavedFile
from perfsuite.report.terminal.output import by_test, clipped
from perfsuite.session.session import PerfSession

COLORS: dict[Verdict, dict[str, bool]] = {
    "fail": {"red": True},
    "inconclusive": {"yellow": True},
    "improved": {"green": True},
    "not comparable": {"yellow": True},
    "new": {"cyan": True},
}
_CHANGE_COLORS = {"better": {"green": True}, "worse": {"red": True}}
EXPLAINED: tuple[Verdict, ...] = ("fail", "inconclusive", "not comparable", "improved")
"""The table is followed by the reasons of these verdicts, in this order."""


def session_header(session: PerfSession, rootpath: Path) -> list[str]:
    """Device, versions and baseline files, for the top of the session; a line for each named target."""
    environment = session.environment
    named = ((name, getattr(environment, name)) for name in ("jax", "jaxlib", "equinox"))
    versions = [f"{name} {version}" for name, version in named if version]
    devices = f"{environment.device_count} x {environment.device_kind}"
    if environment.process_count > 1:
        devices += f" in {environment.process_count} processes"
    lines = [
        f"{devices} ({environment.processor}), {', '.join(versions)}",
        *_file_name(session, rootpath),
        f"baselines {_baselines(session, None, rootpath)}, size {session.options.size}",
        *(f"{name}: {_baselines(session, name, rootpath)}" for name in session.options.targets),
    ]
    return [f"perfsuite: {line}" for line in lines]


def session_summary(
    reporter: pytest.TerminalReporter,
    session: PerfSession,
    rootpath: Path,
    saved: Sequence[SaveResult],
    not_saved: str,
) -> None:
    """Every gate of the session in one table, then what needs a look, then what was saved."""
    gates = [gate for record in session.records for gate in record.gates]
    if gates:
        reporter.section("perfsuite", sep="=")
        _table(reporter, gates)
        _explanations(reporter, gates)
        for test, name in () if session.options.save else session.missing():
            advice = "pytest --perf-save trims it"
            reporter.line(f"missing: {test}: {name} has a baseline but was not measured: {advice}", yellow=True)
        counts = collections.Counter(gate.verdict for gate in gates)
        verdicts = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        reporter.line(f"{plural(len(gates), 'metric')}: {verdicts}")
    _programs(reporter, session, rootpath)
    for result in saved:
        _saved(reporter, SavedFile.of(result, rootpath))
    if not_saved:
        reporter.line(not_saved, red=True, bold=True)


def _programs(reporter: pytest.TerminalReporter, session: PerfSession, rootpath: Path) -> None:
    compiled = sum(record.compiled for record in session.records)
    cached = sum(record.cached for record in session.records)
    if compiled or cached:
        where = f"the cache ({relative(session.cache, rootpath)})" if session.cache else "a cache"
        reporter.line(f"{plural(compiled + cached, 'program')}: {compiled} compiled, {cached} from {where}")


def _saved(reporter: pytest.TerminalReporter, file: SavedFile) -> None:
    reporter.line(f"{file.path} {file.summary}")
    for change in file.changes:
        if change.old is not None:
            reporter.line(f"  {_in_words(change)}", **_CHANGE_COLORS.get(change.direction, {}))


def _file_name(session: PerfSession, rootpath: Path) -> list[str]:
    """Where the baseline file's name may surprise: an unknown kind of device, or two kinds of one name."""
    kind, path = session.environment.device_kind, relative(session.path_of(None), rootpath)
    lines = []
    if not is_known_kind(kind):
        lines.append(f"unknown device kind {kind!r}: its baseline file is {path}")
    if others := namesakes(kind, session.baselines_of(None).environments.values()):
        lines.append(f"{path} also has metrics of another kind of device with the same name: {', '.join(others)}")
    return lines


def _baselines(session: PerfSession, target: str | None, rootpath: Path) -> str:
    count = sum(map(len, session.baselines_of(target).metrics.values()))
    recorded = plural(count, "metric") if count else "no metrics yet: pytest --perf-save records them"
    return f"{relative(session.path_of(target), rootpath)} ({recorded})"


def _table(reporter: pytest.TerminalReporter, gates: Sequence[Gate]) -> None:
    rows = [
        (
            f"  {title(clipped(gate.metric.name), gate.metric.target)}",
            span(gate.metric.value, gate.metric.interval),
            gate.metric.unit,
            "" if gate.limit is None else number(gate.limit),
            gate.source or "",
            "" if gate.baseline is None else number(gate.baseline),
            gate.verdict,
        )
        for gate in gates
    ]
    columns = ("metric", "value", "unit", "limit", "from", "baseline", "verdict")
    head, lines = by_test(columns, rows, [gate.test for gate in gates])
    reporter.line(head, bold=True)
    for line, index in lines:
        reporter.line(line, **({} if index is None else COLORS.get(gates[index].verdict, {})))


def _explanations(reporter: pytest.TerminalReporter, gates: Sequence[Gate]) -> None:
    for verdict in EXPLAINED:
        for gate in gates:
            if gate.verdict == verdict:
                reporter.line(f"{verdict}: {gate.test}: {text.in_full(gate)}", **COLORS[verdict])
    if new := sum(gate.verdict == "new" for gate in gates):
        reporter.line(f"new: {text.without_baseline(new)}", **COLORS["new"])


def _in_words(change: SavedChange) -> str:
    where = f"{change.action} {change.test}: {change.name}"
    if change.new is None or change.old is None:
        return where
    versions = f" ({', '.join(change.versions)})" if change.versions else ""
    return f"{where}: {number(change.old)} -> {number(change.new)} {change.unit}, {change.direction}{versions}"
