"""What a device to compile for is, of any kind: its memory, its published peak rates, how its compiler is asked."""

import abc
import dataclasses
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
    """

    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    source: str
    link_bandwidth: float | None = None
    network_bandwidth: float | None = None


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
