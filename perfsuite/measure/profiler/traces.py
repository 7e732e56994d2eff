"""`read_trace`: where the time of a recorded block went, from the host's dispatching to the single operation.

A trace says why, the other instruments how much: none of its metrics gates. They include the profiler's cost, and JAX
does not promise the names of its events, so a metric may drop to zero when one is renamed. `trace_recording` records.
"""

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.profiler.trace_events import (
    TO_HOST_STARTED,
    Events,
    Ran,
    compiled_modules,
    is_collective,
    read_events,
    requested,
)
from perfsuite.measure.profiler.trace_times import Span, idle_share, length, merged, own_times, without

LONGEST = 10


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
class DeviceTime:
    """What one device did: `us` in which it ran an operation, and its idle share as in `Trace`."""

    device: str
    us: float
    idle_share: float
    operations: int


@dataclasses.dataclass(frozen=True)
class TracedCompile:
    """One backend compile. `module` is "?" where the trace does not say what was compiled."""

    module: str
    us: float


@dataclasses.dataclass(frozen=True)
class TracedTransfers:
    """Transfers of one kind. `bytes` is None where the trace does not have them, as on CPU."""

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
    many programs are in flight. It excludes Python code around the dispatch (flattening an Equinox module), which
    `host_calls` counts.

    `device_us`: at least one device ran an operation, other than a copy to or from the host. `idle_share`: the part of
    the time between the first operation's start and the last one's end in which none ran. Where there is an
    accelerator, the CPU is no device. `collective_us`: at least one device was in a collective, which includes waiting
    there for the other devices, and what other work hid of it.

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
    operations: tuple[TracedOperation, ...]
    """The longest first."""
    compilations: tuple[TracedCompile, ...]
    transfers: tuple[TracedTransfers, ...]
    copies: tuple[TracedTransfers, ...]
    collective_us: float = 0.0

    suffixes: ClassVar = tuple(
        f" trace {metric}" for metric in ("host", "device", "wall", "idle share", "compilations", "transfers")
    )

    @property
    def longest(self) -> tuple[TracedOperation, ...]:
        """The ten operations that took most, all runs together."""
        return self.operations[:LONGEST]

    def metrics(self, name: str) -> list[Metric]:
        """Times (us a run), the idle share, and the counts of the whole block, all of kind info.

        The time in collectives is among them if one ran.
        """
        compiled = dict(Counter(each.module for each in self.compilations))
        moved = {each.name: each.count for each in self.transfers if each.name != TO_HOST_STARTED}
        values: list[tuple[float, str, dict[str, int] | None]] = [
            (self.host_us / self.runs, "us", None),
            (self.device_us / self.runs, "us", None),
            (self.wall_us / self.runs, "us", None),
            (self.idle_share, "share", None),
            (len(self.compilations), "compiles", compiled),
            (sum(moved.values()), "transfers", moved),
        ]
        metrics = [
            Metric(name + suffix, value, unit, "info", detail=detail or None)
            for suffix, (value, unit, detail) in zip(self.suffixes, values, strict=True)
        ]
        if self.collective_us:
            metrics.append(Metric(f"{name} trace collectives", self.collective_us / self.runs, "us", "info"))
        return metrics


def read_trace(path: str | os.PathLike) -> Trace:
    """Read an `.xplane.pb` file, or the newest one below a directory.

    Raises `MeasurementError`, naming the path, if there is none or it is damaged, and `NothingRanError` if no device
    ran an operation in it.
    """
    file = _newest(Path(path))
    events = read_events(file)
    if not events.operations:
        raise NothingRanError(
            f"{file}: no device ran an operation in this trace. Either the block ran nothing on a device, or it ended "
            "before its work was done, or the driver of a GPU keeps its counters from this user"
        )
    busy = _busy(events.operations)
    wall = sum(block.end - block.start for block in events.blocks) or events.last - events.first
    modules = zip(compiled_modules(events), events.compiles, strict=True)
    return Trace(
        path=file,
        runs=len(events.runs) or 1,
        wall_us=wall / 1e3,
        host_us=_host_ns(events) / 1e3,
        device_us=length(busy) / 1e3,
        idle_share=idle_share(busy),
        devices=tuple(_devices(events.operations)),
        operations=tuple(_operations(events.operations)),
        compilations=tuple(TracedCompile(module, (event.end - event.start) / 1e3) for module, event in modules),
        transfers=_transfers((kind, event.end - event.start, None) for kind, event in requested(events)),
        copies=_transfers((copy.name, copy.end - copy.start, copy.bytes) for copy in events.copies),
        collective_us=length(_busy(ran for ran in events.operations if is_collective(ran.name))) / 1e3,
    )


def _newest(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise MeasurementError(f"{path}: there is no such trace")
    if found := list(path.rglob("*.xplane.pb")):
        return max(found, key=lambda file: (file.stat().st_mtime_ns, file))
    raise MeasurementError(f"{path}: no trace (*.xplane.pb) in this directory")


def _busy(operations: Iterable[Ran]) -> list[Span]:
    return merged((ran.start, ran.until) for ran in operations)


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
        busy = _busy(by_device[device])
        yield DeviceTime(device, length(busy) / 1e3, idle_share(busy), len(by_device[device]))


def _operations(operations: list[Ran]) -> list[TracedOperation]:
    totals: dict[tuple[str, str], list[float]] = defaultdict(list)
    for ran, own in own_times(operations):
        totals[ran.module, ran.name].append(own)
    found = [TracedOperation(name, module, sum(ns) / 1e3, len(ns)) for (module, name), ns in totals.items()]
    return sorted(found, key=lambda operation: (-operation.us, operation.module, operation.name))


def _transfers(moved: Iterable[tuple[str, float, int | None]]) -> tuple[TracedTransfers, ...]:
    kinds: dict[str, list[tuple[float, int | None]]] = defaultdict(list)
    for name, ns, size in moved:
        kinds[name].append((ns, size))
    transfers = []
    for name, each in sorted(kinds.items()):
        sizes = [size for _, size in each if size is not None]
        us = sum(ns for ns, _ in each) / 1e3
        transfers.append(TracedTransfers(name, len(each), us, sum(sizes) if len(sizes) == len(each) else None))
    return tuple(transfers)
