"""Devices that programs are compiled for, present or not: their memory, their published peak rates, their slices.

Everything here is per JAX device. Google publishes per chip: on a tpu7x a chip is two JAX devices, so its numbers are
halved; on a v4 and a v5p the two cores of a chip work as one JAX device ("megacore").
"""

import dataclasses
import math
from collections.abc import Mapping

TERA = 1e12
GIGA = 1e9


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the maker publishes of one JAX device, and the page that says so.

    `peak_flops` are dense FLOP/s (int8: operations/s) by data type, `memory_bandwidth` is in bytes/s.
    """

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
    memory_bytes: int
    rates: Rates
    slices: tuple[tuple[int, ...], ...]
    devices_per_chip: int = 1
    chip_config: str = "default"


def _gib(count: float) -> int:
    return math.floor(count * 2**30)


def _tpu_rates(page: str, bandwidth: float, **peak_flops: float) -> Rates:
    return Rates(peak_flops, bandwidth, f"https://docs.cloud.google.com/tpu/docs/{page}")


# https://cloud.google.com/tpu/docs/v5e and v6e. A slice of one chip is offered too, but a program for one device of it
# differs from one for a device of four in the size of its code (55296 for 55808 bytes), so it is not worth a name.
_FLAT = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
# https://cloud.google.com/tpu/docs/v4 and v5p: a host of four chips is the smallest.
_CUBIC = (
    *((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8)),
    *((8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16)),
)

# v4: 275 TFLOP/s "bf16 or int8". By itself libtpu would make each core a device, which no v4 that users can have does.
_V4_RATES = _tpu_rates("v4", 1200 * GIGA, bf16=275 * TERA, int8=275 * TERA)
_V4 = Target("tpu-v4", "TPU v4", _gib(30.75), _V4_RATES, _CUBIC, chip_config="megacore")
# v5e: the page has said 819 GB/s as well as "800 GiBps" (859 GB/s); jax uses 819, too.
_V5E_RATES = _tpu_rates("v5e", 819 * GIGA, bf16=197 * TERA, int8=393 * TERA)
_V5E = Target("tpu-v5e", "TPU v5 lite", _gib(15.75), _V5E_RATES, _FLAT)
_V5P_RATES = _tpu_rates("v5p", 2765 * GIGA, bf16=459 * TERA)
_V5P = Target("tpu-v5p", "TPU v5", _gib(95.74), _V5P_RATES, (*_CUBIC, (16, 16, 24)))
_V6E_RATES = _tpu_rates("v6e", 1638 * GIGA, bf16=918 * TERA, int8=1836 * TERA)
_V6E = Target("tpu-v6e", "TPU v6 lite", _gib(31.25), _V6E_RATES, _FLAT)
_V7_RATES = _tpu_rates("tpu7x", 7380 / 2 * GIGA, bf16=2307 / 2 * TERA, fp8=4614 / 2 * TERA)
_V7 = Target("tpu7x", "TPU7x", _gib(94.75), _V7_RATES, _CUBIC, devices_per_chip=2)

TARGETS = {target.name: target for target in (_V4, _V5E, _V5P, _V6E, _V7)}

# Names that jax knows a TPU by, beside those that compile-only devices have (jax 0.10.2, pallas' `tpu_info`).
_OTHER_KINDS = {"tpu-v5e": "TPU v5e", "tpu-v5p": "TPU v5p", "tpu-v6e": "TPU v6e"}

# Dense rates: the data sheets also print ones twice as high, which need half of each matrix to be zeros.
_H100 = Rates(
    {"bf16": 989 * TERA, "fp16": 989 * TERA, "tf32": 494 * TERA, "fp32": 67 * TERA, "int8": 1979 * TERA},
    3.35 * TERA,
    "https://www.nvidia.com/en-us/data-center/h100/",
)
_H200 = dataclasses.replace(_H100, memory_bandwidth=4.8 * TERA, source="https://www.nvidia.com/en-us/data-center/h200/")
_A100_FLOPS = {"bf16": 312 * TERA, "fp16": 312 * TERA, "tf32": 156 * TERA, "fp32": 19.5 * TERA, "int8": 624 * TERA}
_A100_SHEET = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_A100_BANDWIDTHS = {"SXM4-40GB": 1555, "PCIE-40GB": 1555, "SXM4-80GB": 2039}
_GPUS = {
    "NVIDIA H100 80GB HBM3": _H100,
    "NVIDIA H200": _H200,
    "NVIDIA A100 80GB PCIe": Rates(_A100_FLOPS, 1935 * GIGA, _A100_SHEET),
    **{f"NVIDIA A100-{kind}": Rates(_A100_FLOPS, rate * GIGA, _A100_SHEET) for kind, rate in _A100_BANDWIDTHS.items()},
}


def target(name: str) -> Target:
    """The target of this name. Raises `ValueError` that lists the names there are."""
    try:
        return TARGETS[name]
    except KeyError:
        raise ValueError(f"no target {name!r}: there are {', '.join(TARGETS)}") from None


def peak_rates(device_kind: str) -> Rates | None:
    """The published rates of a device, by the `device_kind` that JAX gives it; `None` where they are not known here."""
    for known in TARGETS.values():
        if device_kind in (known.device_kind, _OTHER_KINDS.get(known.name)):
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
            return f"{target.name.removeprefix('tpu-')}:{'x'.join(map(str, shape))}"
    largest = math.prod(target.slices[-1]) * target.devices_per_chip
    raise ValueError(f"{target.name} has slices of up to {largest} devices, not {devices}")
