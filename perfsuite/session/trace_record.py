"""`TraceRecord`: one trace of a perf test, as reports show it; and the folder that it is in."""

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from perfsuite.measure.measurement import Metric

if TYPE_CHECKING:
    from perfsuite.measure.profiler.traces import Trace

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


def record_of(name: str, folder: Path, trace: "Trace") -> TraceRecord:
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
