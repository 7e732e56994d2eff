"""NVIDIA's GPUs to compile for: what XLA asks of a device, with the pages that publish it.

XLA reads a device from the text of a `GpuTargetConfigProto`. Programs for the H100 are the same with the text that is
made here and with the one in XLA's repository, which has the rates of every unit too (BERT's train step, jax 0.10.2).
"""

import dataclasses
from typing import Any, ClassVar

from perfsuite.measure.targets.target import GIGA, TERA, Rates, Target

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
    accelerated: bool = False

    @property
    def capability(self) -> str:
        """The field of `GpuTargetConfigProto`."""
        extension = "ACCELERATED_FEATURES" if self.accelerated else "NONE"
        return f"cuda_compute_capability {{ major: {self.major} minor: {self.minor} feature_extension: {extension} }}"


_TURING = Architecture(7, 5, 64, 1024, 64 * _KIB, 64 * _KIB)
_AMPERE = Architecture(8, 0, 64, 2048, 164 * _KIB, 163 * _KIB)
_ADA = Architecture(8, 9, 128, 1536, 100 * _KIB, 99 * _KIB)
_HOPPER = Architecture(9, 0, 128, 2048, 228 * _KIB, 227 * _KIB, accelerated=True)
_BLACKWELL = Architecture(10, 0, 128, 2048, 228 * _KIB, 227 * _KIB, accelerated=True)


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
    compiler_options: ClassVar = {"xla_gpu_autotune_level": 0}

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
        made_of = self.architecture
        return (
            "gpu_device_info {\n"
            f"{_COMMON}"
            f"  {made_of.capability}\n"
            f"  fpus_per_core: {made_of.float32_units}\n"
            f"  threads_per_core_limit: {made_of.threads}\n"
            f"  shared_memory_per_core: {made_of.shared_memory_bytes}\n"
            f"  shared_memory_per_block_optin: {made_of.block_shared_memory_bytes}\n"
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
