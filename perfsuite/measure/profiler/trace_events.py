"""What the planes, lines and events of an XPlane file mean: read with the public `jax.profiler.ProfileData` alone.

JAX does not promise these names. Those of the host and of the CPU are from traces of jax 0.10.2. Those of GPUs and TPUs
are from XLA's sources (`xla/tsl/profiler/utils/xplane_schema.cc`, `xla/backends/profiler/gpu/cupti_collector.cc`); no
trace of either was at hand.

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
from pathlib import Path
from typing import Any, NamedTuple

from jax.profiler import ProfileData

from perfsuite.measure.errors import MeasurementError

BLOCK_MARK = "perfsuite: block"
"""The name of the block that `record` records, in the trace itself."""
RUN_MARK = "perfsuite: run"

TO_DEVICE, BETWEEN_DEVICES, TO_HOST, TO_HOST_STARTED = "to device", "between devices", "to host", "to host, started"

HOST = "/host:CPU"
_DEVICE = re.compile(r"/device:([A-Z]+):(\d+)")
_DISPATCH = "PjitFunction("
COMPILE = "backend_compile_and_load"
_REQUESTS = {
    "DevicePut": TO_DEVICE,
    "DevicePutWithSharding": TO_DEVICE,
    "np.asarray(jax.Array)": TO_HOST,
    "ArrayImpl.copy_to_host_async": TO_HOST_STARTED,
}
_BETWEEN = "CopyToMemorySpace"
_CPU_COPY = "H2D Dispatch"
_WAIT = "ThunkExecutor::Execute (wait for completion)"
_OVER = "end: "
# XLA names an instruction after its opcode, or after the JAX primitive that it comes from: "all-reduce.1" and
# "psum_invariant.7" are the same thing (jax 0.10.2, a sum over a mesh under jit and under shard_map).
_COLLECTIVE = re.compile(
    r"(?:all-reduce|all-gather|all-to-all|ragged-all-to-all|reduce-scatter|collective-(?:permute|broadcast)"
    r"|async-collective|(?:psum|pmax|pmin)(?:_invariant|_scatter)?|ppermute|all_gather(?:_\w+)?|(?:ragged_)?all_to_all"
    r"|reduce_scatter)(?:-start|-done|[-_]fusion)?(?:\.\d+)*"
)
_ALLOCATIONS = ("memalloc_details", "MemFree_details", "MemoryResidency_details")


class Event(NamedTuple):
    """Something that a thread or a stream did, in nanoseconds of the trace's own clock. `line` numbers the lines."""

    line: int
    name: str
    start: float
    end: float

    def holds(self, other: "Event") -> bool:
        """Whether `other` lies inside this event, on the same line."""
        return self.line == other.line and self.start <= other.start and other.end <= self.end


class Ran(NamedTuple):
    """One run of one operation. `until` is when it was over, later than `end` where other threads went on with it.

    `run` numbers the runs of its program, where the trace does.
    """

    line: int
    name: str
    start: float
    end: float
    until: float
    module: str
    device: str
    run: int = 0


class Copy(NamedTuple):
    """A copy that a device made, with its bytes where the trace has them."""

    name: str
    start: float
    end: float
    bytes: int | None


@dataclasses.dataclass
class Events:
    """The events of one trace that matter here."""

    operations: list[Ran] = dataclasses.field(default_factory=list)
    dispatches: list[Event] = dataclasses.field(default_factory=list)
    compiles: list[Event] = dataclasses.field(default_factory=list)
    passes: list[Event] = dataclasses.field(default_factory=list)
    """The compiler's passes. Each has the name of the module that it compiles."""
    waits: list[Event] = dataclasses.field(default_factory=list)
    """A thread that runs a program of the CPU waits for the other threads."""
    requests: list[Event] = dataclasses.field(default_factory=list)
    between: list[Event] = dataclasses.field(default_factory=list)
    copies: list[Copy] = dataclasses.field(default_factory=list)
    blocks: list[Event] = dataclasses.field(default_factory=list)
    runs: list[Event] = dataclasses.field(default_factory=list)
    first: float = float("inf")
    last: float = float("-inf")

    def include(self, start: float, end: float) -> None:
        """Let the trace last from `start` at the latest to `end` at the earliest."""
        self.first, self.last = min(self.first, start), max(self.last, end)


def read_events(path: Path) -> Events:
    """Read the events of one `.xplane.pb` file. Raises `MeasurementError`, naming the file, if it is no such file."""
    planes = planes_of(path)
    events = Events()
    on_cpu: list[Ran] = []
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
                _read_host(numbered, events, on_cpu)
    # Beside an accelerator, what XLA runs on the host is the host's work.
    events.operations = events.operations or on_cpu
    return events


def planes_of(path: Path) -> list[Any]:
    """The planes of an `.xplane.pb` file. Raises `MeasurementError`, naming the file, if it is no such file."""
    try:
        planes = list(ProfileData.from_file(str(path)).planes)
    except RuntimeError as error:
        raise MeasurementError(f"{path}: the trace is damaged, or is no XPlane file ({error})") from None
    if not planes:
        raise MeasurementError(f"{path}: the trace is empty")
    return planes


def is_collective(name: str) -> bool:
    """Whether the operation of this name moves data between devices, as far as its name tells."""
    return _COLLECTIVE.fullmatch(name) is not None


def compiled_modules(events: Events) -> list[str]:
    """For each compile the module that was compiled, "jit_step", or "?".

    The compiler runs its passes in threads of its own. Each is busy with one module until that compile ends.
    """
    modules = []
    busy: dict[int, float] = {}  # by the line of a pass, until when
    for each in events.compiles:
        inside = (one for one in events.passes if each.start <= one.start <= each.end)
        first = next((one for one in inside if busy.get(one.line, 0.0) <= one.start), None)
        if first is not None:
            busy[first.line] = each.end
            modules.append(first.name)
            continue
        around = max(
            (call for call in events.dispatches if call.holds(each)), key=lambda call: call.start, default=None
        )
        modules.append("?" if around is None else f"jit_{around.name.removeprefix(_DISPATCH).removesuffix(')')}")
    return modules


def requested(events: Events) -> list[tuple[str, Event]]:
    """The transfers that the host asked for, with their kinds. A request inside another is the same transfer."""
    kinds = []
    outer: dict[int, Event] = {}
    for request in sorted(events.requests, key=lambda event: (event.start, -event.end)):
        if (around := outer.get(request.line)) is not None and request.start < around.end:
            continue
        outer[request.line] = request
        copied = any(request.holds(copy) for copy in events.between)
        kinds.append((BETWEEN_DEVICES if copied else _REQUESTS[request.name], request))
    return kinds


def _read_host(lines: list[tuple[int, Any]], events: Events, on_cpu: list[Ran]) -> None:
    known = {COMPILE: events.compiles, _WAIT: events.waits, _BETWEEN: events.between}
    known |= {BLOCK_MARK: events.blocks, RUN_MARK: events.runs, **dict.fromkeys(_REQUESTS, events.requests)}
    over: dict[int, float] = {}
    flows: list[tuple[int | None, Ran]] = []
    for number, line in lines:
        for raw in line.events:
            name = raw.name
            if name.startswith("ThreadpoolListener::"):
                continue  # a third of all events, and none matters here
            event = Event(number, name, raw.start_ns, raw.end_ns)
            events.include(event.start, event.end)
            if name.startswith(_DISPATCH):
                events.dispatches.append(event)
            elif name in known:
                known[name].append(event)
            elif name == _CPU_COPY:
                events.copies.append(Copy(name, event.start, event.end, None))
            else:
                _read_stats(event, dict(raw.stats), events.passes, flows, over)
    for flow, ran in flows:
        on_cpu.append(ran if flow is None else ran._replace(until=max(ran.end, over.get(flow, ran.end))))
    events.passes.sort(key=lambda found: found.start)
    events.compiles.sort(key=lambda found: found.start)


def _read_stats(
    event: Event,
    stats: dict[str, Any],
    passes: list[Event],
    flows: list[tuple[int | None, Ran]],
    over: dict[int, float],
) -> None:
    """Read an event of the host that only its stats explain: an operation, its end, or a pass of the compiler."""
    if event.name.startswith(_OVER) and "_c" in stats:
        over[stats["_c"]] = event.start
    # CUPTI gives the launch of a kernel the kernel's `hlo_op`, and a correlation.
    elif "hlo_op" in stats and "correlation_id" not in stats:
        device = f"CPU {stats.get('device_ordinal', 0)}"
        module, run = str(stats.get("hlo_module", "")), stats.get("run_id", 0)
        ran = Ran(event.line, str(stats["hlo_op"]), event.start, event.end, event.end, module, device, run)
        flows.append((stats.get("_p"), ran))
    elif event.name.endswith(f"({stats.get('module')})"):
        passes.append(event._replace(name=stats["module"]))


def _read_device(lines: list[tuple[int, Any]], device: str, events: Events) -> None:
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
            if any(stat in stats for stat in _ALLOCATIONS):
                continue
            start, end = raw.start_ns, raw.end_ns
            if "memcpy_details" in stats:
                size = re.search(r"\bsize:(\d+)", str(stats["memcpy_details"]))
                events.copies.append(Copy(raw.name, start, end, int(size[1]) if size else None))
                if "hlo_op" not in stats:
                    continue  # it is not part of a program
            name = str(stats.get("hlo_op") or _hlo_name(raw.name))
            module = str(stats.get("hlo_module") or _around(modules, start))
            events.operations.append(Ran(number, name, start, end, end, module, device))
            events.include(start, end)


def _hlo_name(text: str) -> str:
    """`%fusion.3 = bf16[8]{0} fusion(...)` is `fusion.3`; a kernel has its own name."""
    return text.split(" = ")[0].removeprefix("%") if text.startswith("%") else text


def _around(modules: list[tuple[float, float, str]], moment: float) -> str:
    place = bisect.bisect_right(modules, moment, key=lambda module: module[0]) - 1
    return modules[place][2] if place >= 0 and moment <= modules[place][1] else ""
