"""Devices that programs are compiled for, present or not: their memory, their published peak rates, their slices.

Everything here is per JAX device. Google publishes per chip: on a tpu7x a chip is two JAX devices, so its metrics are
halved; on a v4 and a v5p the two cores of a chip work as one JAX device ("megacore").
"""

import dataclasses
import math
from collections.abc import Mapping

TERA = 1e12
GIGA = 1e9


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the maker publishes of one JAX device: dense FLOP/s by data type, memory bytes/s, and where it says so."""

    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    source: str


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of TPU to compile for.

    `memory_bytes` is what the compiler lets a program on one JAX device use: less than the HBM that is built in, and
    rounded to the hundredth of a GiB that the compiler's own message has. `slices` are shapes in chips that Google
    Cloud offers, the smallest first; `chip_config` is libtpu's name for how cores make up a device.
    """

    name: str
    device_kind: str
    generation: str
    devices_per_chip: int
    memory_bytes: int
    rates: Rates
    slices: tuple[tuple[int, ...], ...]
    chip_config: str = "default"

    @property
    def peak_flops(self) -> Mapping[str, float]:
        """Dense FLOP/s (int8: operations/s) of one JAX device by data type, as far as published."""
        return self.rates.peak_flops

    @property
    def memory_bandwidth(self) -> float:
        """Bytes/s between the memory and the cores of one JAX device."""
        return self.rates.memory_bandwidth

    @property
    def source(self) -> str:
        """Where the rates are published."""
        return self.rates.source


def _gib(count: float) -> int:
    return math.floor(count * 2**30)


# https://cloud.google.com/tpu/docs/v5e and v6e. A slice of one chip is offered too, but a program for one device of it
# differs from one for a device of four in the size of its code (55296 for 55808 bytes), so it is not worth a name.
_FLAT = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
# https://cloud.google.com/tpu/docs/v4 and v5p: a host of four chips is the smallest.
_CUBIC = (
    *((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8)),
    *((8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16)),
)

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="tpu-v4",
            device_kind="TPU v4",
            generation="v4",
            devices_per_chip=1,
            memory_bytes=_gib(30.75),
            # 275 TFLOP/s "bf16 or int8".
            rates=Rates(
                {"bf16": 275 * TERA, "int8": 275 * TERA}, 1200 * GIGA, "https://docs.cloud.google.com/tpu/docs/v4"
            ),
            slices=_CUBIC,
            # By itself libtpu would make each core a device of its own, which no v4 that users can have does.
            chip_config="megacore",
        ),
        Target(
            name="tpu-v5e",
            device_kind="TPU v5 lite",
            generation="v5e",
            devices_per_chip=1,
            memory_bytes=_gib(15.75),
            # The page has said 819 GB/s as well as "800 GiBps" (859 GB/s); this is the one that jax uses, too.
            rates=Rates(
                {"bf16": 197 * TERA, "int8": 393 * TERA}, 819 * GIGA, "https://docs.cloud.google.com/tpu/docs/v5e"
            ),
            slices=_FLAT,
        ),
        Target(
            name="tpu-v5p",
            device_kind="TPU v5",
            generation="v5p",
            devices_per_chip=1,
            memory_bytes=_gib(95.74),
            rates=Rates({"bf16": 459 * TERA}, 2765 * GIGA, "https://docs.cloud.google.com/tpu/docs/v5p"),
            slices=(*_CUBIC, (16, 16, 24)),
        ),
        Target(
            name="tpu-v6e",
            device_kind="TPU v6 lite",
            generation="v6e",
            devices_per_chip=1,
            memory_bytes=_gib(31.25),
            rates=Rates(
                {"bf16": 918 * TERA, "int8": 1836 * TERA}, 1638 * GIGA, "https://docs.cloud.google.com/tpu/docs/v6e"
            ),
            slices=_FLAT,
        ),
        Target(
            name="tpu7x",
            device_kind="TPU7x",
            generation="tpu7x",
            devices_per_chip=2,
            memory_bytes=_gib(94.75),
            rates=Rates(
                {"bf16": 2307 / 2 * TERA, "fp8": 4614 / 2 * TERA},
                7380 / 2 * GIGA,
                "https://docs.cloud.google.com/tpu/docs/tpu7x",
            ),
            slices=_CUBIC,
        ),
    )
}

# Names that jax knows a TPU by, beside those that compile-only devices have (jax 0.10.2, pallas' `tpu_info`).
_OTHER_KINDS = {"TPU v5e": "tpu-v5e", "TPU v5p": "tpu-v5p", "TPU v6e": "tpu-v6e"}

# Dense rates: the data sheets also print ones twice as high, which need half of each matrix to be zeros.
_H100 = Rates(
    {"bf16": 989 * TERA, "fp16": 989 * TERA, "tf32": 494 * TERA, "fp32": 67 * TERA, "int8": 1979 * TERA},
    3.35 * TERA,
    "https://www.nvidia.com/en-us/data-center/h100/",
)
_H200 = dataclasses.replace(_H100, memory_bandwidth=4.8 * TERA, source="https://www.nvidia.com/en-us/data-center/h200/")
_A100_SHEET = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_A100 = {"bf16": 312 * TERA, "fp16": 312 * TERA, "tf32": 156 * TERA, "fp32": 19.5 * TERA, "int8": 624 * TERA}
_GPUS = {
    "NVIDIA H100 80GB HBM3": _H100,
    "NVIDIA H200": _H200,
    "NVIDIA A100-SXM4-40GB": Rates(_A100, 1555 * GIGA, _A100_SHEET),
    "NVIDIA A100-PCIE-40GB": Rates(_A100, 1555 * GIGA, _A100_SHEET),
    "NVIDIA A100-SXM4-80GB": Rates(_A100, 2039 * GIGA, _A100_SHEET),
    "NVIDIA A100 80GB PCIe": Rates(_A100, 1935 * GIGA, _A100_SHEET),
}


def target(name: str) -> Target:
    """The target of this name. Raises `ValueError` that lists the names there are."""
    try:
        return TARGETS[name]
    except KeyError:
        raise ValueError(f"no target {name!r}: there are {', '.join(TARGETS)}") from None


def peak_rates(device_kind: str) -> Rates | None:
    """The published rates of a device, by the `device_kind` that JAX gives it; `None` where they are not known here."""
    if device_kind in _OTHER_KINDS:
        return TARGETS[_OTHER_KINDS[device_kind]].rates
    for known in TARGETS.values():
        if known.device_kind == device_kind:
            return known.rates
    return _GPUS.get(device_kind)


def topology_name(target: Target, devices: int) -> str:
    """The smallest slice with at least that many JAX devices, by the name that libtpu gives it ("v5e:2x2").

    Raises `ValueError` where no slice is that large.
    """
    if devices < 1:
        raise ValueError(f"a program needs at least 1 device, not {devices}")
    for shape in target.slices:
        if math.prod(shape) * target.devices_per_chip >= devices:
            return f"{target.generation}:{'x'.join(map(str, shape))}"
    largest = math.prod(target.slices[-1]) * target.devices_per_chip
    raise ValueError(f"{target.name} has slices of up to {largest} devices, not {devices}")
