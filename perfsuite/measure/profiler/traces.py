"""`read_trace`: where the time of a recorded block went, from the host's dispatching to the single operation.

A trace says why, where the other instruments say how much: none of its metrics gates. They are taken under a profiler,
whose cost is in them, and the names of its events are no promise of JAX's, so that a metric may fall to nothing by a
renaming. `measure.trace_recording` records.
"""

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.measurement import Metric
from perfsuite.measure.profiler.trace_events import (
    TO_HOST_STARTED,
    Events,
    Ran,
    is_collective,
    module_of,
    read_events,
    requested,
)
from perfsuite.measure.profiler.trace_times import Span, idle_share, length, merged, own_times, without

LONGEST = 10


class NothingRanError(MeasurementError):
    """A trace in which no device ran an operation."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a program, over all its runs. `us` leaves out what operations inside it (of a loop) took.

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
class DeviceTime:
    """What one device did: `us` in which it ran an operation, and its idle share as in `Trace`."""

    device: str
    us: float
    idle_share: float
    operations: int


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One backend compile. `module` is "?" where the trace does not say what was compiled."""

    module: str
    us: float


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Transfers of one kind. `bytes` is None where the trace does not say them; the CPU's never does."""

    name: str
    count: int
    us: float
    bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Trace:
    """One recorded block, in microseconds of all `runs` together.

    `wall_us`: from the block's start until its work was done; without `record`'s mark, from the first event to the
    last. `host_us`: the host in JAX's dispatch of jitted functions and eager operations, summed over threads, without
    compiles and without operations that the CPU ran in the dispatching thread. It includes waiting for room where too
    many programs are in flight; it does not include Python code around the dispatch (an Equinox module's flattening):
    use `host_calls` for that.

    `device_us`: at least one device ran an operation; copies to and from the host are no operations. `idle_share`: the
    part of the time between the first operation's start and the last one's end in which none ran. Where there is an
    accelerator, the CPU is no device. `collective_us`: at least one device was in a collective, which includes the time
    that it waited there for the other devices to come; as part of `device_us`, what other work hid of it too.

    `transfers` are those that the host asked for, the same on every platform, except that NumPy reads an array of the
    CPU in place, unseen. `copies` are those that devices made, by the profiler's names.
    """

    path: Path | None
    runs: int
    wall_us: float
    host_us: float
    device_us: float
    idle_share: float
    devices: tuple[DeviceTime, ...]
    operations: tuple[Operation, ...]
    """The longest first."""
    compilations: tuple[Compilation, ...]
    transfers: tuple[Transfer, ...]
    copies: tuple[Transfer, ...]
    collective_us: float = 0.0

    suffixes: ClassVar = tuple(
        f" trace {metric}" for metric in ("host", "device", "wall", "idle share", "compilations", "transfers")
    )

    @property
    def collective_share(self) -> float:
        """The part of the time in which a device ran something that a device was in a collective."""
        return self.collective_us / self.device_us if self.device_us else 0.0

    @property
    def longest(self) -> tuple[Operation, ...]:
        """The ten operations that took most, all runs together."""
        return self.operations[:LONGEST]

    def metrics(self, name: str) -> list[Metric]:
        """Times (us a run), the idle share, and the counts of the whole block. All are of the kind info: see above.

        The time in collectives is among them where a collective ran.
        """
        compiled = Counter(compilation.module for compilation in self.compilations)
        moved = {transfer.name: transfer.count for transfer in self.transfers if transfer.name != TO_HOST_STARTED}
        metrics: list[tuple[float, str, dict[str, int] | None]] = [
            (self.host_us / self.runs, "us", None),
            (self.device_us / self.runs, "us", None),
            (self.wall_us / self.runs, "us", None),
            (self.idle_share, "share", None),
            (len(self.compilations), "compiles", dict(compiled)),
            (sum(moved.values()), "transfers", moved),
        ]
        made = [
            Metric(name + suffix, value, unit, "info", detail=detail or None)
            for suffix, (value, unit, detail) in zip(self.suffixes, metrics, strict=True)
        ]
        if self.collective_us:
            made.append(Metric(f"{name} trace collectives", self.collective_us / self.runs, "us", "info"))
        return made


def read_trace(path: str | os.PathLike) -> Trace:
    """Read an `.xplane.pb` file, or the newest one below a directory.

    Raises `MeasurementError`, naming the path, where there is none or it is damaged, and its kind `NothingRanError`
    where no device ran an operation in it.
    """
    file = _newest(Path(path))
    events = read_events(file)
    if not events.operations:
        raise NothingRanError(
            f"{file}: no device ran an operation in this trace. The block may have run nothing on a device, or have "
            "ended before its work was done; on a GPU, the driver may keep its counters from this user"
        )
    busy = merged((ran.start, ran.until) for ran in events.operations)
    taken: dict[int, float] = {}
    wall = sum(block.end - block.start for block in events.blocks) or events.last - events.first
    asked = ((kind, request.end - request.start, None) for kind, request in requested(events))
    return Trace(
        path=file,
        runs=events.runs or 1,
        wall_us=wall / 1e3,
        host_us=_host_ns(events) / 1e3,
        device_us=length(busy) / 1e3,
        idle_share=idle_share(busy),
        devices=tuple(_devices(events.operations)),
        operations=tuple(_operations(events.operations)),
        compilations=tuple(
            Compilation(module_of(event, events, taken), (event.end - event.start) / 1e3) for event in events.compiles
        ),
        transfers=_transfers(asked),
        copies=_transfers((copy.name, copy.end - copy.start, copy.bytes) for copy in events.copies),
        collective_us=length(merged((ran.start, ran.until) for ran in events.operations if is_collective(ran.name)))
        / 1e3,
    )


def _newest(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise MeasurementError(f"{path}: there is no such trace")
    if found := list(path.rglob("*.xplane.pb")):
        return max(found, key=lambda file: (file.stat().st_mtime_ns, file))
    raise MeasurementError(f"{path}: no trace (*.xplane.pb) in this directory")


def _host_ns(events: Events) -> float:
    calls: dict[int, list[Span]] = defaultdict(list)
    inside: dict[int, list[Span]] = defaultdict(list)
    for call in events.dispatches:
        calls[call.line].append((call.start, call.end))
    for event in (*events.compiles, *events.waits):
        inside[event.line].append((event.start, event.end))
    for ran in events.operations:
        inside[ran.line].append((ran.start, ran.end))
    return sum(without(spans, inside[line]) for line, spans in calls.items())


def _devices(operations: list[Ran]) -> Iterator[DeviceTime]:
    by_device: dict[str, list[Ran]] = defaultdict(list)
    for ran in operations:
        by_device[ran.device].append(ran)
    for device in sorted(by_device, key=lambda name: (name.split()[0], int(name.split()[1]))):
        busy = merged((ran.start, ran.until) for ran in by_device[device])
        yield DeviceTime(device, length(busy) / 1e3, idle_share(busy), len(by_device[device]))


def _operations(operations: list[Ran]) -> list[Operation]:
    totals: dict[tuple[str, str], list[float]] = defaultdict(list)
    for ran, own in own_times(operations):
        totals[ran.module, ran.name].append(own)
    found = [Operation(name, module, sum(ns) / 1e3, len(ns)) for (module, name), ns in totals.items()]
    return sorted(found, key=lambda operation: (-operation.us, operation.module, operation.name))


def _transfers(found: Iterable[tuple[str, float, int | None]]) -> tuple[Transfer, ...]:
    kinds: dict[str, list[tuple[float, int | None]]] = defaultdict(list)
    for name, ns, size in found:
        kinds[name].append((ns, size))
    return tuple(
        Transfer(name, len(each), sum(ns for ns, _ in each) / 1e3, _sum_known([size for _, size in each]))
        for name, each in sorted(kinds.items())
    )


def _sum_known(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
