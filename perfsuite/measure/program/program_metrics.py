"""The facts of a program as metrics, each with its unit, its kind, and its parts."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from perfsuite.measure.metric import ESTIMATED, Kind, Metric
from perfsuite.measure.program.program import DonatedArgument, Operation, Program

PARTS = 24
"""At most so many parts has what is split by path: people read the baselines."""

_FACTS: tuple[tuple[str, str, Kind], ...] = (
    # Of those that were not there before, the first leads the message of a failed test: what tells most stands above.
    ("cross-slice collectives", "collectives", "count"),
    ("cross-slice bytes", "bytes", "size"),
    ("lost donations", "buffers", "count"),
    ("reused donations", "buffers", "count"),
    ("host transfers", "transfers", "count"),
    ("float32 products", "products", "count"),
    ("high precision products", "products", "count"),
    ("exposed collectives", "collectives", "count"),
    ("exposed collective bytes", "bytes", "size"),
    ("resharding", "collectives", "count"),
    ("collectives", "collectives", "count"),
    ("conditionals", "conditionals", "count"),
    ("data-dependent loops", "loops", "count"),
    ("sequential steps", "iterations", "count"),
    ("kernel spills", "spills and fills", "count"),
    ("kernel bundles", "bundles", "size"),
    ("float64 operations", "operations", "size"),
    ("widening conversions", "conversions", "count"),
    ("collective bytes", "bytes", "size"),
    ("custom calls", "calls of the device", "count"),
    ("copies", "copies", "size"),
    ("estimated us", ESTIMATED, "size"),
    ("waiting us", ESTIMATED, "size"),
    ("flops", "FLOP", "size"),
    ("transcendentals", "operations", "size"),
    ("bytes accessed", "bytes", "size"),
    ("launches", "launches", "size"),
    ("peak bytes", "bytes", "size"),
    ("vmem bytes", "bytes", "size"),
    ("argument bytes", "bytes", "size"),
    ("output bytes", "bytes", "size"),
    ("products", "products", "count"),
    ("temp bytes", "bytes", "size"),
    ("code bytes", "bytes", "size"),
    ("fusions", "fusions", "size"),
    ("transposes", "transposes", "size"),
    ("shards", "shards", "info"),
    ("kernel registers", "registers of a thread", "info"),
    ("kernel occupancy", "share of threads", "info"),
    ("arithmetic intensity", "FLOP/byte", "info"),
    ("bound", "s", "info"),
    ("memory margin", "bytes", "info"),
    ("lower seconds", "s", "info"),
    ("compile seconds", "s", "info"),
)
"""Name, unit and kind. The attribute of `Program` has the same name; a tuple counts its members. Of fusions, copies and
transposes a program may have hundreds, and one more or less is no regression: they have the tolerance of a size."""

_SYMPTOMS = ("products", "copies", "temp bytes", "code bytes", "fusions", "transposes")
"""What costs nothing that another fact does not have: the time of the first is in FLOP, that of the second in bytes,
the third is a part of the peak."""

_OF_ALL_RUNS = (
    *("sequential steps", "launches", "flops", "transcendentals", "bytes accessed", "collective bytes"),
    *("exposed collective bytes", "cross-slice bytes", "estimated us", "waiting us", "kernel bundles"),
)
"""The facts that depend on how often loops run, and on which branches are taken."""

_KNOWN: dict[str, Callable[[Program], float | None]] = {
    "estimated us": lambda program: program.known_us,
    "flops": lambda program: program.known.flops,
    "transcendentals": lambda program: program.known.transcendentals,
    "bytes accessed": lambda program: program.known.bytes,
}
"""The facts that are unknown where a part is: "known flops" is the sum of the other parts."""

_AMOUNTS: dict[str, tuple[str, Callable[[Any], float | None]]] = {
    "estimated us": ("operations", lambda operation: operation.total_us),
    "waiting us": ("operations", lambda operation: operation.total_us if operation.limit == "link" else 0),
    "bytes accessed": ("operations", lambda operation: operation.bytes * operation.runs),
    "collective bytes": ("collectives", lambda collective: collective.bytes * collective.runs),
    "exposed collective bytes": ("exposed_collectives", lambda collective: collective.bytes * collective.runs),
    "cross-slice bytes": ("cross_slice_collectives", lambda collective: collective.bytes * collective.runs),
    "launches": ("operations", lambda operation: operation.runs),
    "kernel bundles": ("kernels", lambda kernel: kernel.all_bundles),
    "kernel spills": ("kernels", lambda kernel: kernel.all_spills),
}
"""The facts that are sums over operations: the attribute that has these, and the amount of one; None where unknown."""

FACTS = tuple(name for name, _, _ in _FACTS)
"""The names of all facts. Not every compiler tells each of them."""

_OF_MEMORY = ("peak bytes", "vmem bytes", "argument bytes", "output bytes", "temp bytes", "code bytes")
"""The facts that are the largest of several programs, and no sums."""

GATED_FACTS = tuple(name for name, _, kind in _FACTS if kind != "info")

_ATTRIBUTES = {"bound": "bound_seconds", "memory margin": "margin_bytes"}
_OF_SEVERAL = {
    **dict.fromkeys(("cross-slice collectives", "cross-slice bytes"), "slices"),
    **dict.fromkeys(("waiting us", "shards"), "partitions"),
}
"""Facts of a program that runs in so many, which one alone has not."""

_PARTS_OF: dict[str, Callable[[Program], Mapping[str, float] | None]] = {
    "argument bytes": lambda program: _by_path(program.argument_sizes.items()),
    "output bytes": lambda program: _by_path(program.output_sizes.items()),
    "shards": lambda program: program.shards or None,
    "reused donations": lambda program: _by_path((donation.path, 1) for donation in program.reused_donations),
}
"""Facts whose parts are no operations."""

_REMARKS: dict[str, Callable[[Any], str]] = {
    ESTIMATED: lambda operation: f", bound by {operation.limit}" if operation.limit else "",
    "bundles": lambda kernel: f", with {kernel.all_spills} spills and fills" if kernel.all_spills else "",
}
"""What explains an amount of some units, beside the place of an operation."""

_STEP = re.compile(r"\.\w+|\[(?:'[^']*'|[^]'])*\]|\w+")
"""A step of a path such as `args[0]['w'].scale`."""

_HIGHER_IS_BETTER = ("conditionals", "reused donations", "shards", "memory margin", "kernel occupancy")


def metrics_of(program: Program) -> list[Metric]:
    """Every fact of the program as a metric named after its label, without those that are not known."""
    metrics = []
    for name, unit, kind in _FACTS:
        if name == "kernel spills" and program.kernel_bundles is not None:
            kind = "info"  # a TPU's bundles have what they cost
        value, title = getattr(program, _attribute(name)), name
        operations, amount = _AMOUNTS.get(name, ("", None))
        if value is None and name in _KNOWN:
            value, title = _KNOWN[name](program), f"known {name}"
        elif operations == "kernels" and amount and None in map(amount, program.kernels):
            title = f"known {name}"
        # Not every device knows its rates or its memory.
        if value is not None and not (name in _OF_SEVERAL and getattr(program, _OF_SEVERAL[name]) == 1):
            metrics.append(_metric(program, value, title, unit, kind))
    return metrics


def _attribute(name: str) -> str:
    return _ATTRIBUTES.get(name, re.sub("[ -]", "_", name))


def gated_facts(program: Program) -> dict[str, float]:
    """The facts that are gated, by name without the label: programs with equal ones do the same work."""
    prefix = len(program.label) + 1
    return {metric.name[prefix:]: metric.value for metric in metrics_of(program) if metric.kind != "info"}


def _metric(program: Program, value: Any, name: str, unit: str, kind: Kind) -> Metric:
    amounts: Iterable[tuple[Operation | DonatedArgument, float]] = ()
    whole = name.removeprefix("known ")
    if isinstance(value, tuple):
        amounts, value = [(part, 1) for part in value], len(value)
    elif name == "shards":
        value = sum(value.values())
    elif whole in ("flops", "transcendentals"):
        work = (*program.products, *program.arithmetic)
        amounts = [(operation, getattr(operation, whole) * operation.runs) for operation in work]
    elif whole in _AMOUNTS:
        operations, amount = _AMOUNTS[whole]
        amounts = [(operation, amount(operation) or 0) for operation in getattr(program, operations)]
    elif name == "sequential steps":
        loops = [(dataclasses.replace(loop, what="loop"), loop) for loop in program.loops]
        amounts = [(part, (loop.iterations or 0) * loop.runs) for part, loop in loops]
    elif name == "peak bytes":
        amounts = [(array, array.bytes) for array in program.at_peak if array.role != "argument"]
    elif name == "vmem bytes":
        # Kernels of one part do not hold their memory at the same time.
        largest = {kernel.part: kernel for kernel in sorted(program.kernels, key=lambda kernel: kernel.vmem_bytes or 0)}
        amounts = [(kernel, kernel.vmem_bytes or 0) for kernel in largest.values()]
    detail: Mapping[str, float] | None
    detail, places = _detail(amounts, _REMARKS.get(unit, lambda operation: ""))
    if name in _PARTS_OF:
        detail, places = _PARTS_OF[name](program), None
    if name == "peak bytes":
        detail = _parts_of_peak(program, detail or {})
    if name == "conditionals":
        places = {each.part: each.where for each in (*program.selections, *program.conditionals)}
    if program.programs and name in GATED_FACTS and name not in _OF_MEMORY:
        detail, places = _by_program(program.programs, name), None
    of_all_runs = whole in _OF_ALL_RUNS
    inner = [kernel for kernel in program.kernels if kernel.unknown_loops] if whole == "kernel bundles" else []
    return Metric(
        f"{program.label} {name}",
        _rounded(value) if unit == ESTIMATED else value,
        unit,
        kind,
        "higher" if name in _HIGHER_IS_BETTER else "lower",
        detail=detail,
        places=places,
        target=program.target,
        symptom=name in _SYMPTOMS,
        at_least=places_of((*program.at_least, *inner)) if of_all_runs and value else (),
        at_most=named_places(program.at_most) if of_all_runs and value else (),
    )


def _parts_of_peak(program: Program, arrays: Mapping[str, float]) -> dict[str, float]:
    """The peak as arguments, the largest of the other arrays, the program itself, and the rest."""
    parts: dict[str, float] = {**(_by_path(program.argument_sizes.items()) or {"arguments": program.argument_bytes})}
    parts |= {"code": program.code_bytes, **dict(itertools.islice(arrays.items(), PARTS))}
    parts["smaller arrays and what lies between arrays"] = program.peak_bytes - sum(parts.values())
    return {part: amount for part, amount in parts.items() if amount > 0}


def _rounded(amount: float) -> float:
    """To five digits where it is not whole: a baseline file, which keeps a few more, has the same number."""
    return int(amount) if amount == int(amount) else float(f"{amount:.5g}")


def _by_program(programs: Iterable[Program], name: str) -> dict[str, float] | None:
    sums: dict[str, float] = collections.defaultdict(float)
    for program in programs:
        value = getattr(program, _attribute(name))
        sums[program.label] += len(value) if isinstance(value, tuple) else value or 0
    largest_first = sorted(sums.items(), key=lambda part: -part[1])
    return {label: _rounded(value) for label, value in largest_first if value} or None


def places_of(operations: Iterable[Operation]) -> tuple[str, ...]:
    """Where the operations are, each place once."""
    return tuple(dict.fromkeys(operation.where for operation in operations))


def named_places(operations: Iterable[Operation]) -> tuple[str, ...]:
    """What the operations are and where, each once: `conditional at model.py:42 in layer`."""
    return tuple(dict.fromkeys(f"{operation.what} at {operation.where}" for operation in operations))


def alive_at_peak(program: Program) -> str:
    """`alive at the peak: 12 x f32[8,128] of tanh in layer (model.py) (49,152 bytes) at model.py:12 in layer`."""
    peak = _metric(program, program.peak_bytes, "peak bytes", "bytes", "size")
    counts = collections.Counter(array.part for array in program.at_peak)
    names = []
    for part, amount in sorted((peak.detail or {}).items(), key=lambda part: -part[1])[:3]:
        place = (peak.places or {}).get(part)
        times = f"{counts[part]} x " if counts[part] > 1 else ""
        names.append(f"{times}{part} ({amount:,} bytes){f' at {place}' if place else ''}")
    return f"alive at the peak: {', '.join(names)}"


def why_no_time(program: Program) -> str:
    """Why the estimated time of a program is not known."""
    if program.rates is None:
        return f": no rates of {program.device_kind} are published, or known here"
    lacking = [operation for operation in program.operations if operation.estimated_us is None]
    return f": no source for {', '.join(named_places(lacking)[:3])}" if lacking else ""


def _by_path(amounts: Iterable[tuple[str, int]]) -> dict[str, int] | None:
    """The sums of arguments or outputs below a common path, which is as long as `PARTS` parts allow."""
    steps = [(_STEP.findall(path), amount) for path, amount in amounts]
    parts: collections.Counter[str] = collections.Counter()
    for length in range(2, max((len(path) for path, _ in steps), default=0) + 1):
        finer: collections.Counter[str] = collections.Counter()
        for path, amount in steps:
            finer["".join(path[:length])] += amount
        if parts and len(finer) > PARTS:
            break
        parts = finer
    return dict(parts.most_common()) or None


def _detail(
    parts: Iterable[tuple[Operation | DonatedArgument, float]], remark: Callable[[Any], str]
) -> tuple[dict[str, float] | None, dict[str, str] | None]:
    """The parts of a metric, the largest first, and where the largest operation of each is, with a remark."""
    sums: dict[str, float] = collections.defaultdict(float)
    largest: dict[str, tuple[float, str]] = {}
    for operation, amount in parts:
        if not amount:  # of a loop without iterations
            continue
        part = operation.part
        sums[part] += amount
        if operation.source is not None and amount > largest.get(part, (-1, ""))[0]:
            largest[part] = amount, operation.where + remark(operation)
    # Equal parts by name, because a compiler may change their order.
    sums = {part: _rounded(amount) for part, amount in sums.items()}
    ordered = dict(sorted(sums.items(), key=lambda part: (-part[1], part[0])))
    places = {part: largest[part][1] for part in ordered if part in largest}
    return ordered or None, places or None
