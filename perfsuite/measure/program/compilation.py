"""From a call to the facts of its program: lower here, compile here or for a target, read what the compiler says."""

import dataclasses
import hashlib
import itertools
import json
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jaxlib

from perfsuite.measure import progress
from perfsuite.measure.call import Call
from perfsuite.measure.compat import jax_stack as _jax_internals
from perfsuite.measure.hlo.hlo_module import Frame, Stack
from perfsuite.measure.hlo.locations import number_locations, restoring
from perfsuite.measure.hlo.reader import parse
from perfsuite.measure.program.lowering import Donation, LoweredCall, lower_call
from perfsuite.measure.program.program import Origin, Program
from perfsuite.measure.program.program_reader import read_program, source_of
from perfsuite.measure.targets import cache as facts_cache
from perfsuite.measure.targets.target_compiler import compile_for, configuration
from perfsuite.measure.targets.targets import Target, peak_rates
from perfsuite.measure.targets.targets import target as target_of

_FORMAT = 1
"""Of the entries in the cache."""

_ENTRY = {"hlo", "cost", "memory", "compile_seconds"}

_INSTRUMENTS = os.path.dirname(os.path.dirname(__file__)) + os.sep

REMEMBERED_SECONDS = 5.0
"""How long a compile takes at least for its seconds to be kept, so that a person who waits for the next one knows."""


@dataclasses.dataclass(frozen=True)
class Compilation:
    """What a compiler said of a call: enough to read its program again, also in another session.

    `hlo` is the optimised program, `cost` and `memory` are XLA's analyses, `stacks` what numbers in the program's
    metadata stand for (see `locations`).
    """

    origin: Origin
    hlo: str
    cost: Mapping[str, float]
    memory: Mapping[str, int]
    donations: tuple[Donation, ...]
    stacks: Mapping[int, Stack]

    def program(self) -> Program:
        """The facts."""
        module = parse(self.hlo, restored=restoring(self.stacks))
        return read_program(self.origin, module, self.cost, self.memory, self.donations)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, without the device's published rates, and of each stack the frame that messages name."""
        frames = {number: source_of(stack) for number, stack in self.stacks.items()}
        stacks = {number: [dataclasses.asdict(frame)] for number, frame in frames.items() if frame is not None}
        origin = dataclasses.replace(self.origin, rates=None)
        return dataclasses.asdict(dataclasses.replace(self, origin=origin, stacks={})) | {"stacks": stacks}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Compilation":
        """The inverse of `to_dict`, also after a way through JSON. Raises `KeyError` or `TypeError` for others."""
        donations = (
            Donation(
                **{
                    **donation,
                    "shape": tuple(donation["shape"]),
                    "function": Frame(**donation["function"]) if donation["function"] else None,
                }
            )
            for donation in values["donations"]
        )
        stacks = {int(number): tuple(Frame(**frame) for frame in frames) for number, frames in values["stacks"].items()}
        origin = Origin(**values["origin"])
        return cls(origin, values["hlo"], values["cost"], values["memory"], tuple(donations), stacks)


def program_of(
    call: Call, target: str | None = None, *, chips: int | None = None, cache: Path | None = None
) -> Program:
    """Compile a call without running it, and read the facts of its program. See `compile_call`."""
    return compile_call(call, target, chips=chips, cache=cache).program()


def compile_call(
    call: Call, target: str | None = None, *, chips: int | None = None, cache: Path | None = None
) -> Compilation:
    """Compile a call without running it.

    `target` names a device that need not be here ("tpu-v5e"), None is the present one. `chips` asks for a slice of that
    many; otherwise it is the smallest that has a device for each partition of the program. `cache` is a folder where
    what the compiler said is kept, under the program's text, the compiler's version and its flags.

    Raises `ValueError` for an unknown target or too few chips, `TargetUnavailable` when the target's compiler cannot be
    used here, `CompileFailed` when it refuses the program, `HostCallbackError` or `MeasurementError` when the call
    cannot be lowered.
    """
    if target is not None:
        of_target = target_of(target)
        with _told(call, of_target.name, cache):
            return _for_target(call, of_target, chips, cache)
    if chips is not None:
        raise ValueError("perf.program(chips=...) is for a target; the present device is what it is")
    with _told(call, None, cache):
        return _here(call, cache)


def _for_target(call: Call, target: Target, chips: int | None, cache: Path | None) -> Compilation:
    lowered = lower_call(call, "tpu")
    located = number_locations(lowered.text)
    text = located.text.encode()
    options = _jax_internals.compiler_options(lowered.lowered)
    compiled = compile_for(target, text, partitions=lowered.partitions, chips=chips, cache=cache, options=options)
    if not compiled.cached:
        _remember_seconds(call, target.name, cache, compiled.compile_seconds)
    origin = Origin(
        label=call.label,
        target=target.name,
        device_kind=target.device_kind,
        partitions=lowered.partitions,
        compiler=compiled.compiler,
        cached=compiled.cached,
        lower_seconds=lowered.lower_seconds,
        compile_seconds=compiled.compile_seconds,
        memory_bytes=target.memory_bytes,
        rates=target.rates,
    )
    return Compilation(origin, compiled.hlo, compiled.cost, compiled.memory, lowered.donations, located.stacks)


def _here(call: Call, cache: Path | None) -> Compilation:
    lowered = lower_call(call)
    device = jax.local_devices()[0]  # another process's says nothing of its memory
    version = device.client.platform_version
    key = _key(lowered, device.device_kind, version)
    entry = facts_cache.read(cache, key)
    cached = entry is not None and _ENTRY.issubset(entry)
    if entry is None or not cached:
        entry = _compiled(lowered)
        facts_cache.write(cache, key, entry)
        _remember_seconds(call, None, cache, entry["compile_seconds"])
    origin = Origin(
        label=call.label,
        target=None,
        device_kind=device.device_kind,
        partitions=lowered.partitions,
        compiler=f"jaxlib {jaxlib.__version__}, {version}",
        cached=cached,
        lower_seconds=lowered.lower_seconds,
        compile_seconds=entry["compile_seconds"],
        memory_bytes=(device.memory_stats() or {}).get("bytes_limit"),
        rates=peak_rates(device.device_kind),
    )
    return Compilation(origin, entry["hlo"], entry["cost"], entry["memory"], lowered.donations, {})


def _told(call: Call, target: str | None, cache: Path | None) -> AbstractContextManager[None]:
    """Tell of a compile while it lasts, and of what that of the call took the last time, when its code was another."""

    def usual() -> float | None:
        seconds = (facts_cache.read(cache, _seconds_key(call, target)) or {}).get("seconds")
        return seconds if isinstance(seconds, float) else None

    return progress.waiting(f"compiling {call.label}{f' for {target}' if target else ''}", usual=usual)


def _remember_seconds(call: Call, target: str | None, cache: Path | None, seconds: float) -> None:
    if seconds >= REMEMBERED_SECONDS:
        facts_cache.write(cache, _seconds_key(call, target), {"seconds": float(seconds)})


def _seconds_key(call: Call, target: str | None) -> str:
    """Of a function and the shapes of its arguments, whatever its code: what took long will take about as long."""
    leaves = jax.tree.leaves((call.args, call.kwargs))
    shapes = [[list(getattr(leaf, "shape", ())), str(getattr(leaf, "dtype", ""))] for leaf in leaves]
    module = getattr(call.fn, "__module__", None)
    return hashlib.sha256(json.dumps(["seconds", call.label, str(module), target, shapes]).encode()).hexdigest()


def _compiled(lowered: LoweredCall) -> dict[str, Any]:
    started = time.perf_counter()
    compiled = lowered.lowered.compile()
    seconds = time.perf_counter() - started
    stats = compiled.memory_analysis()
    return {
        "hlo": compiled.as_text(),
        "cost": {name: float(value) for name, value in _cost(compiled.cost_analysis()).items()},
        "memory": {name: getattr(stats, name) for name in dir(stats) if name.endswith("_in_bytes")},
        "compile_seconds": seconds,
    }


def _cost(analysis: Any) -> Mapping[str, float]:
    # A list with one entry a module in some versions of jax.
    return (analysis[0] if isinstance(analysis, list) else analysis) or {}


def _with_lines(text: str) -> str:
    """The program with the source lines that it was compiled from, which are in its metadata; not with those that led
    to the compiling, which change with every edit of a test.
    """
    located = number_locations(text)
    lines = (
        f"{frame.file}:{frame.line}:{frame.function}"
        for stack in located.stacks.values()
        for frame in itertools.takewhile(lambda frame: not frame.file.startswith(_INSTRUMENTS), stack)
    )
    return "\n".join((located.text, *lines))


def _key(lowered: LoweredCall, device_kind: str, version: str) -> str:
    """What the program depends on. XLA's CPU compiler cuts loops into as many parts as the process may use cores."""
    parts = {
        "format": _FORMAT,
        "device_kind": device_kind,
        "version": version,
        "jaxlib": jaxlib.__version__,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "flags": [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")],
        "config": configuration(),
        "options": _jax_internals.compiler_options(lowered.lowered),
    }
    return hashlib.sha256(f"{json.dumps(parts, sort_keys=True)}\n{_with_lines(lowered.text)}".encode()).hexdigest()
