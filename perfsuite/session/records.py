"""What one test measured, in plain values: it travels between processes, and is saved, judged and reported."""

import dataclasses

from perfsuite.gate.verdict import Gate
from perfsuite.measure.measurement import Metric
from perfsuite.session.plots import Distribution, Line, ProgramRecord
from perfsuite.session.trace_record import TraceRecord


@dataclasses.dataclass(frozen=True)
class TestRecord:
    """What one test measured, as it travels from a pytest-xdist worker to the process that saves and reports."""

    __test__ = False  # no test class, whatever its name

    test: str
    passed: bool
    ended: bool
    """Whether the test's body came to its end, so that a metric it did not measure is really gone."""
    gates: tuple[Gate, ...]
    metrics: tuple[Metric, ...]
    compiled: int = 0
    """Programs that a compiler was run for."""
    cached: int = 0
    """Programs whose facts were known from before."""
    traces: tuple[TraceRecord, ...] = ()
    """The profiler's traces, which are kept with --perf-trace. Their metrics are in no baseline file."""
    outcome: str = "passed"
    """passed, failed, skipped or error (where it failed before or after its body)."""
    message: str = ""
    """Why it failed or was skipped."""
    file: str = ""
    line: int = 0
    """Of the test, from 1; 0 where it is not known. The file is seen from the root."""
    seconds: float = 0.0
    """That the body took."""
    distributions: tuple[Distribution, ...] = ()
    """Like the lines and the programs, of sessions with --perf-report only."""
    lines: tuple[Line, ...] = ()
    programs: tuple[ProgramRecord, ...] = ()
