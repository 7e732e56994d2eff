"""The terminal with --perf-trace: the metrics of every trace, and how to open one."""

from pathlib import Path

import pytest

from perfsuite.measure.io import relative
from perfsuite.measure.metric import Metric
from perfsuite.measure.words import number, plural
from perfsuite.session.records import TraceRecord
from perfsuite.session.session import PerfSession

HOW = "open a perfetto_trace.json.gz with https://ui.perfetto.dev, or a folder with TensorBoard's profile plugin, xprof"


def trace_summary(reporter: pytest.TerminalReporter, session: PerfSession, rootpath: Path) -> None:
    """Device time, wall time, idle share and the longest operations, trace by trace."""
    root = session.options.traces
    if root is None:
        return
    reporter.section("perfsuite traces", sep="=")
    for record in session.records:
        if record.traces:
            reporter.line(record.test)
        for trace in record.traces:
            _trace(reporter, trace, root)
    count = sum(len(record.traces) for record in session.records)
    reporter.line(f"{plural(count, 'trace')} below {relative(root, rootpath)}: {HOW}")


def _trace(reporter: pytest.TerminalReporter, trace: TraceRecord, root: Path) -> None:
    folder = relative(Path(trace.folder), root)
    if trace.note:
        reporter.line(f"  {trace.name}: no metrics ({trace.note}): {folder}", yellow=True)
        return
    metrics = ", ".join(_in_words(trace.name, metric) for metric in trace.metrics)
    reporter.line(f"  {trace.name}: {metrics} ({plural(trace.runs, 'run')}): {folder}")
    for name, us, count in trace.longest:
        reporter.line(f"    {number(us):>9} us  {number(count):>5} x  {name}")


def _in_words(trace: str, metric: Metric) -> str:
    """`device 31.2 us`, `idle share 0.012`."""
    what = metric.name.removeprefix(f"{trace} trace ")
    return f"{what} {metric.value:.3f}" if metric.unit == "share" else f"{what} {number(metric.value)} us"
