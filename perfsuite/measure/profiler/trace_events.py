"""What the planes, lines and events of an XPlane file mean: read with the public `jax.profiler.ProfileData` alone.

The names are no promise of JAX's. Those of the host and of the CPU were read off traces of jax 0.10.2; those of GPUs
and TPUs are from XLA's sources (`xla/tsl/profiler/utils/xplane_schema.cc`,
`xla/backends/profiler/gpu/cupti_collector.cc`) and were never seen here.

- `/host:CPU` has a line a thread. Operations of the CPU are on any of them (`tf_XLAEigen/...`,
  `tf_XLAPjRtCpuClient/...`, and `python` where one is too small to be handed over), and are known by their `hlo_op`. An
  operation may go on in other threads after its event: `end: <name>` is the moment when it was over.
- `/device:GPU:0` has a line a stream, `Stream #13(Compute,MemcpyH2D)`; other lines sum these up.
- `/device:TPU:0` has the operations on `XLA Ops`, nested, with the text of their HLO as name.
"""

import bisect
import dataclasses
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from jax.profiler import ProfileData

from perfsuite.measure.errors import MeasurementError

BLOCK_MARK = "perfsuite: block"
"""What `record` calls the block that it records, in the trace itself."""
RUN_MARK = "perfsuite: run"

TO_DEVICE, BETWEEN_DEVICES, TO_HOST, TO_HOST_STARTED = "to device", "between devices", "to host", "to host, started"

_HOST = "/host:CPU"
_DEVICE = re.compile(r"/device:([A-Z]+):(\d+)")
_DISPATCH = "PjitFunction("
_COMPILE = "backend_compile_and_load"
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


class Ran(NamedTuple):
    """One run of one operation. `until` is when it was over, and later than `end` where other threads went on with it.

    `run` tells the runs of its program apart, where the trace does.
    """

    line: int
    name: str
    start: float
    end: float
    until: float
    module: str
    device: str
    run: int


class Copy(NamedTuple):
    """A copy that a device made, with its bytes where the trace says them."""

    name: str
    start: float
    end: float
    bytes: int | None


@dataclasses.dataclass
class Events:
    """The events of one trace that mean something here."""

    operations: list[Ran] = dataclasses.field(default_factory=list)
    dispatches: list[Event] = dataclasses.field(default_factory=list)
    compiles: list[Event] = dataclasses.field(default_factory=list)
    passes: list[Event] = dataclasses.field(default_factory=list)
    """The compiler's passes, each named after the module that it is over."""
    waits: list[Event] = dataclasses.field(default_factory=list)
    """A thread that runs a program of the CPU waits for the other threads."""
    requests: list[Event] = dataclasses.field(default_factory=list)
    between: list[Event] = dataclasses.field(default_factory=list)
    copies: list[Copy] = dataclasses.field(default_factory=list)
    blocks: list[Event] = dataclasses.field(default_factory=list)
    runs: int = 0
    first: float = float("inf")
    last: float = float("-inf")


def read_events(path: Path) -> Events:
    """Read the events of one `.xplane.pb` file. Raises `MeasurementError`, naming the file, where that cannot be."""
    try:
        planes = list(ProfileData.from_file(str(path)).planes)
    except RuntimeError as error:
        raise MeasurementError(f"{path}: the trace is damaged, or is no XPlane file ({error})") from None
    if not planes:
        raise MeasurementError(f"{path}: the trace is empty")
    events = Events()
    on_cpu: list[Ran] = []
    # From Python 3.12 on, jaxlib's type of an event's stats draws a DeprecationWarning when it is first made. Where
    # warnings are errors that ends the process (jaxlib 0.12.0, `nb_type_new("event_stats")`).
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        _read_planes(planes, events, on_cpu)
    # Beside an accelerator, what XLA runs on the host is the host's work.
    events.operations = events.operations or on_cpu
    return events


def _read_planes(planes: list[Any], events: Events, on_cpu: list[Ran]) -> None:
    lines = 0
    for plane in planes:
        device = _DEVICE.fullmatch(plane.name)
        numbered = list(enumerate(plane.lines, lines))
        lines += len(numbered)
        if device:
            _read_device(numbered, " ".join(device.groups()), events)
        elif plane.name == _HOST:
            _read_host(numbered, events, on_cpu)


def is_collective(name: str) -> bool:
    """Whether the operation of this name moves data between devices, as far as its name says so."""
    return _COLLECTIVE.fullmatch(name) is not None


def module_of(compile_: Event, events: Events, taken: dict[int, float]) -> str:
    """The module that was compiled, "jit_step", or "?". Compiles are to be asked for in the order of their starts.

    The compiler's passes run in a thread of the compiler's; `taken` says until when each is busy with an earlier one.
    """
    for found in events.passes:
        if compile_.start <= found.start <= compile_.end and taken.get(found.line, 0.0) <= found.start:
            taken[found.line] = compile_.end
            return found.name
    around = [call for call in events.dispatches if call.line == compile_.line and _holds(call, compile_)]
    if around:
        return "jit_" + max(around, key=lambda call: call.start).name.removeprefix(_DISPATCH).removesuffix(")")
    return "?"


def requested(events: Events) -> list[tuple[str, Event]]:
    """The transfers that the host asked for, with their kinds. One inside another is the same transfer."""
    kinds = []
    for request in outermost(events.requests):
        copied = any(copy.line == request.line and _holds(request, copy) for copy in events.between)
        kinds.append((BETWEEN_DEVICES if copied else _REQUESTS[request.name], request))
    return kinds


def outermost(found: Iterable[Event]) -> list[Event]:
    """Events that lie in no other of `found` on the same line, in the order of their starts."""
    kept: dict[int, Event] = {}
    outer = []
    for event in sorted(found, key=lambda event: (event.start, -event.end)):
        around = kept.get(event.line)
        if around is None or event.start >= around.end:
            kept[event.line] = event
            outer.append(event)
    return outer


def _holds(outer: Event, inner: Event) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end


def _read_host(lines: list[tuple[int, Any]], events: Events, on_cpu: list[Ran]) -> None:
    over: dict[int, float] = {}
    flows: list[tuple[int | None, Ran]] = []
    for number, line in lines:
        for raw in line.events:
            name = raw.name
            if name.startswith("ThreadpoolListener::"):
                continue  # a third of all events, without a meaning here
            event = Event(number, name, raw.start_ns, raw.end_ns)
            events.first, events.last = min(events.first, event.start), max(events.last, event.end)
            if name.startswith(_DISPATCH):
                events.dispatches.append(event)
            elif name == _COMPILE:
                events.compiles.append(event)
            elif name == _WAIT:
                events.waits.append(event)
            elif name in _REQUESTS:
                events.requests.append(event)
            elif name == _BETWEEN:
                events.between.append(event)
            elif name == _CPU_COPY:
                events.copies.append(Copy(name, event.start, event.end, None))
            elif name == BLOCK_MARK:
                events.blocks.append(event)
            elif name == RUN_MARK:
                events.runs += 1
            else:
                stats = dict(raw.stats)
                if name.startswith(_OVER) and "_c" in stats:
                    over[stats["_c"]] = event.start
                # CUPTI gives the launch of a kernel the kernel's `hlo_op`, and a correlation.
                elif "hlo_op" in stats and "correlation_id" not in stats:
                    flows.append((stats.get("_p"), _ran_on_cpu(event, stats)))
                elif name.endswith(f"({stats.get('module')})"):
                    events.passes.append(event._replace(name=stats["module"]))
    on_cpu += [
        ran._replace(until=max(ran.end, over.get(flow, ran.end)) if flow is not None else ran.end)
        for flow, ran in flows
    ]
    events.passes.sort(key=lambda found: found.start)
    events.compiles.sort(key=lambda compile_: compile_.start)


def _ran_on_cpu(event: Event, stats: dict[str, Any]) -> Ran:
    device = f"CPU {stats.get('device_ordinal', 0)}"
    module, run = str(stats.get("hlo_module", "")), stats.get("run_id", 0)
    return Ran(event.line, str(stats["hlo_op"]), event.start, event.end, event.end, module, device, run)


def _read_device(lines: list[tuple[int, Any]], device: str, events: Events) -> None:
    streams = [(number, line) for number, line in lines if line.name.startswith("Stream #")]
    modules = sorted(
        (raw.start_ns, raw.end_ns, re.sub(r"\(\d+\)$", "", raw.name))
        for _, line in lines
        if line.name == "XLA Modules"
        for raw in line.events
    )
    # With streams, "XLA Ops" tells of the same kernels a second time.
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
                    continue  # it is no part of a program
            name = str(stats.get("hlo_op") or _hlo_name(raw.name))
            module = str(stats.get("hlo_module") or _around(modules, start))
            events.operations.append(Ran(number, name, start, end, end, module, device, 0))
            events.first, events.last = min(events.first, start), max(events.last, end)


def _hlo_name(text: str) -> str:
    """`%fusion.3 = bf16[8]{0} fusion(...)` is `fusion.3`; the name of a kernel is itself."""
    return text.split(" = ")[0].removeprefix("%") if text.startswith("%") else text


def _around(modules: list[tuple[float, float, str]], moment: float) -> str:
    place = bisect.bisect_right(modules, moment, key=lambda module: module[0]) - 1
    return modules[place][2] if place >= 0 and moment <= modules[place][1] else ""
