"""What one test measured, in plain values: it travels between processes, and is saved, judged and reported."""

import dataclasses
import hashlib
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from perfsuite.gate.verdict import Result
from perfsuite.measure.metric import Metric

if TYPE_CHECKING:  # what is kept are plain values, which sessions have that time and compile nothing
    from perfsuite.measure.program.program import EstimatedOperation, Program
    from perfsuite.measure.trace import Trace

LONGEST_PART = 80
"""Characters of one folder's name. Most file systems allow 255 bytes."""


@dataclasses.dataclass(frozen=True)
class TraceRecord:
    """A trace that was kept below `folder`, with its metrics, all of kind info; or a `note` why there are none.

    `longest` are the longest operations: (module and name, us a run, times a run).
    """

    name: str
    folder: str
    runs: int = 1
    metrics: tuple[Metric, ...] = ()
    longest: tuple[tuple[str, float, float], ...] = ()
    note: str = ""


MOST_BLOCKS = 200
"""The most operations and loops that are kept of a program: those that take longest."""


@dataclasses.dataclass(frozen=True)
class Block:
    """The first run of an operation, or a loop with all its iterations, in microseconds after the program's start.

    `lane` is "device", "collectives", "copies" or "loops". `end_us` is None without a source. The device waits for the
    last `waiting_us` of a collective or copy. The other fields are those of `EstimatedOperation`.
    """

    lane: str
    part: str
    where: str
    start_us: float
    end_us: float | None
    waiting_us: float = 0.0
    runs: int = 1
    limit: str | None = None
    basis: str = ""

    @property
    def own_us(self) -> float | None:
        """The time of all runs."""
        return None if self.end_us is None else (self.end_us - self.start_us) * self.runs

    @property
    def added_us(self) -> float | None:
        """What all runs add to the time of the program: of a collective or copy what the device waits for it."""
        return self.own_us if self.end_us is None or self.lane == "device" else self.waiting_us * self.runs


@dataclasses.dataclass(frozen=True)
class Timeline:
    """One run of a program by its estimates: the `blocks` in the order of their starts, without `others`.

    `us` is the time of all operations that have a source, `waiting_us` what the device waits for collectives of it.
    """

    us: float
    waiting_us: float
    blocks: tuple[Block, ...] = ()
    others: int = 0


@dataclasses.dataclass(frozen=True)
class ProgramRecord:
    """One program that a test compiled: what its metrics are called, and how it differs from the baseline's.

    `titles` are those of its metrics. `differences` are lines; empty where nothing is different, or where the program
    of the baseline is not in the cache of this machine (`compared` is False). `at_least`, `at_most` and `unestimated`
    are the places of what `Program` calls so. `timeline` is None where the device's rates are not known;
    `timeline_before` is that of the program of the baseline, where it differs.
    """

    label: str
    target: str | None
    device_kind: str
    compiler: str
    partitions: int
    cached: bool
    titles: tuple[str, ...]
    compared: bool = False
    differences: tuple[str, ...] = ()
    at_least: tuple[str, ...] = ()
    at_most: tuple[str, ...] = ()
    unestimated: tuple[str, ...] = ()
    timeline: Timeline | None = None
    timeline_before: Timeline | None = None


@dataclasses.dataclass(frozen=True)
class TestRecord:
    """What one test measured, as it travels from a pytest-xdist worker to the process that saves and reports."""

    __test__ = False  # no test class, whatever its name

    test: str
    passed: bool
    results: tuple[Result, ...]
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
    lost: str = ""
    """What does not work with the libraries that are installed, where it was skipped for that."""
    file: str = ""
    line: int = 0
    """Of the test, from 1; 0 where it is not known. The file is seen from the root."""
    blamed: tuple[str, int] | None = None
    """The line to look at where it failed (see `blame`)."""
    seconds: float = 0.0
    """That the body took."""
    programs: tuple[ProgramRecord, ...] = ()
    """Of sessions with --perf-report only."""
    unestimated: tuple[str, ...] = ()
    """The kernels without a cost estimate, each with its place: FLOP and bytes of their programs are not known."""
    notes: tuple[str, ...] = ()
    """What is to be said of the metrics, in lines."""
    packages: tuple[str, ...] = ()
    """The installed packages that the parts of its metrics name: only of sessions that save."""
    where: dict[str, str] = dataclasses.field(default_factory=dict)
    """The line of the call that made each metric, by its title."""
    tolerances: dict[str, float] = dataclasses.field(default_factory=dict)
    """By how much worse than its baseline a ratio or a time may be, by its title, where the test says it."""


def run_again(record: TestRecord, failed: TestRecord | None) -> TestRecord:
    """The record of a test that passed, with a note where it passed only because it was run again."""
    if failed is None or not record.passed:
        return record
    why = (failed.message.splitlines() or [failed.outcome])[0]
    note = f"{record.test} passed only when it was run again; before, it failed: {why}"
    return dataclasses.replace(record, notes=(*record.notes, note))


def trace_record(name: str, folder: Path, trace: "Trace") -> TraceRecord:
    """The record of a trace that lies below `folder`."""
    longest = tuple(
        (str(operation), operation.us / trace.runs, operation.count / trace.runs) for operation in trace.longest
    )
    return TraceRecord(name, str(folder), trace.runs, tuple(trace.metrics(name)), longest)


def trace_folder(root: Path, test: str, *names: str) -> Path:
    """The folder below `root` for a test's trace: one level for each folder, file, class and function of its id.

    `test_a.py::test_step[tiny]` and `step` give `test_a.py/test_step-tiny/step`. A part that a file system could not
    hold, or that would lead out of `root`, is shortened to plain ASCII and marked with eight digits of its hash.
    """
    path, _, inside = test.partition("::")
    function, bracket, parameters = inside.partition("[")
    parts = [*re.split(r"[/\\]", path), *function.split("::")]
    parts[-1] += bracket + parameters
    return root.joinpath(*(_plain(part) for part in [*parts, *names] if part))


def _plain(part: str) -> str:
    if named := re.fullmatch(r"(\w+)\[([\w.=+-]+)\]", part, re.ASCII):
        part = f"{named[1]}-{named[2]}"
    if re.fullmatch(r"\w[\w.=+-]*", part, re.ASCII) and len(part) <= LONGEST_PART:
        return part
    digest = hashlib.sha256(part.encode(errors="backslashreplace")).hexdigest()[:8]
    readable = re.sub(r"[^a-zA-Z0-9_=+-]+", "_", part).strip("_")[: LONGEST_PART - 9]
    return f"{readable}-{digest}" if readable else digest


def timeline_of(program: "Program") -> Timeline | None:
    """The timeline of a program; None where the device's rates are not known."""
    if program.known_us is None:
        return None
    blocks, begin = [], 0.0
    for each in program.programs or (program,):
        blocks += [_block(loop, begin, "loops") for loop in each.loops]
        for operation in each.operations:
            beside = "collectives" if operation.limit == "link" else "copies"
            blocks.append(_block(operation, begin, "device" if operation.waiting_us is None else beside))
        begin += each.known_us or 0.0
    longest = sorted(blocks, key=lambda block: -math.inf if block.own_us is None else -block.own_us)[:MOST_BLOCKS]
    # A loop is before what it runs.
    longest.sort(key=lambda block: (block.start_us, block.lane != "loops", -(block.end_us or 0.0)))
    others = len(blocks) - len(longest)
    return Timeline(
        _to_tenths_of_ns(program.known_us), _to_tenths_of_ns(program.waiting_us or 0.0), tuple(longest), others
    )


def _block(operation: "EstimatedOperation", begin: float, lane: str) -> Block:
    start, us = begin + operation.start_us, operation.estimated_us
    return Block(
        lane,
        operation.part,
        operation.where,
        _to_tenths_of_ns(start),
        None if us is None else _to_tenths_of_ns(start + us),
        _to_tenths_of_ns(operation.waiting_us or 0.0),
        operation.runs,
        operation.limit,
        operation.basis,
    )


def _to_tenths_of_ns(us: float) -> float:
    """What follows on something starts exactly where that ends."""
    return round(us, 4)
