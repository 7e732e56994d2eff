"""The facts of a program as metrics, each with its unit, its kind, and the parts that it is made of."""

import collections
from collections.abc import Iterable, Iterator, Sequence

from perfsuite.measure.measurement import Better, Kind, Metric
from perfsuite.measure.program.program import Operation, Program, place_of

PARTS = 24
"""At most so many parts of a metric are kept, the largest: a baseline is to be read by people."""

OTHERS = "all others"
"""The part that stands for those that are not kept."""


def metrics_of(program: Program) -> list[Metric]:
    """Every fact of the program as a metric named after its label."""
    return list(_metrics(program))


def facts_of(program: Program) -> dict[str, float]:
    """The facts that are gated, by name without the label: programs with equal ones do the same work."""
    prefix = len(program.label) + 1
    return {made.name[prefix:]: made.value for made in metrics_of(program) if made.kind != "info"}


def _metrics(program: Program) -> Iterator[Metric]:
    def metric(
        name: str,
        value: float,
        unit: str,
        kind: Kind,
        parts: Iterable[tuple[Operation, int]] = (),
        better: Better = "lower",
    ) -> Metric:
        detail, places = _detail(parts)
        return Metric(
            f"{program.label} {name}",
            value,
            unit,
            kind,
            better,
            detail=detail,
            places=places,
            target=program.target,
        )

    def count(name: str, operations: Sequence[Operation], unit: str) -> Metric:
        return metric(name, len(operations), unit, "count", ((operation, 1) for operation in operations))

    by_bytes = [(operation, operation.bytes) for operation in program.operations]
    by_flops = [(product, product.flops) for product in program.products]
    yield metric("flops", program.flops, "FLOP", "size", by_flops)
    yield metric("transcendentals", program.transcendentals, "operations", "size")
    yield metric("bytes accessed", program.bytes_accessed, "bytes", "size", by_bytes)
    yield Metric(
        f"{program.label} peak bytes",
        program.peak_bytes,
        "bytes",
        "size",
        detail=program.memory_use,
        target=program.target,
    )
    yield metric("argument bytes", program.argument_bytes, "bytes", "size")
    yield metric("output bytes", program.output_bytes, "bytes", "size")
    yield metric("temp bytes", program.temp_bytes, "bytes", "size")
    yield metric("alias bytes", program.alias_bytes, "bytes", "size", better="higher")
    yield metric("code bytes", program.code_bytes, "bytes", "size")
    yield count("fusions", program.fusions, "fusions")
    yield count("products", program.products, "products")
    yield count("float32 products", program.float32_products, "products")
    yield count("high precision products", program.high_precision_products, "products")
    yield count("custom calls", program.custom_calls, "calls of the device")
    yield count("copies", program.copies, "copies")
    yield count("transposes", program.transposes, "transposes")
    yield count("collectives", program.collectives, "collectives")
    yield metric(
        "collective bytes",
        program.collective_bytes,
        "bytes",
        "size",
        ((made, made.bytes) for made in program.collectives),
    )
    yield count("resharding", program.resharding, "collectives")
    yield count("host transfers", program.host_transfers, "transfers")
    named = [(f"{donation.path} ({donation.reason})", donation.function) for donation in program.lost_donations]
    lost = _largest(collections.Counter(name for name, _ in named))
    yield Metric(
        f"{program.label} lost donations",
        len(program.lost_donations),
        "buffers",
        "count",
        detail=lost or None,
        target=program.target,
        places={name: place_of(function) for name, function in named if function and name in lost} or None,
    )
    if program.estimated_cycles:
        yield metric("estimated cycles", program.estimated_cycles, "cycles, relative", "info")
    yield metric("arithmetic intensity", program.arithmetic_intensity, "FLOP/byte", "info")
    if program.margin_bytes is not None:
        yield metric("memory margin", program.margin_bytes, "bytes", "info", better="higher")
    yield metric("lower seconds", program.lower_seconds, "s", "info")
    yield metric("compile seconds", program.compile_seconds, "s", "info")


def _detail(parts: Iterable[tuple[Operation, int]]) -> tuple[dict[str, int] | None, dict[str, str] | None]:
    """The largest parts of a metric, and the line of the largest operation of each."""
    sums: collections.Counter[str] = collections.Counter()
    largest: dict[str, tuple[int, str]] = {}
    for operation, amount in parts:
        part = operation.part
        sums[part] += amount
        if operation.source is not None and amount > largest.get(part, (-1, ""))[0]:
            largest[part] = amount, operation.where
    kept = _largest(sums)
    places = {part: largest[part][1] for part in kept if part in largest}
    return kept or None, places or None


def _largest(sums: collections.Counter[str]) -> dict[str, int]:
    """At most `PARTS`, the largest first; equal ones by name, because a compiler may change their order."""
    parts = sorted(sums.items(), key=lambda part: (-part[1], part[0]))
    kept = dict(parts[:PARTS])
    if len(parts) > PARTS:
        kept[OTHERS] = sum(amount for _, amount in parts[PARTS:])
    return kept
