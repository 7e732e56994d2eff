"""Profiler traces: `trace_block` and `trace_call` record one, `read_trace` says where its time went.

A trace says why, the other instruments how much: none of its metrics gates, for they include the profiler's cost. A
recording is an XPlane file, which TensorBoard reads too, and a Perfetto trace for https://ui.perfetto.dev. It has no
calls of Python's own.

The cost, in 120 pairs with and without a trace on a busy 2-core x86-64 machine with jax 0.10.2: a 7 us call takes 1.31
times as long [1.30, 1.33], one of 300 small operations and 0.7 ms 1.33 times [1.32, 1.34], a 2 ms product [0.99, 1.07]
times. Ending a recording of 1000 calls takes 0.06 s, 0.2 s with Perfetto's file; reading it takes 0.07 s.

The files are read with the public `jax.profiler.ProfileData` alone, but JAX does not promise the names in them. Those
of the host and of the CPU are from traces of jax 0.10.2. Those of GPUs and TPUs are from XLA's sources
(`xla/tsl/profiler/utils/xplane_schema.cc`, `xla/backends/profiler/gpu/cupti_collector.cc`); no trace of either was at
hand.

- `/host:CPU` has a line a thread. Operations of the CPU are on any of them (`tf_XLAEigen/...`,
  `tf_XLAPjRtCpuClient/...`, and `python` where one is too small to be handed over), and have an `hlo_op`. An operation
  may go on in other threads after its event: `end: <name>` is the moment when it was over.
- `/device:GPU:0` has a line a stream, `Stream #13(Compute,MemcpyH2D)`; other lines sum these up.
- `/device:TPU:0` has the operations on `XLA Ops`, nested, with the text of their HLO as name.
"""

import bisect
import contextlib
import dataclasses
import itertools
import os
import re
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
from jax.profiler import ProfileData

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.settle import borrowed, settle
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.timing.block import steady

RUNS = 10
SECONDS = 1.0
"""About how long all traced runs of one call may take. A longer call is traced once, in one run."""

_LONGEST = 10
"""Operations that are shown."""

_BLOCK_MARK = "perfsuite: block"
"""The name of the block that is recorded, in the trace itself."""
_RUN_MARK = "perfsuite: run"

_HOST = "/host:CPU"
_DEVICE = re.compile(r"/device:([A-Z]+):(\d+)")
_OVER = "end: "
_ALLOCATIONS = ("memalloc_details", "MemFree_details", "MemoryResidency_details")

_numbers = itertools.count()


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
        return self.operations[:_LONGEST]

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


@dataclasses.dataclass
class Traced:
    """A block under the profiler. `trace` is set when the block ends."""

    _trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """The block's trace. Raises `MeasurementError` inside the block."""
        if self._trace is None:
            raise MeasurementError("a block has its trace only when the block has ended, without an exception")
        return self._trace


@contextlib.contextmanager
def trace_block(directory: str | os.PathLike | None = None) -> Iterator[Traced]:
    """Trace what the block does, compilations included, into a new folder below `directory`, which is created if need
    be. Without a `directory` it leaves no file.

    Waits, before and after, for every live array of the default backend, so that work in flight is in the trace of the
    block that started it. It cannot wait for a result that is dropped: wait for that in the block. A block that fails
    is recorded too, without waiting. Raises `MeasurementError` if a trace is being recorded already, here or by JAX
    itself, if `directory` cannot be written, and what `read_trace` raises.
    """
    # JAX names a folder after the second, so that two short blocks would write the same file.
    session = f"{time.strftime('%Y_%m_%d_%H_%M_%S')}_{os.getpid()}_{next(_numbers)}"
    traced = Traced()
    with contextlib.ExitStack() as cleanup:
        into = directory or cleanup.enter_context(tempfile.TemporaryDirectory(prefix="perfsuite-trace-"))
        root = writable(Path(into))
        _wait_for_all()
        _start(root, session, perfetto=directory is not None)
        try:
            with jax.profiler.TraceAnnotation(_BLOCK_MARK):
                yield traced
                _wait_for_all()
        finally:
            jax.profiler.stop_trace()
        folder = root / "plugins" / "profile" / session
        files = list(folder.glob("*.xplane.pb"))
        if not files:
            raise MeasurementError(f"{folder}: JAX's profiler wrote no trace")
        trace = read_trace(files[0])
    traced._trace = trace if directory is not None else dataclasses.replace(trace, path=None)


def trace_call(call: Call, *, runs: int = RUNS, directory: str | os.PathLike | None = None) -> Trace:
    """Trace `runs` warm runs of `call`, one after the other without waiting in between, as a training loop makes them.

    Raises what `trace_block` raises, `RecompilationError` when a run compiles, and `ValueError` for `runs` below 1.
    """
    if runs < 1:
        raise ValueError(f"trace_call({call.label}, runs=...): runs must be 1 or more, got {runs}")
    with borrowed(call) as subject:
        settle(subject)
        with steady(), trace_block(directory) as traced:
            for _ in range(runs):
                with jax.profiler.TraceAnnotation(_RUN_MARK):
                    outputs = subject.run()
            # `trace_block` waits too, but only for the default backend, and without raising what failed there.
            jax.block_until_ready(outputs)
    return traced.trace


def affordable_runs(us: float) -> int:
    """How many runs of a call that takes about `us` are traced: 10, or as many as take a second, but at least 1."""
    return max(1, min(RUNS, int(SECONDS * 1e6 / max(us, 1.0))))


def _start(directory: Path, session: str, perfetto: bool) -> None:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    # The proto has every program that the process has compiled, not only those that the block runs: with it, the first
    # trace of a session over BERT's train steps took 1.9 MB, the thirtieth 38 MB. Events name their operations anyway.
    options.enable_hlo_proto = False
    options.session_id = session
    try:
        jax.profiler.start_trace(directory, create_perfetto_trace=perfetto, profiler_options=options)
    except RuntimeError as error:
        if "already" not in str(error):
            raise
        raise MeasurementError(
            f"{directory}: a trace is being recorded already, and JAX records one at a time. End that one first"
        ) from None


def writable(directory: Path) -> Path:
    """The directory, created if need be. Raises `MeasurementError` if no file can be written in it."""
    # Checked before the start: if JAX cannot write at the end, its profiler runs on for the rest of the process.
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as error:
        raise MeasurementError(f"{directory}: no trace can be written here ({error})") from None


def _wait_for_all() -> None:
    for array in jax.live_arrays():
        # An error of a computation is for the code that reads its result.
        with contextlib.suppress(Exception):
            array.block_until_ready()


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
            if name == _BLOCK_MARK:
                events.block_ns += end - start
            elif name == _RUN_MARK:
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
