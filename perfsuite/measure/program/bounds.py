"""The least time that a program can take at a device's published rates, for each thing that it is limited by."""

from collections.abc import Iterable
from typing import Literal

from perfsuite.measure.targets.target import Rates

Limit = Literal["compute", "memory", "links", "network"]
"""FLOP/s; the bandwidth of the memory, of the links inside a slice or host, and of the network between slices."""

_RATES = {"bf16": "bf16", "f16": "fp16", "f64": "fp64", "s8": "int8", "u8": "int8"}
"""XLA's types, and those of published rates. float32 and float8 have several."""

_PASSES = {"default": 1, "high": 3, "highest": 3}
"""Products of bfloat16 that a TPU makes at least for one of float32 (`jax.lax.Precision`)."""


def compute_seconds(rates: Rates, products: Iterable[tuple[str, str, float]], others: float) -> float:
    """The time of the products, each a type, a precision and its FLOP, and of other FLOP at the fastest rate.

    Products of a type without a published rate count nothing.
    """
    seconds = others / max(rates.peak_flops.values())
    for dtype, precision, flops in products:
        rate = rate_of(rates, dtype, precision)
        seconds += 0.0 if rate is None else flops / rate
    return seconds


def rate_of(rates: Rates, dtype: str, precision: str) -> float | None:
    """The FLOP/s of products of an XLA type at a precision of JAX."""
    peak = rates.peak_flops
    if dtype == "f32" and "fp32" in peak:
        return peak["fp32"] if precision == "highest" else peak.get("tf32", peak["fp32"])
    if dtype == "f32" and "bf16" in peak:
        return peak["bf16"] / _PASSES[precision]
    return peak.get("fp8" if dtype.startswith("f8") else _RATES.get(dtype, ""))


def transfer_seconds(rates: Rates, accessed: float, inside: float, between: float) -> dict[Limit, float]:
    """The times of the bytes accessed, and of those that collectives move inside a slice and between slices.

    A rate that is not published is left out.
    """
    bandwidths: dict[Limit, tuple[float, float | None]] = {
        "memory": (accessed, rates.memory_bandwidth),
        "links": (inside, rates.link_bandwidth),
        "network": (between, rates.network_bandwidth),
    }
    return {limit: amount / rate for limit, (amount, rate) in bandwidths.items() if rate is not None}
