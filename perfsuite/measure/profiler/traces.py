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
"""The name of the block that is recorded, in the trace itself."""
RUN_MARK = "perfsuite: run"

_HOST = "/host:CPU"
_DEVICE = re.compile(r"/device:([A-Z]+):(\d+)")
_OVER = "end: "
_ALLOCATIONS = ("memalloc_details", "MemFree_details", "MemoryResidency_details")


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

    `wall_us`: from the block's start until its work was done. `device_us`: at least one device ran an operation, other
    than a copy to or from the host. `idle_share`: the part of the time between the first operation's start and the last
    one's end in which none ran. Where there is an accelerator, the CPU is no device.
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
        lines = [f"{each}: {each.us / self.runs:.4g} us, {each.count / self.runs:g} x" for each in self.longest]
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


def read_trace(path: Path) -> Trace:
    """Read the `.xplane.pb` file of a block that was recorded.

    Raises `MeasurementError`, naming the path, if it is damaged, and if no device ran an operation in it.
    """
    events = _read(path)
    operations = events.on_devices or events.on_host  # beside an accelerator, what XLA runs on the host is its work
    if not operations:
        raise MeasurementError(
            f"{path}: no device ran an operation in this trace. Either the block ran nothing on a device, or it ended "
            "before its work was done, or the driver of a GPU keeps its counters from this user"
        )
    busy = _merged((ran.start, ran.until) for ran in operations)
    busy_ns, whole_ns = sum(end - start for start, end in busy), busy[-1][1] - busy[0][0]
    own_ns: dict[tuple[str, str], list[float]] = defaultdict(list)
    for ran, ns in _own_times(operations):
        own_ns[ran.module, ran.name].append(ns)
    summed = [TracedOperation(name, module, sum(ns) / 1e3, len(ns)) for (module, name), ns in own_ns.items()]
    return Trace(
        path=path,
        runs=events.runs or 1,
        wall_us=events.block_ns / 1e3,
        device_us=busy_ns / 1e3,
        idle_share=1 - busy_ns / whole_ns if whole_ns else 0.0,
        operations=tuple(sorted(summed, key=lambda each: (-each.us, each.module, each.name))),
    )


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of `spans`, as spans that do not touch, in order."""
    union: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def _read(path: Path) -> _Events:
    try:
        planes = list(ProfileData.from_file(str(path)).planes)
    except RuntimeError as error:
        raise MeasurementError(f"{path}: the trace is damaged, or is no XPlane file ({error})") from None
    if not planes:
        raise MeasurementError(f"{path}: the trace is empty")
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
            elif plane.name == _HOST:
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


def _hlo_name(text: str) -> str:
    """`%fusion.3 = bf16[8]{0} fusion(...)` is `fusion.3`; a kernel has its own name."""
    return text.split(" = ")[0].removeprefix("%") if text.startswith("%") else text


def _around(modules: list[tuple[float, float, str]], moment: float) -> str:
    place = bisect.bisect_right(modules, moment, key=lambda module: module[0]) - 1
    return modules[place][2] if place >= 0 and moment <= modules[place][1] else ""


def _own_times(operations: Iterable[Ran]) -> list[tuple[Ran, float]]:
    """Each run of an operation with its own time, which for a loop excludes the operations in its body.

    An operation's time in other threads, after its event, counts until the next operation of its program starts: XLA
    reports its end only after what followed it in that thread.
    """
    lines: dict[int, list[Ran]] = defaultdict(list)
    starts: dict[tuple[str, int], list[float]] = defaultdict(list)
    for ran in sorted(operations, key=lambda ran: (ran.start, -ran.end)):
        lines[ran.line].append(ran)
        starts[ran.device, ran.run].append(ran.start)
    own: dict[int, float] = defaultdict(float)
    for line in lines.values():
        around: list[Ran] = []
        for ran in line:
            while around and around[-1].end <= ran.start:
                around.pop()
            if around:
                own[id(around[-1])] -= min(ran.end, around[-1].end) - ran.start
            later = starts[ran.device, ran.run]
            place = bisect.bisect_left(later, ran.end)
            until = min(ran.until, later[place]) if place < len(later) else ran.until
            own[id(ran)] += until - ran.start
            around.append(ran)
    return [(ran, own[id(ran)]) for line in lines.values() for ran in line]
