"""What a compiler makes of the user's kernels: the schedule of a TPU's, registers and spills of a GPU's.

A compiler writes both into files and not into the program. libtpu writes the instructions of each kernel, with
undocumented flags: bundles, of which a TPU starts one a cycle. XLA writes the PTX of each kernel for a GPU, and
`ptxas -v` says what the assembler makes of that.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from perfsuite.measure.hlo.module import HloModule
from perfsuite.measure.installed import installed_file
from perfsuite.measure.targets.target_available import compiler_versions
from perfsuite.measure.targets.targets import Architecture

GPU_KERNELS = ("__gpu$xla.gpu.triton", "mosaic_gpu", "mosaic_gpu_v2")
"""The custom calls of kernels for a GPU. XLA compiles those of Mosaic when the program runs."""

USER_KERNELS = (*GPU_KERNELS, "tpu_custom_call")
"""Custom calls that run a kernel of the user's, whose cost only the user knows."""

_WINDOWS = ("input window allocation", "output window allocation")
"""The comments on what a kernel copies in and out while it computes another step: each makes the loop one longer."""

_SCHEDULE = re.compile(r"(?P<time>\d+)-(?P<name>.+)-\d+-final_bundles\.txt")
_BUNDLE = re.compile(r"^ *(?:0|0x[0-9a-f]+) ([A-Z ]*): (>*) ?\{", re.MULTILINE)
_GRID_LOOP = "iteration index, stage = 0"
_EXIT = re.compile(r" sbr\.rel \(!%(\w+)\)")
_TEST = re.compile(r"%(\w+) = scmp\.ge\.s32\.totalorder (?:\(\S+\), )?%(\w+), (\d+)")
_ADD = re.compile(r"%(\w+) = sadd\.s32 (?:\(\S+\), )?(\d+), %(\w+)")
_PHI = re.compile(r"%(\w+) = sphi %(\w+),")
_CONSTANT = re.compile(r"%(\w+) = smov (?:\(\S+\), )?(\d+)")

_THUNK = re.compile(r'profile_annotation: "([^"]+)"\s+thunk_id: (\d+)')
_LAUNCH = re.compile(
    r"^ *(\d+): kCustomKernel \[.*\] (\S+) grid: \[(\d+), (\d+), (\d+)\] threads: \[(\d+), (\d+), (\d+)\] +"
    r"shared_memory: (\d+) bytes",
    re.MULTILINE,
)
_ENTRY = re.compile(r"\.visible \.entry (\w+)\(")
_ARCHITECTURE = re.compile(r"\.target (\w+)")
_ASSEMBLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads\s+.*?Used (\d+) registers(.*)")
_STATIC_SHARED = re.compile(r"(\d+) bytes smem")

# Of all architectures that there are targets of: a multiprocessor has 4 schedulers, each with its own registers.
_WARP, _SCHEDULERS, _REGISTERS, _REGISTER_UNIT = 32, 4, 16384, 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelCode:
    """The code of a kernel; None for what is not known.

    `grid_steps` are the steps of its grid: of a TPU with two cores those of one core, of a GPU its blocks of threads.

    A TPU starts a bundle of instructions each cycle. `bundles` are those of a grid step: a loop in the kernel counts as
    often as it runs, a branch always. `unknown_loops` are loops whose trip count depends on data: they count once.
    `unit_use` is the share of the instructions that each unit ("MXU", "VALU", ...) could start in these bundles.
    `vmem` are the bytes of VMEM of each operand's and result's blocks, of scratch and of spills, by libtpu's names.

    `spills` are the instructions that write a register to memory because there are too few, `fills` those that read it
    back: vector registers of a TPU, for a GPU the registers of 32 bits of one thread.

    Of a GPU: `registers` and `threads` of a thread and of a block, `shared_bytes` of a block.
    """

    grid_steps: int | None = None
    bundles: int | None = None
    unknown_loops: int = 0
    unit_use: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    vmem: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)
    spills: int | None = None
    fills: int | None = None
    registers: int | None = None
    threads: int | None = None
    shared_bytes: int | None = None


def holds_kernels(stablehlo: bytes) -> bool:
    """Whether a program that is not compiled yet has kernels of the user's."""
    return any(kernel.encode() in stablehlo for kernel in USER_KERNELS)


def kernel_codes(folder: Path, module: HloModule) -> dict[str, KernelCode]:
    """The code of the kernels of a compiled program, by the files that its compiler wrote into a folder."""
    instructions = [op for computation in module.computations.values() for op in computation.instructions]
    names = {op.name for op in instructions if op.custom_call_target in USER_KERNELS}
    return tpu_kernels(folder, names) | gpu_kernels(folder, names)


def tpu_kernels(folder: Path, names: Collection[str]) -> dict[str, KernelCode]:
    """The code of the kernels of these names, by the files that libtpu wrote."""
    codes, memory = {}, _vmem_by_array(folder)
    # By time: of a kernel that the compiler tries twice, the last counts.
    for path in sorted(folder.glob("*-final_bundles.txt")):
        file = _SCHEDULE.fullmatch(path.name)
        if file is None or file["name"] not in names:
            continue
        for slots in folder.glob(f"{file['time']}-{file['name']}-*-final_hlo-static-per-bundle-utilization.txt"):
            with contextlib.suppress(ValueError, LookupError):  # of a compiler that writes them in another way
                code = scheduled(path.read_text(), slots.read_text())
                codes[file["name"]] = dataclasses.replace(code, vmem=memory.get(file["name"], {}))
    return codes


def _vmem_by_array(folder: Path) -> dict[str, dict[str, int]]:
    """The bytes of VMEM of each array, by kernel: the data of the page that libtpu makes of them."""
    arrays: dict[str, dict[str, int]] = collections.defaultdict(collections.Counter)
    for page in folder.glob("*-vmem_report.html"):
        _, _, data = page.read_text().partition("const DATA =")
        with contextlib.suppress(ValueError, LookupError, TypeError):  # of a compiler that writes it in another way
            kernels = json.JSONDecoder().raw_decode(data.lstrip())[0]["hlo_breakdowns"]
            for name, kernel in kernels.items():
                for array in (each for block in kernel["blocks"] for each in block["allocations"]):
                    arrays[name][array["tag"].partition(".")[0]] += array["size"]
    return arrays


def scheduled(bundles: str, slots: str) -> KernelCode:
    """The code of a kernel for a TPU, from the text of its bundles and the table of the slots that each uses.

    Raises `ValueError` or `LookupError` where they are unlike those of the libtpu that perfsuite knows.
    """
    _, units, capacities, _, *rows = slots.splitlines()
    columns = dict(zip(units.split(", "), zip(*(map(int, row.split()) for row in rows), strict=True), strict=True))
    weights, unknown, grid_steps = _weights(bundles)
    if len(rows) != len(weights):
        raise ValueError(f"{len(rows)} rows of slots for {len(weights)} bundles")
    total = sum(weights)
    started = {unit: sum(map(int.__mul__, column, weights)) for unit, column in columns.items() if ":" not in unit}
    most = dict(zip(columns, map(int, capacities.split()), strict=True))
    return KernelCode(
        grid_steps=grid_steps,
        bundles=total,
        unknown_loops=unknown,
        unit_use={unit: round(count / most[unit] / total, 4) for unit, count in started.items()},
        spills=sum(columns["VSTORE:SPILL"]),
        fills=sum(columns["VLOAD:FILL"]),
    )


def _weights(text: str) -> tuple[list[int], int, int | None]:
    """How often each bundle runs in a grid step, how many loops are unknown, and the steps of the grid."""
    parts = _BUNDLE.split(text)[1:]
    keys, depths, bodies = parts[::3], list(map(len, parts[1::3])), parts[2::3]
    trips = _trip_counts(text)
    begins = [place for place, key in enumerate(keys) if "LB" in key]
    weights = [1] * len(keys)
    grid_steps: int | None = 1
    unknown = 0
    for first in begins:
        count = next((trips[register] for register, _ in _PHI.findall(bodies[first]) if register in trips), None)
        if _GRID_LOOP in bodies[first]:
            grid_steps = count and count - sum(window in text for window in _WINDOWS)
            continue
        unknown += count is None
        # Instructions of the loop around it may be among its own, and its branch waits for some empty bundles.
        end = next((place for place in begins if place > first and depths[place] <= depths[first]), len(keys))
        last = max(place for place in range(first, end) if depths[place] >= depths[first])
        while last + 1 < end and bodies[last + 1].startswith("}"):
            last += 1
        for place in range(first, last + 1):
            weights[place] *= count or 1
    return weights, unknown, grid_steps


def _trip_counts(text: str) -> dict[str, int]:
    """How often the loops run that count from one number to another, by the register that counts."""
    additions = {result: (int(step), register) for result, step, register in _ADD.findall(text)}
    starts, constants = dict(_PHI.findall(text)), dict(_CONSTANT.findall(text))
    exits, counts = set(_EXIT.findall(text)), {}
    for test, register, limit in _TEST.findall(text):
        step, counter = additions.get(register, (0, ""))
        start = constants.get(starts.get(counter, ""))
        if test in exits and step and start is not None and int(limit) > int(start):
            counts[counter] = math.ceil((int(limit) - int(start)) / step)
    return counts


def gpu_kernels(folder: Path, names: Collection[str]) -> dict[str, KernelCode]:
    """The code of the kernels of these names, by the files that XLA wrote and the assembler of CUDA."""
    entries: dict[str, Path] = {}
    kernels: dict[int, str] = {}
    launches = []
    for path in folder.glob("*.ptx"):
        entries |= dict.fromkeys(_ENTRY.findall(path.read_text()), path)
    for path in folder.glob("*.thunk_metadata.txt"):
        kernels |= {int(number): name for name, number in _THUNK.findall(path.read_text())}
    for path in folder.glob("*.thunk_sequence.txt"):
        launches += _LAUNCH.findall(path.read_text())
    codes = {}
    for number, entry, *sizes, shared in launches:
        name = kernels.get(int(number), "")
        if name not in names or entry not in entries:
            continue
        code = _assembled(entries[entry])
        codes[name] = dataclasses.replace(
            code,
            grid_steps=math.prod(map(int, sizes[:3])),
            threads=math.prod(map(int, sizes[3:])),
            shared_bytes=None if code.shared_bytes is None else code.shared_bytes + int(shared),
        )
    return codes


@functools.cache
def _assembled(path: Path) -> KernelCode:
    """What the assembler says of a kernel's registers and memory; nothing where it is missing or refuses the kernel."""
    assembler = next(filter(None, (installed_file(each, "ptxas") for each in compiler_versions("cuda"))), "ptxas")
    architecture = _ARCHITECTURE.findall(path.read_text())[0]
    command = [assembler, "-v", "--gpu-name", architecture, "-o", os.devnull, path]
    try:
        log = subprocess.run(command, capture_output=True, text=True).stderr
    except OSError:
        return KernelCode()
    for stored, loaded, registers, rest in _ASSEMBLED.findall(log):
        static = sum(map(int, _STATIC_SHARED.findall(rest)))
        return KernelCode(
            spills=int(stored) // 4, fills=int(loaded) // 4, registers=int(registers), shared_bytes=static
        )
    return KernelCode()


def occupancy(code: KernelCode, unit: Architecture) -> float | None:
    """The share of the threads of a multiprocessor that blocks of a kernel can fill; None where it is not known.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#hardware-multithreading
    """
    if code.registers is None or code.threads is None or code.shared_bytes is None:
        return None
    warps = math.ceil(code.threads / _WARP)
    of_warp = math.ceil(code.registers * _WARP / _REGISTER_UNIT) * _REGISTER_UNIT
    # A block takes the memory that the driver reserves for it too.
    shared = code.shared_bytes + unit.shared_memory_bytes - unit.block_shared_memory_bytes
    blocks = min(
        unit.blocks,
        unit.threads // (warps * _WARP),
        _SCHEDULERS * (_REGISTERS // of_warp) // warps,
        unit.shared_memory_bytes // max(shared, 1),
    )
    return blocks * warps * _WARP / unit.threads
