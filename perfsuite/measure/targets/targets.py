"""Devices that programs are compiled for, present or not: their memory, their published peak rates, their topologies.

Everything here is per JAX device. Google publishes per chip: on a tpu7x a chip is two JAX devices, so its numbers are
halved; on a v4 and a v5p the two cores of a chip work as one JAX device ("megacore").

XLA reads one of NVIDIA's GPUs from the text of a `GpuTargetConfigProto`. Programs for the H100 are the same with the
text that is made here and with the one in XLA's repository, which has the rates of every unit too (BERT's train step,
jax 0.10.2).
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

TERA = 1e12
GIGA = 1e9
GIGABITS = GIGA / 8


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the maker publishes of one JAX device, and the page that says so.

    `peak_flops` are dense FLOP/s (int8: operations/s) by data type, the bandwidths are in bytes/s. `link_bandwidth` is
    that of the links to other devices of a slice or host, of both directions together; `network_bandwidth` the device's
    part of the data-centre network, in one direction. They are None where they are not published, or not known here.
    A device has so many `links`: one to a switch, or several in rings. `cycles_per_us` is the clock that libtpu counts
    the cycles of a TPU's kernels by (`cycles_per_microsecond` in the schedules that it writes, libtpu 0.0.42.1).
    `vector_flops` are the FLOP/s of what is no product: of a TPU's core those of 4 units with 8 x 128 lanes
    (https://jax-ml.github.io/scaling-book/tpus).
    """

    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    source: str
    link_bandwidth: float | None = None
    network_bandwidth: float | None = None
    links: int = 1
    cycles_per_us: int | None = None
    vector_flops: float | None = None


@dataclasses.dataclass(frozen=True)
class Target(abc.ABC):
    """A kind of device to compile for.

    `memory_bytes` is what a program on one JAX device can use. `platform` is JAX's name of what a program is lowered
    for, `compiler_options` are those that every compile for the target has.
    """

    name: str
    device_kind: str
    memory_bytes: int
    rates: Rates
    devices_per_chip: int = dataclasses.field(default=1, kw_only=True)

    platform: ClassVar[str]
    compiler_options: ClassVar[Mapping[str, str | bool | int | float]] = {}

    @abc.abstractmethod
    def topology(self, devices: int, slices: int = 1) -> dict[str, Any]:
        """The arguments of `topologies.get_topology_desc` for the smallest topology with that many JAX devices.

        `slices` are joined by the network, and each has as many of the devices. Raises `ValueError` where no topology
        is that large, or the target has no slices.
        """


MEMORY_SHARE = 0.75
"""The share of the device's memory that JAX lets programs use: it allocates so much at the start, unless
XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise (https://docs.jax.dev/en/latest/gpu_memory_allocation.html)."""

GPUS_OF_A_HOST = 8
"""In NVIDIA's HGX and DGX systems."""

MOST_HOSTS = 512
"""XLA itself has no limit; a topology of 512 hosts takes 0.05 s."""

_KIB = 1024
_MIB = 1024**2
_GIB = 1024**3

# Every compute capability since 3.0 has these, see `Architecture`.
_COMMON = """\
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
"""

# The libraries that `pip install "jax[cuda12]"` brings: the compiler chooses by their versions.
_LIBRARIES = 'dnn_version_info { major: 9 minor: 10 }\nruntime_version { major: 12 minor: 9 }\nplatform_name: "CUDA"\n'


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What all multiprocessors of a compute capability have, by NVIDIA's tables of compute capabilities.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities. `accelerated` means that XLA compiles
    for the architecture's own instructions as well ("sm_90a"), as it does on a device that has them.
    """

    major: int
    minor: int
    float32_units: int
    threads: int
    shared_memory_bytes: int
    block_shared_memory_bytes: int
    blocks: int
    accelerated: bool = False


_TURING = Architecture(7, 5, 64, 1024, 64 * _KIB, 64 * _KIB, 16)
_AMPERE = Architecture(8, 0, 64, 2048, 164 * _KIB, 163 * _KIB, 32)
_ADA = Architecture(8, 9, 128, 1536, 100 * _KIB, 99 * _KIB, 24)
_HOPPER = Architecture(9, 0, 128, 2048, 228 * _KIB, 227 * _KIB, 32, accelerated=True)
_BLACKWELL = Architecture(10, 0, 128, 2048, 228 * _KIB, 227 * _KIB, 32, accelerated=True)


COST_MODELS = "xla_gpu_collect_cost_model_stats"
"""The option with which a GPU's compiler adds what its models say of each operation."""


@dataclasses.dataclass(frozen=True)
class GpuTarget(Target):
    """A GPU of NVIDIA's.

    `device_memory_bytes` is what its driver says that it has, `memory_bytes` what JAX lets programs use of that.
    `clock_ghz` is the highest clock of its multiprocessors.
    """

    architecture: Architecture
    device_memory_bytes: int
    multiprocessors: int
    l2_bytes: int
    clock_ghz: float

    platform: ClassVar[str] = "cuda"
    # Autotuning needs the device. Without it, the same program comes out on every machine.
    # The costs of XLA's models stand in the program, which is the same with and without them.
    compiler_options: ClassVar = {"xla_gpu_autotune_level": 0, COST_MODELS: True}

    def topology(self, devices: int, slices: int = 1) -> dict[str, Any]:
        """One host with so many GPUs; of more than 8, whole hosts of 8.

        Raises `ValueError` where that is too many, and for several slices, which only TPUs have.
        """
        __tracebackhide__ = True
        if slices > 1:
            raise ValueError(f"{self.name} has no slices: leave slices={slices} out, and ask for chips= GPUs")
        if devices < 1:
            raise ValueError(f"a program needs at least 1 device, not {devices}")
        hosts, of_host = -(-devices // GPUS_OF_A_HOST), min(devices, GPUS_OF_A_HOST)
        if hosts > MOST_HOSTS:
            raise ValueError(f"{self.name} has topologies of up to {MOST_HOSTS * GPUS_OF_A_HOST} GPUs, not {devices}")
        return {"target_config": self.target_config, "topology": f"{hosts}x1x{of_host}"}

    @property
    def target_config(self) -> str:
        """The text of the `GpuTargetConfigProto`."""
        unit = self.architecture
        features = "ACCELERATED_FEATURES" if unit.accelerated else "NONE"
        capability = f"major: {unit.major} minor: {unit.minor} feature_extension: {features}"
        return (
            "gpu_device_info {\n"
            f"{_COMMON}"
            f"  cuda_compute_capability {{ {capability} }}\n"
            f"  fpus_per_core: {unit.float32_units}\n"
            f"  threads_per_core_limit: {unit.threads}\n"
            f"  shared_memory_per_core: {unit.shared_memory_bytes}\n"
            f"  shared_memory_per_block_optin: {unit.block_shared_memory_bytes}\n"
            f"  core_count: {self.multiprocessors}\n"
            f"  l2_cache_size: {self.l2_bytes}\n"
            f"  clock_rate_ghz: {self.clock_ghz}\n"
            f"  memory_bandwidth: {self.rates.memory_bandwidth:.0f}\n"
            f"  device_memory_size: {self.device_memory_bytes}\n"
            "}\n"
            f"{_LIBRARIES}"
            f'device_description_str: "{self.device_kind}"\n'
        )


def _gpu(name: str, kind: str, rates: Rates, architecture: Architecture, memory: int, *chip: float) -> GpuTarget:
    multiprocessors, l2_bytes, clock_ghz = chip
    usable = int(memory * MEMORY_SHARE)
    return GpuTarget(name, kind, usable, rates, architecture, memory, int(multiprocessors), int(l2_bytes), clock_ghz)


# Dense rates: the data sheets also print ones twice as high, which need half of each matrix to be zeros.
_T4 = Rates(
    {"fp16": 65 * TERA, "fp32": 8.1 * TERA, "int8": 130 * TERA},
    320 * GIGA,
    "https://www.nvidia.com/en-us/data-center/tesla-t4/",
)
_L4 = Rates(
    {"bf16": 121 * TERA, "fp16": 121 * TERA, "tf32": 60 * TERA, "fp32": 30.3 * TERA, "int8": 242.5 * TERA},
    300 * GIGA,
    "https://www.nvidia.com/en-us/data-center/l4/",
)
_A100_FLOPS = {"bf16": 312 * TERA, "fp16": 312 * TERA, "tf32": 156 * TERA, "fp32": 19.5 * TERA, "int8": 624 * TERA}
_A100_SHEET = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
# Links: NVLink of the generation, both directions together (https://www.nvidia.com/en-us/data-center/nvlink/). GPUs on
# PCIe cards have it between two of them at most.
_A100 = Rates(_A100_FLOPS, 2039 * GIGA, _A100_SHEET, link_bandwidth=600 * GIGA)
_A100_40GB = Rates(_A100_FLOPS, 1555 * GIGA, _A100_SHEET, link_bandwidth=600 * GIGA)
_A100_PCIE = Rates(_A100_FLOPS, 1935 * GIGA, _A100_SHEET)
_H100 = Rates(
    {"bf16": 989 * TERA, "fp16": 989 * TERA, "tf32": 494 * TERA, "fp32": 67 * TERA, "int8": 1979 * TERA},
    3.35 * TERA,
    "https://www.nvidia.com/en-us/data-center/h100/",
    link_bandwidth=900 * GIGA,
)
_H100_PCIE = Rates(
    {"bf16": 756 * TERA, "fp16": 756 * TERA, "tf32": 378 * TERA, "fp32": 51 * TERA, "int8": 1513 * TERA},
    2 * TERA,
    "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper",
)
_H200 = dataclasses.replace(_H100, memory_bandwidth=4.8 * TERA, source="https://www.nvidia.com/en-us/data-center/h200/")
# Of an HGX B200, an eighth: 36 PFLOP/s in bfloat16 and 72 in int8 "with sparsity", 18 in TF32.
_B200 = Rates(
    {"bf16": 2250 * TERA, "fp16": 2250 * TERA, "tf32": 1125 * TERA, "fp32": 75 * TERA, "int8": 4500 * TERA},
    7.7 * TERA,
    "https://www.nvidia.com/en-us/data-center/hgx/",
    link_bandwidth=1800 * GIGA,
)

# The memory is as CUDA reports it: in XLA's own files of devices, of a T4, an L4 and an A100 for PCIe in GiB as users'
# reports have it. It differs by one per cent between drivers. Multiprocessors, L2 and clock: NVIDIA's white papers.
GPUS = (
    _gpu("gpu-t4", "Tesla T4", _T4, _TURING, int(14.56 * _GIB), 40, 4 * _MIB, 1.59),
    _gpu("gpu-l4", "NVIDIA L4", _L4, _ADA, int(22.03 * _GIB), 58, 48 * _MIB, 2.04),
    _gpu("gpu-a100", "NVIDIA A100-SXM4-80GB", _A100, _AMPERE, 85_100_068_864, 108, 40 * _MIB, 1.41),
    _gpu("gpu-a100-40gb", "NVIDIA A100-SXM4-40GB", _A100_40GB, _AMPERE, 42_298_834_944, 108, 40 * _MIB, 1.41),
    _gpu("gpu-a100-pcie", "NVIDIA A100 80GB PCIe", _A100_PCIE, _AMPERE, int(79.15 * _GIB), 108, 40 * _MIB, 1.41),
    _gpu("gpu-h100", "NVIDIA H100 80GB HBM3", _H100, _HOPPER, 84_942_979_072, 132, 50 * _MIB, 1.98),
    _gpu("gpu-h100-pcie", "NVIDIA H100 PCIe", _H100_PCIE, _HOPPER, 84_942_979_072, 114, 50 * _MIB, 1.755),
    _gpu("gpu-h200", "NVIDIA H200", _H200, _HOPPER, int(139.8 * _GIB), 132, 50 * _MIB, 1.98),
    _gpu("gpu-b200", "NVIDIA B200", _B200, _BLACKWELL, 191_514_411_008, 148, int(126.5 * _MIB), 1.965),
)

OTHER_GPUS = {"NVIDIA A100-PCIE-40GB": dataclasses.replace(_A100_40GB, link_bandwidth=None)}
"""Rates of devices that no target has."""


@dataclasses.dataclass(frozen=True)
class TpuTarget(Target):
    """A kind of TPU to compile for.

    `memory_bytes` is what the compiler lets a program on one JAX device use: less than the HBM that is built in, and
    rounded to the hundredth of a GiB that the compiler's own message has. `slices` are shapes in chips that Google
    Cloud offers, the smallest first; `chip_config` is libtpu's name for how cores make up a device.
    """

    slices: tuple[tuple[int, ...], ...]
    chip_config: str = "default"

    platform: ClassVar[str] = "tpu"

    def topology(self, devices: int, slices: int = 1) -> dict[str, Any]:
        __tracebackhide__ = True
        several = {"num_slices": slices} if slices > 1 else {}
        name = topology_name(self, devices // slices)
        return {"topology_name": name, "chip_config_name": self.chip_config, **several}


def _gib(count: float) -> int:
    return math.floor(count * 2**30)


def _tpu_rates(page: str, bandwidth: float, clock: int, links: tuple[float | None, float | None, int], **flops: float):
    """`links` are the bandwidths of the links and of the network, and how many links there are."""
    page = f"https://docs.cloud.google.com/tpu/docs/{page}"
    return Rates(flops, bandwidth, page, *links, cycles_per_us=clock, vector_flops=4096 * clock * 1e6)


# https://cloud.google.com/tpu/docs/v5e and v6e. A slice of one chip is offered too, but a program for one device of it
# differs from one for a device of four in the size of its code (55296 for 55808 bytes), so it is not worth a name.
_FLAT = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
# https://cloud.google.com/tpu/docs/v4 and v5p: a host of four chips is the smallest.
_CUBIC = (
    *((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8)),
    *((8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16)),
)

# Links and network of v5p, v6e and tpu7x: the table on the page tpu7x, which has all three. The page of v4 has neither.
# v4: 275 TFLOP/s "bf16 or int8". By itself libtpu would make each core a device, which no v4 that users can have does.
_V4_RATES = _tpu_rates("v4", 1200 * GIGA, 1050, (None, None, 6), bf16=275 * TERA, int8=275 * TERA)
_V4 = TpuTarget("tpu-v4", "TPU v4", _gib(30.75), _V4_RATES, _CUBIC, chip_config="megacore")
# v5e: the page has said 819 GB/s as well as "800 GiBps" (859 GB/s); jax uses 819, too.
# The network of a host of 8 chips is 2 x 100 Gbit/s, that of a pod of 256 chips 6.4 Tbit/s.
_V5E_RATES = _tpu_rates("v5e", 819 * GIGA, 1500, (400 * GIGA, 25 * GIGABITS, 4), bf16=197 * TERA, int8=393 * TERA)
_V5E = TpuTarget("tpu-v5e", "TPU v5 lite", _gib(15.75), _V5E_RATES, _FLAT)
_V5P_RATES = _tpu_rates("v5p", 2765 * GIGA, 1750, (1200 * GIGA, 50 * GIGABITS, 6), bf16=459 * TERA)
_V5P = TpuTarget("tpu-v5p", "TPU v5", _gib(95.74), _V5P_RATES, (*_CUBIC, (16, 16, 24)))
_V6E_RATES = _tpu_rates("v6e", 1638 * GIGA, 1750, (800 * GIGA, 100 * GIGABITS, 4), bf16=918 * TERA, int8=1836 * TERA)
_V6E = TpuTarget("tpu-v6e", "TPU v6 lite", _gib(31.25), _V6E_RATES, _FLAT)
_V7_LINKS = 1200 / 2 * GIGA, 100 / 2 * GIGABITS, 6 // 2
_V7_RATES = _tpu_rates("tpu7x", 7380 / 2 * GIGA, 1900, _V7_LINKS, bf16=2307 / 2 * TERA, fp8=4614 / 2 * TERA)
_V7 = TpuTarget("tpu7x", "TPU7x", _gib(94.75), _V7_RATES, _CUBIC, devices_per_chip=2)

TPUS = (_V4, _V5E, _V5P, _V6E, _V7)
TARGETS: dict[str, Target] = {target.name: target for target in (*TPUS, *GPUS)}

# Names that jax knows a TPU by, beside those that compile-only devices have (jax 0.10.2, pallas' `tpu_info`).
_OTHER_KINDS = {"tpu-v5e": "TPU v5e", "tpu-v5p": "TPU v5p", "tpu-v6e": "TPU v6e"}


def target(name: str) -> Target:
    """The target of this name. Raises `ValueError` that lists the names there are."""
    __tracebackhide__ = True
    try:
        return TARGETS[name]
    except KeyError:
        raise ValueError(f"no target {name!r}: there are {', '.join(TARGETS)}") from None


def peak_rates(device_kind: str) -> Rates | None:
    """The published rates of a device, by the `device_kind` that JAX gives it; `None` where they are not known here."""
    for target in TARGETS.values():
        if device_kind in (target.device_kind, _OTHER_KINDS.get(target.name)):
            return target.rates
    return OTHER_GPUS.get(device_kind)


def topology_name(target: TpuTarget, devices: int) -> str:
    """The smallest slice with at least that many JAX devices, by the name that libtpu gives it ("v5e:2x2").

    Raises `ValueError` where no slice is that large.
    """
    __tracebackhide__ = True
    if devices < 1:
        raise ValueError(f"a program needs at least 1 device, not {devices}")
    for shape in target.slices:
        if math.prod(shape) * target.devices_per_chip >= devices:
            return f"{target.name.removeprefix('tpu-')}:{'x'.join(map(str, shape))}"
    largest = math.prod(target.slices[-1]) * target.devices_per_chip
    raise ValueError(f"{target.name} has slices of up to {largest} devices, not {devices}")
