"""The terminal with --perf-trace: the metrics of every trace, and how to open one."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfsuite.measure.measurement import Metric
from perfsuite.measure.words import number
from perfsuite.report.terminal.terminal import relative
from perfsuite.session.trace_record import TraceRecord

if TYPE_CHECKING:
    from perfsuite.session.session import PerfSession

NAMED = 3
"""Tests without a trace that are named."""

HOW = "open a perfetto_trace.json.gz with https://ui.perfetto.dev, or a folder with TensorBoard's profile plugin, xprof"


def summary(reporter: pytest.TerminalReporter, session: "PerfSession", rootpath: Path) -> None:
    """Host time, device time, idle share, compilations, transfers and the longest operations, trace by trace."""
    root = session.options.traces
    if root is None:
        return
    reporter.section("perfsuite traces", sep="=")
    for record in session.records:
        if record.traces:
            reporter.line(record.test)
        for trace in record.traces:
            _trace(reporter, trace, root)
    if untraced := [record.test for record in session.records if not record.traces]:
        named = ", ".join(untraced[:NAMED]) + (f" and {len(untraced) - NAMED} more" if len(untraced) > NAMED else "")
        reporter.line(f"no trace of {named}: perf.trace and perf.trace_block record what no other instrument runs")
    count = sum(len(record.traces) for record in session.records)
    reporter.line(f"{count} traces below {relative(root, rootpath)}: {HOW}")


def _trace(reporter: pytest.TerminalReporter, trace: TraceRecord, root: Path) -> None:
    folder = relative(Path(trace.folder), root)
    if trace.note:
        reporter.line(f"  {trace.name}: no metrics ({trace.note}): {folder}", yellow=True)
        return
    runs = f"{trace.runs} run" if trace.runs == 1 else f"{trace.runs} runs"
    metrics = ", ".join(_metric(trace.name, made) for made in trace.metrics)
    reporter.line(f"  {trace.name}: {metrics} ({runs}): {folder}")
    for name, us, count in trace.longest:
        reporter.line(f"    {number(us):>9} us  {number(count):>5} x  {name}")


def _metric(name: str, made: Metric) -> str:
    """`host 31.2 us`, `2 compiles (jit_step 2)`."""
    what = made.name.removeprefix(f"{name} trace ")
    if made.unit == "us":
        return f"{what} {number(made.value)} us"
    if made.unit == "share":
        return f"{what} {made.value:.3f}"
    parts = f" ({', '.join(f'{part} {count}' for part, count in made.detail.items())})" if made.detail else ""
    return f"{what} {number(made.value)}{parts}"
