"""Devices that programs are compiled for, present or not: their memory, their published peak rates, their slices.

Everything here is per JAX device. Google publishes per chip: on a tpu7x a chip is two JAX devices, so its numbers are
halved; on a v4 and a v5p the two cores of a chip work as one JAX device ("megacore").
"""

import dataclasses
import math
from typing import Any, ClassVar

from perfsuite.measure.targets.gpu_targets import GPUS, OTHER_GPUS
from perfsuite.measure.targets.target import GIGA, GIGABITS, TERA, Rates, Target


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


def _tpu_rates(page: str, bandwidth: float, links: tuple[float, float] | None = None, **peak_flops: float) -> Rates:
    """`links` are the bandwidths of the links and of the network."""
    return Rates(peak_flops, bandwidth, f"https://docs.cloud.google.com/tpu/docs/{page}", *(links or ()))


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
_V4_RATES = _tpu_rates("v4", 1200 * GIGA, bf16=275 * TERA, int8=275 * TERA)
_V4 = TpuTarget("tpu-v4", "TPU v4", _gib(30.75), _V4_RATES, _CUBIC, chip_config="megacore")
# v5e: the page has said 819 GB/s as well as "800 GiBps" (859 GB/s); jax uses 819, too.
# The network of a host of 8 chips is 2 x 100 Gbit/s, that of a pod of 256 chips 6.4 Tbit/s.
_V5E_RATES = _tpu_rates("v5e", 819 * GIGA, (400 * GIGA, 25 * GIGABITS), bf16=197 * TERA, int8=393 * TERA)
_V5E = TpuTarget("tpu-v5e", "TPU v5 lite", _gib(15.75), _V5E_RATES, _FLAT)
_V5P_RATES = _tpu_rates("v5p", 2765 * GIGA, (1200 * GIGA, 50 * GIGABITS), bf16=459 * TERA)
_V5P = TpuTarget("tpu-v5p", "TPU v5", _gib(95.74), _V5P_RATES, (*_CUBIC, (16, 16, 24)))
_V6E_RATES = _tpu_rates("v6e", 1638 * GIGA, (800 * GIGA, 100 * GIGABITS), bf16=918 * TERA, int8=1836 * TERA)
_V6E = TpuTarget("tpu-v6e", "TPU v6 lite", _gib(31.25), _V6E_RATES, _FLAT)
_V7_LINKS = 1200 / 2 * GIGA, 100 / 2 * GIGABITS
_V7_RATES = _tpu_rates("tpu7x", 7380 / 2 * GIGA, _V7_LINKS, bf16=2307 / 2 * TERA, fp8=4614 / 2 * TERA)
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
    for known in TARGETS.values():
        if device_kind in (known.device_kind, _OTHER_KINDS.get(known.name)):
            return known.rates
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
