"""The terminal: the session's header and the closing summary that lists every gate."""

import collections
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfsuite.gate.environment import is_known_kind, namesakes
from perfsuite.gate.verdict import Gate, Verdict
from perfsuite.measure.measurement import title
from perfsuite.measure.words import number, span, table
from perfsuite.report import text

if TYPE_CHECKING:
    from perfsuite.gate.baseline import Change
    from perfsuite.gate.baseline_file import SaveResult
    from perfsuite.session.session import PerfSession

COLORS: dict[Verdict, dict[str, bool]] = {
    "fail": {"red": True},
    "inconclusive": {"yellow": True},
    "improved": {"green": True},
    "not comparable": {"yellow": True},
    "new": {"cyan": True},
}
EXPLAINED: tuple[Verdict, ...] = ("fail", "inconclusive", "not comparable", "improved")
"""Verdicts whose reason is written out below the table, in this order."""


LONGEST_NAME = 60


def header(session: "PerfSession", rootpath: Path) -> list[str]:
    """Device, versions and baseline files, for the top of the session: a line for each target that is named."""
    environment = session.environment
    named = ((name, getattr(environment, name)) for name in ("jax", "jaxlib", "equinox"))
    versions = [f"{name} {version}" for name, version in named if version]
    devices = f"{environment.device_count} x {environment.device_kind}"
    if environment.process_count > 1:
        devices += f" in {environment.process_count} processes"
    return [
        f"perfsuite: {devices} ({environment.processor}), {', '.join(versions)}",
        *_naming(session, rootpath),
        f"perfsuite: baselines {_baselines(session, None, rootpath)}, size {session.options.size}",
        *(f"perfsuite: {name}: {_baselines(session, name, rootpath)}" for name in session.options.targets),
    ]


def _naming(session: "PerfSession", rootpath: Path) -> list[str]:
    """How the baseline file came by its name, where that needs a word."""
    kind, path = session.environment.device_kind, relative(session.path_of(None), rootpath)
    lines = []
    if not is_known_kind(kind):
        lines.append(f"perfsuite: no device of the kind {kind!r} is known here: its file, {path}, is named after that")
    if others := namesakes(kind, session.baselines_of(None).environments.values()):
        lines.append(
            f"perfsuite: {path} has metrics of another kind, too, which has the same name: {', '.join(others)}"
        )
    return lines


def summary(
    reporter: pytest.TerminalReporter,
    session: "PerfSession",
    rootpath: Path,
    saved: "Sequence[SaveResult]",
    not_saved: str,
) -> None:
    """Every gate of the session in one table, then what needs a look, then what was saved."""
    gates = [gate for record in session.records for gate in record.gates]
    if gates:
        reporter.section("perfsuite", sep="=")
        _table(reporter, gates)
        _explanations(reporter, gates)
        _missing(reporter, session)
        counts = collections.Counter(gate.verdict for gate in gates)
        reporter.line(f"{len(gates)} metrics: {', '.join(f'{count} {name}' for name, count in counts.most_common())}")
    _programs(reporter, session, rootpath)
    for result in saved:
        _saved(reporter, result, rootpath)
    if not_saved:
        reporter.line(not_saved, red=True, bold=True)


def _programs(reporter: pytest.TerminalReporter, session: "PerfSession", rootpath: Path) -> None:
    compiled = sum(record.compiled for record in session.records)
    cached = sum(record.cached for record in session.records)
    if compiled or cached:
        where = f"the cache ({relative(session.cache, rootpath)})" if session.cache else "a cache"
        reporter.line(f"{compiled + cached} programs: {compiled} compiled, {cached} from {where}")


def _baselines(session: "PerfSession", target: str | None, rootpath: Path) -> str:
    count = sum(map(len, session.baselines_of(target).metrics.values()))
    on_file = f"{count} metrics" if count else "no metrics yet: pytest --perf-save records them"
    return f"{relative(session.path_of(target), rootpath)} ({on_file})"


def _table(reporter: pytest.TerminalReporter, gates: list[Gate]) -> None:
    rows = [
        (
            f"  {title(_clipped(gate.metric.name), gate.metric.target)}",
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
    text = table(rows, columns)
    head, *lines = text.splitlines()
    reporter.line(head, bold=True)
    test = None
    for gate, line in zip(gates, lines, strict=True):
        if gate.test != test:
            test = gate.test
            reporter.line(test)
        reporter.line(line, **COLORS.get(gate.verdict, {}))


def _clipped(name: str) -> str:
    """One long name must not push the other columns off the screen; the messages below the table have it whole."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def _explanations(reporter: pytest.TerminalReporter, gates: list[Gate]) -> None:
    for verdict in EXPLAINED:
        for gate in gates:
            if gate.verdict == verdict:
                reporter.line(f"{verdict}: {gate.test}: {text.in_full(gate)}", **COLORS[verdict])
    new = [gate for gate in gates if gate.verdict == "new"]
    if new:
        reporter.line(f"new: {len(new)} metrics have no baseline: pytest --perf-save records them", **COLORS["new"])


def _missing(reporter: pytest.TerminalReporter, session: "PerfSession") -> None:
    if session.options.save:
        return
    for test, name in session.missing():
        reporter.line(
            f"missing: {test}: {name} is on file but was not measured: pytest --perf-save trims it", yellow=True
        )


def _saved(reporter: pytest.TerminalReporter, saved: "SaveResult", rootpath: Path) -> None:
    counts = {
        "created": len(saved.created),
        "updated": len(saved.updated()),
        "trimmed": len(saved.trimmed),
        "kept": len(saved.kept) + saved.untouched,
    }
    state = "saved" if saved.written else "unchanged"
    reporter.line(f"{relative(saved.path, rootpath)} {state}: {', '.join(f'{n} {what}' for what, n in counts.items())}")
    for change in saved.changes:
        if change.action in ("update", "trim"):
            reporter.line(f"  {_change(change)}", **_change_color(change))


def _change(change: "Change") -> str:
    where = f"{change.test}: {change.name}"
    if change.new is None or change.old is None:
        return f"{change.action} {where}"
    versions = f" ({', '.join(change.versions)})" if change.versions else ""
    values = f"{number(change.old.value)} -> {number(change.new.value)} {change.new.unit}"
    return f"{change.action} {where}: {values}, {change.direction}{versions}"


def _change_color(change: "Change") -> dict[str, bool]:
    return {"better": {"green": True}, "worse": {"red": True}}.get(change.direction, {})


def relative(path: Path, rootpath: Path) -> str:
    """A path as it is seen from `rootpath`, in full where it lies elsewhere."""
    return str(path.relative_to(rootpath)) if path.is_relative_to(rootpath) else str(path)
