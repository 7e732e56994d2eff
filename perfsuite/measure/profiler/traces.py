"""`read_trace`: where the time of a recorded block went, operation by operation.

A trace says why, the other instruments how much: none of its metrics gates, for they include the profiler's cost.
`trace_recording` records. The files are read with the public `jax.profiler.ProfileData` alone, but JAX does not promise
the names in them. Those of the host and of the CPU are from traces of jax 0.10.2. Those of GPUs and TPUs are from XLA's
sources (`xla/tsl/profiler/utils/xplane_schema.cc`, `xla/backends/profiler/gpu/cupti_collector.cc`); no trace of either
was at hand.

- `/host:CPU` has a line a thread. Operations of the CPU are on any of them (`tf_XLAEigen/...`,
  `tf_XLAPjRtCpuClient/...`, and `python` where one is too small to be handed over), and have an `hlo_op`. An operation
  may go on in other threads after its event: `end: <name>` is the moment when it was over.
- `/device:GPU:0` has a line a stream, `Stream #13(Compute,MemcpyH2D)`; other lines sum these up.
- `/device:TPU:0` has the operations on `XLA Ops`, nested, with the text of their HLO as name.
"""

import bisect
import dataclasses
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from jax.profiler import ProfileData

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric

LONGEST = 10

BLOCK_MARK = "perfsuite: block"
"""The name of the block that `record` records, in the trace itself."""
RUN_MARK = "perfsuite: run"

HOST = "/host:CPU"
_DEVICE = re.compile(r"/device:([A-Z]+):(\d+)")
_OVER = "end: "
_ALLOCATIONS = ("memalloc_details", "MemFree_details", "MemoryResidency_details")

Span = tuple[float, float]


class NothingRanError(MeasurementError):
    """No device ran an operation in a trace."""


@dataclasses.dataclass(frozen=True)
class TracedOperation:
    """An operation of a program, over all its runs. `us` excludes the operations inside it, such as a loop's body.

    `name` is that of the instruction in the compiled HLO, which `perf.program` has, and `module` that of its program:
    "dot.4" in "jit_step".
    """

    name: str
    module: str
    us: float
    count: int

    def __str__(self) -> str:
        return f"{self.module}: {self.name}" if self.module else self.name


@dataclasses.dataclass(frozen=True)
class Trace:
    """One recorded block, in microseconds of all `runs` together.

    `wall_us`: from the block's start until its work was done; without `record`'s mark, from the first event to the
    last. `device_us`: at least one device ran an operation, other than a copy to or from the host. `idle_share`: the
    part of the time between the first operation's start and the last one's end in which none ran. Where there is an
    accelerator, the CPU is no device.
    """

    path: Path | None
    runs: int
    wall_us: float
    device_us: float
    idle_share: float
    operations: tuple[TracedOperation, ...]
    """The longest first."""

    suffixes: ClassVar = (" trace device", " trace wall", " trace idle share")

    @property
    def longest(self) -> tuple[TracedOperation, ...]:
        """The ten longest operations."""
        return self.operations[:LONGEST]

    def metrics(self, name: str) -> list[Metric]:
        """Metrics of a run, which never gate."""
        values = (self.device_us / self.runs, "us"), (self.wall_us / self.runs, "us"), (self.idle_share, "share")
        return [
            Metric(name + suffix, value, unit, "info")
            for suffix, (value, unit) in zip(self.suffixes, values, strict=True)
        ]

    def in_words(self) -> str:
        """Where the time of a run went: on the device, and its longest operations."""
        device, wall = self.device_us / self.runs, self.wall_us / self.runs
        head = f"traced, a run: {wall:.4g} us, device {device:.4g} us, idle share {self.idle_share:.3f}"
        lines = [f"{each}: {each.us / self.runs:.4g} us, {_times(each.count / self.runs)}" for each in self.longest]
        return "\n  ".join([f"{head}; the longest operations:", *lines])


class Ran(NamedTuple):
    """One run of one operation, in nanoseconds of the trace's own clock. `line` numbers the threads and streams.

    `until` is when it was over, later than `end` where other threads went on with it. `run` numbers the runs of its
    program, where the trace does.
    """

    line: int
    name: str
    start: float
    end: float
    until: float
    module: str
    device: str
    run: int = 0


@dataclasses.dataclass
class _Events:
    """The events of one trace that matter here."""

    on_devices: list[Ran] = dataclasses.field(default_factory=list)
    on_host: list[Ran] = dataclasses.field(default_factory=list)
    block_ns: float = 0.0
    runs: int = 0
    first: float = float("inf")
    last: float = float("-inf")

    def include(self, start: float, end: float) -> None:
        """Let the trace last from `start` at the latest to `end` at the earliest."""
        self.first, self.last = min(self.first, start), max(self.last, end)


def read_trace(path: str | os.PathLike) -> Trace:
    """Read an `.xplane.pb` file, or the newest one below a directory.

    Raises `MeasurementError`, naming the path, if there is none or it is damaged, and `NothingRanError` if no device
    ran an operation in it.
    """
    file = _newest(Path(path))
    events = _read(file)
    operations = events.on_devices or events.on_host  # beside an accelerator, what XLA runs on the host is its work
    if not operations:
        raise NothingRanError(
            f"{file}: no device ran an operation in this trace. Either the block ran nothing on a device, or it ended "
            "before its work was done, or the driver of a GPU keeps its counters from this user"
        )
    busy = merged((ran.start, ran.until) for ran in operations)
    return Trace(
        path=file,
        runs=events.runs or 1,
        wall_us=(events.block_ns or events.last - events.first) / 1e3,
        device_us=length(busy) / 1e3,
        idle_share=_idle_share(busy),
        operations=tuple(_operations(operations)),
    )


def planes_of(path: Path) -> list[Any]:
    """The planes of an `.xplane.pb` file. Raises `MeasurementError`, naming the file, if it is no such file."""
    try:
        planes = list(ProfileData.from_file(str(path)).planes)
    except RuntimeError as error:
        raise MeasurementError(f"{path}: the trace is damaged, or is no XPlane file ({error})") from None
    if not planes:
        raise MeasurementError(f"{path}: the trace is empty")
    return planes


def merged(spans: Iterable[Span]) -> list[Span]:
    """The union of `spans`, as spans that do not touch, in order."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def length(spans: Iterable[Span]) -> float:
    """The sum of the lengths."""
    return sum(end - start for start, end in spans)


def _newest(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise MeasurementError(f"{path}: there is no such trace")
    if found := list(path.rglob("*.xplane.pb")):
        return max(found, key=lambda file: (file.stat().st_mtime_ns, file))
    raise MeasurementError(f"{path}: no trace (*.xplane.pb) in this directory")


def _read(path: Path) -> _Events:
    planes = planes_of(path)
    events = _Events()
    # From Python 3.12 on, jaxlib's type of an event's stats draws a DeprecationWarning when it is first made. Where
    # warnings are errors that ends the process (jaxlib 0.12.0, `nb_type_new("event_stats")`).
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        lines = 0
        for plane in planes:
            numbered = list(enumerate(plane.lines, lines))
            lines += len(numbered)
            if device := _DEVICE.fullmatch(plane.name):
                _read_device(numbered, " ".join(device.groups()), events)
            elif plane.name == HOST:
                _read_host(numbered, events)
    return events


def _read_host(lines: list[tuple[int, Any]], events: _Events) -> None:
    over: dict[int, float] = {}
    flows: list[tuple[int | None, Ran]] = []
    for number, line in lines:
        for raw in line.events:
            name, start, end = raw.name, raw.start_ns, raw.end_ns
            if name.startswith("ThreadpoolListener::"):
                continue  # a third of all events, and none matters here
            events.include(start, end)
            if name == BLOCK_MARK:
                events.block_ns += end - start
            elif name == RUN_MARK:
                events.runs += 1
            else:
                stats = dict(raw.stats)
                if name.startswith(_OVER) and "_c" in stats:
                    over[stats["_c"]] = start
                # CUPTI gives the launch of a kernel the kernel's `hlo_op`, and a correlation.
                elif "hlo_op" in stats and "correlation_id" not in stats:
                    device = f"CPU {stats.get('device_ordinal', 0)}"
                    module, run = str(stats.get("hlo_module", "")), stats.get("run_id", 0)
                    ran = Ran(number, str(stats["hlo_op"]), start, end, end, module, device, run)
                    flows.append((stats.get("_p"), ran))
    for flow, ran in flows:
        events.on_host.append(ran if flow is None else ran._replace(until=max(ran.end, over.get(flow, ran.end))))


def _read_device(lines: list[tuple[int, Any]], device: str, events: _Events) -> None:
    modules = sorted(
        (raw.start_ns, raw.end_ns, re.sub(r"\(\d+\)$", "", raw.name))
        for _, line in lines
        if line.name == "XLA Modules"
        for raw in line.events
    )
    # A device with streams has the same kernels a second time, on "XLA Ops".
    streams = [(number, line) for number, line in lines if line.name.startswith("Stream #")]
    for number, line in streams or [(number, line) for number, line in lines if line.name == "XLA Ops"]:
        for raw in line.events:
            stats = dict(raw.stats)
            # A copy without an `hlo_op` is not part of a program.
            if any(stat in stats for stat in _ALLOCATIONS) or ("memcpy_details" in stats and "hlo_op" not in stats):
                continue
            start, end = raw.start_ns, raw.end_ns
            name = str(stats.get("hlo_op") or _hlo_name(raw.name))
            module = str(stats.get("hlo_module") or _around(modules, start))
            events.on_devices.append(Ran(number, name, start, end, end, module, device))
            events.include(start, end)


def _hlo_name(text: str) -> str:
    """`%fusion.3 = bf16[8]{0} fusion(...)` is `fusion.3`; a kernel has its own name."""
    return text.split(" = ")[0].removeprefix("%") if text.startswith("%") else text


def _around(modules: list[tuple[float, float, str]], moment: float) -> str:
    place = bisect.bisect_right(modules, moment, key=lambda module: module[0]) - 1
    return modules[place][2] if place >= 0 and moment <= modules[place][1] else ""


def _idle_share(busy: list[Span]) -> float:
    """The part of the time from the first start to the last end that `busy`, merged spans, leave free."""
    whole = busy[-1][1] - busy[0][0]
    return 1 - length(busy) / whole if whole else 0.0


def _operations(operations: list[Ran]) -> list[TracedOperation]:
    totals: dict[tuple[str, str], list[float]] = defaultdict(list)
    for ran, own in _own_times(operations):
        totals[ran.module, ran.name].append(own)
    summed = [TracedOperation(name, module, sum(ns) / 1e3, len(ns)) for (module, name), ns in totals.items()]
    return sorted(summed, key=lambda operation: (-operation.us, operation.module, operation.name))


def _times(count: float) -> str:
    return f"{count:g} time" if count == 1 else f"{count:g} times"


def _own_times(operations: Iterable[Ran]) -> list[tuple[Ran, float]]:
    """Each run of an operation with its own time, which for a loop excludes the operations in its body.

    An operation's time in other threads, after its event, counts until the next operation of its program starts: XLA
    reports its end only after what followed it in that thread.
    """
    lines: dict[int, list[Ran]] = defaultdict(list)
    programs: dict[tuple[str, int], list[Ran]] = defaultdict(list)
    for ran in operations:
        lines[ran.line].append(ran)
        programs[ran.device, ran.run].append(ran)
    own: dict[int, float] = defaultdict(float)
    for line in lines.values():
        _add_nested(line, own)
    for program in programs.values():
        _add_in_other_threads(program, own)
    return [(ran, own[id(ran)]) for line in lines.values() for ran in line]


def _add_nested(line: list[Ran], own: dict[int, float]) -> None:
    around: list[Ran] = []
    for ran in sorted(line, key=lambda ran: (ran.start, -ran.end)):
        while around and around[-1].end <= ran.start:
            around.pop()
        if around:
            own[id(around[-1])] -= min(ran.end, around[-1].end) - ran.start
        own[id(ran)] += ran.end - ran.start
        around.append(ran)


def _add_in_other_threads(program: list[Ran], own: dict[int, float]) -> None:
    later: list[Span] = []  # spans of the operations that start later, apart from each other, the earliest last
    for ran in sorted(program, key=lambda ran: (ran.start, -ran.end), reverse=True):
        rest = ran.until - ran.end
        start, until = ran.start, ran.until
        while later and later[-1][0] <= ran.until:
            span = later.pop()
            rest -= max(0.0, min(span[1], ran.until) - max(span[0], ran.end))
            until = max(until, span[1])
        later.append((start, until))
        own[id(ran)] += rest
