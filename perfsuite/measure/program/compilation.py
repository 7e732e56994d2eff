"""From a call to the facts of its program: lower here, compile here or for a target, read what the compiler says."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib

from perfsuite.measure import progress
from perfsuite.measure.call import Call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.hlo.locations import NumberedText, number_locations, restoring
from perfsuite.measure.hlo.module import Stack, packed, read_module
from perfsuite.measure.private.capabilities import KERNEL_SCHEDULES, LOWERING
from perfsuite.measure.private.lowering import compiler_options
from perfsuite.measure.program.lowering import KernelEstimate, LoweredCall, lower_call
from perfsuite.measure.program.program import DonatedArgument, Operation, Origin, Program, place_of, source_of
from perfsuite.measure.program.program_metrics import alive_at_peak
from perfsuite.measure.program.program_reader import read_program, with_estimates
from perfsuite.measure.serialise import from_plain, plain
from perfsuite.measure.targets import cache as facts_cache
from perfsuite.measure.targets.kernel_code import KernelCode, holds_kernels
from perfsuite.measure.targets.target_compiler import (
    CompileFailed,
    CompilerOutput,
    compile_for,
    configuration,
    output_of,
)
from perfsuite.measure.targets.target_worker import memory_statistics
from perfsuite.measure.targets.targets import TPUS, Rates, Target, peak_rates
from perfsuite.measure.targets.targets import target as target_of

_FORMAT = 4
"""Part of every key of the present device's programs: raised when what an entry holds changes."""

_INSTRUMENTS = os.path.dirname(os.path.dirname(__file__)) + os.sep

_OP_NAME = re.compile(r'\bop_name="([^"]*)"')

_UNLIKE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading raises where a text or a value is unlike what it should be."""


@dataclasses.dataclass(frozen=True)
class Compilation:
    """What a compiler says about a call: enough to read its program again, also in another session.

    `hlo` is the optimised program, and `unsplit_hlo` that of several slices before the compiler splits its collectives
    between them, both `packed`. `memory` are XLA's memory statistics. `stacks` are what the numbers in the program's
    metadata stand for (see `locations`). `kernel_estimates` are those of Pallas kernels, which a GPU's program lacks,
    `codes` what the compiler makes of kernels, by the names of their instructions. `float64_operations` are those of
    the trace: a TPU's program has pairs of float32 in their place.
    """

    origin: Origin
    hlo: str
    memory: Mapping[str, int]
    donations: tuple[DonatedArgument, ...]
    stacks: Mapping[int, Stack]
    unsplit_hlo: str | None = None
    kernel_estimates: tuple[KernelEstimate, ...] = ()
    float64_operations: tuple[Operation, ...] = ()
    codes: Mapping[str, KernelCode] = dataclasses.field(default_factory=dict)
    arguments: tuple[tuple[str, tuple[int, ...]], ...] = ()
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def program(self) -> Program:
        """The facts. Raises `MeasurementError` where the compiler says them in a form that perfsuite does not know."""
        try:
            return self._read()
        except _UNLIKE as error:
            raise MeasurementError(
                f"perf.program({self.origin.label}): the compiled program cannot be read ({type(error).__name__}: "
                f"{error}), under jax {jax.__version__}. Please report it, with the text of the program: "
                "jit(fn).lower(...).compile().as_text()"
            ) from error

    def _read(self) -> Program:
        restored = restoring(self.stacks)
        module = with_estimates(read_module(self.hlo, restored=restored), self.kernel_estimates)
        unsplit = None if self.unsplit_hlo is None else read_module(self.unsplit_hlo, restored=restored)
        more: dict[str, Any] = {"arguments": self.arguments, "outputs": self.outputs, "codes": self.codes}
        program = read_program(self.origin, module, self.memory, self.donations, unsplit, **more)
        if not self.origin.device_kind.startswith("TPU"):
            return program
        return dataclasses.replace(program, float64_operations=self.float64_operations)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, without the device's published rates, and of each stack the frame that messages name."""
        frames = {number: (frame,) for number, stack in self.stacks.items() if (frame := source_of(stack))}
        return plain(dataclasses.replace(self, origin=dataclasses.replace(self.origin, rates=None), stacks=frames))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Compilation":
        """The inverse of `to_dict`, also after a way through JSON. Raises `ValueError` for others."""
        read = from_plain(cls, values)
        origin = dataclasses.replace(read.origin, rates=peak_rates(read.origin.device_kind))
        stacks = {int(number): stack for number, stack in read.stacks.items()}
        return dataclasses.replace(read, origin=origin, stacks=stacks)


def kept_program(entry: Mapping[str, Any] | None) -> Program | None:
    """The program of a cache's entry; None without one, or where it is damaged or of another version of perfsuite."""
    try:
        return Compilation.from_dict(entry).program() if entry else None
    except (*_UNLIKE, MeasurementError):
        return None


def compile_call(
    call: Call,
    target: str | None = None,
    *,
    chips: int | None = None,
    slices: int = 1,
    cache: Path | None = None,
) -> Compilation:
    """Compile a call without running it.

    `target` names a device that need not be present ("tpu-v5e", "gpu-h100"), None is the present one. `chips` asks for
    a slice of that many, or for so many GPUs; the default is the fewest that have a device for each partition of the
    program. With `slices` they are in as many slices of one size, which the network joins. `cache` is a folder for
    compilers' outputs, under the program's text, the compiler's version and its flags.

    Raises `ValueError` for an unknown target, too few chips, or slices that cannot share them equally,
    `TargetUnavailable` when the target's compiler cannot be used here, `CompileFailed` when it refuses the program,
    `HostCallbackError` or `MeasurementError` when the call cannot be lowered.
    """
    __tracebackhide__ = True
    device = _target_of(target, chips, slices)
    with (
        _arrays_of_refused(call, device, slices, cache),
        progress.waiting(f"compiling {call.label}{f' for {target}' if target else ''}"),
    ):
        kind = device.device_kind if device is not None and device.platform == "cuda" else None
        lowered = lower_call(call, None if device is None else device.platform, device_kind=kind)
        stacks: Mapping[int, Stack] = {}
        if device is None:
            output = _output_here(lowered, cache)
        else:
            output, stacks = _output_for(device, lowered, cache, chips=chips, slices=slices)
    of_target = device and (device.device_kind, device.memory_bytes, device.rates)
    device_kind, memory_bytes, rates = of_target or _present_device()
    return Compilation(
        origin=Origin(
            label=call.label,
            target=target,
            device_kind=device_kind,
            partitions=lowered.partitions,
            slices=slices,
            compiler=output.compiler,
            cached=output.cached,
            lower_seconds=lowered.lower_seconds,
            compile_seconds=output.compile_seconds,
            memory_bytes=memory_bytes,
            rates=rates,
        ),
        hlo=output.hlo,
        memory=output.memory,
        donations=lowered.donations,
        stacks=stacks,
        unsplit_hlo=output.unsplit_hlo,
        kernel_estimates=lowered.kernel_estimates,
        float64_operations=lowered.float64_operations,
        codes=output.kernels,
        arguments=lowered.arguments,
        outputs=lowered.outputs,
    )


@contextlib.contextmanager
def _arrays_of_refused(call: Call, device: Target | None, slices: int, cache: Path | None) -> Iterator[None]:
    """Say what takes the memory of a program that a TPU's compiler refuses for it, by the TPU that has most.

    The compiler has no program then, and rarely says it. Nothing is known of a program that is refused there, too.
    """
    try:
        yield
    except CompileFailed as error:
        largest = max(TPUS, key=lambda each: each.memory_bytes)
        if device in TPUS and device is not largest and "hbm" in error.reason.lower():
            with contextlib.suppress(MeasurementError, ValueError):
                arrays = alive_at_peak(compile_call(call, largest.name, slices=slices, cache=cache).program())
                error.arrays = f"On {largest.name}, which has more memory, {arrays}"
        raise


def _target_of(target: str | None, chips: int | None, slices: int) -> Target | None:
    """The target, None for the present device. Raises `ValueError` for what that device cannot be asked for."""
    __tracebackhide__ = True
    device = None if target is None else target_of(target)
    if device is None and chips is not None:
        raise ValueError("perf.program(chips=...) is for a target; the present device is what it is")
    if isinstance(slices, bool) or not isinstance(slices, int) or slices < 1:
        raise ValueError(f"perf.program(slices=) is the number of slices, at least 1, not {slices!r}")
    if device is None and slices != 1:
        raise ValueError(
            'perf.program(slices=...) is for a target, such as "tpu-v5e"; the present device is what it is'
        )
    return device


def _present_device() -> tuple[str, int | None, Rates | None]:
    """Its kind, memory and rates, as far as they are known."""
    device = jax.local_devices()[0]  # one of another process does not know its memory
    memory = (device.memory_stats() or {}).get("bytes_limit")
    return device.device_kind, memory, peak_rates(device.device_kind)


def _output_for(
    target: Target, lowered: LoweredCall, cache: Path | None, **where: Any
) -> tuple[CompilerOutput, Mapping[int, Stack]]:
    """The output of the target's compiler, and the stacks that its numbers stand for."""
    __tracebackhide__ = True
    numbered = number_locations(lowered.text)
    options = compiler_options(lowered.lowered)
    text = numbered.text.encode()
    try:
        output = compile_for(target, text, partitions=lowered.partitions, cache=cache, options=options, **where)
    except CompileFailed as error:
        error.where = _where(error.details, numbered)
        raise
    if target.platform == "tpu" and holds_kernels(text) and not output.kernels:
        KERNEL_SCHEDULES.falls_back("perf.program knows no bundles and spills of a TPU's kernels")
    return output, numbered.stacks


def _where(message: str, numbered: NumberedText) -> str:
    """The lines of the operations that a compiler's message names."""
    stacks = [stack for name in _OP_NAME.findall(message) for stack in numbered.named(name)]
    return ", ".join(dict.fromkeys(place_of(frame) for stack in stacks if (frame := source_of(stack))))


def _output_here(lowered: LoweredCall, cache: Path | None) -> CompilerOutput:
    """The output of the present device's compiler."""
    device = jax.local_devices()[0]
    version = device.client.platform_version
    options = compiler_options(lowered.lowered)
    if options is None:
        cache = None  # a key without them would be that of other programs too
        LOWERING.falls_back("perf.program compiles anew in each session, and knows less of donations and kernels")
    key = _key(lowered, options, device.device_kind, version)
    remembered = output_of(facts_cache.read(cache, key), cached=True)
    if remembered is not None:
        return remembered
    started = time.perf_counter()
    compiled = lowered.lowered.compile()
    seconds = time.perf_counter() - started
    executable: Any = compiled.runtime_executable()
    entry: dict[str, Any] = {
        "hlo": packed(executable.hlo_modules()[0].as_serialized_hlo_module_proto()),
        "memory": memory_statistics(compiled.memory_analysis()),
        "compile_seconds": seconds,
        "compiler": f"jaxlib {jaxlib.__version__}, {version}",
    }
    facts_cache.write(cache, key, entry)
    return CompilerOutput(**entry, cached=False)


def _key(lowered: LoweredCall, options: Mapping[str, Any] | None, device_kind: str, version: str) -> str:
    """A hash of everything that the compiler's output depends on."""
    parts = {
        "format": _FORMAT,
        "device_kind": device_kind,
        "version": version,
        "jaxlib": jaxlib.__version__,
        # XLA's CPU compiler cuts loops into as many parts as the process may use cores.
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "flags": [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")],
        "config": configuration(),
        "options": options,
    }
    numbered = number_locations(lowered.text)
    # The output's metadata has the source lines, without those that lead from a test to the compile: they change with
    # every edit of the test.
    lines = [
        f"{frame.file}:{frame.line}:{frame.function}"
        for stack in numbered.stacks.values()
        for frame in itertools.takewhile(lambda frame: not frame.file.startswith(_INSTRUMENTS), stack)
    ]
    return hashlib.sha256("\n".join([json.dumps(parts, sort_keys=True), numbered.text, *lines]).encode()).hexdigest()
