"""The cost estimates of Pallas kernels as the trace has them: JAX drops them when it lowers a kernel for a GPU.

A kernel of the compiled program is found by its line and the shapes of its results.
"""

import collections
import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from perfsuite.measure.hlo.hlo_module import Computation, Instruction, Module
from perfsuite.measure.private.lowering import line_of
from perfsuite.measure.program.jaxprs import equations

GPU_KERNELS = ("__gpu$xla.gpu.triton", "mosaic_gpu", "mosaic_gpu_v2")
"""The custom calls of kernels for a GPU."""

# "model.py:42:8 (step)"
_LINE = re.compile(r"(.*?:\d+)(?::\d+)?(?: \(.*\))?\Z")
_COSTS = ("flops", "transcendentals", "bytes_accessed")


@dataclasses.dataclass(frozen=True)
class KernelEstimate:
    """What the author of a kernel says of its cost; `flops` and the others are None where nothing is said.

    `place` is the `file:line` of the `pallas_call`, `results` are the shapes of what it returns.
    """

    place: str
    results: tuple[tuple[int, ...], ...]
    flops: int | None = None
    transcendentals: int | None = None
    bytes_accessed: int | None = None


def estimates_in(jaxpr: Any) -> tuple[KernelEstimate, ...]:
    """The estimates of all kernels in a trace, each once."""
    found: dict[KernelEstimate, None] = {}
    for equation in equations(jaxpr):
        if equation.primitive.name == "pallas_call":
            line = _LINE.match(line_of(equation))
            place = line[1] if line else ""
            results = tuple(tuple(result.aval.shape) for result in equation.outvars)
            said = equation.params.get("cost_estimate")
            costs = {} if said is None else {name: int(getattr(said, name)) for name in _COSTS}
            found[KernelEstimate(place, results, **costs)] = None
    return tuple(found)


def with_estimates(module: Module, estimates: Iterable[KernelEstimate]) -> Module:
    """The program with the estimates of its GPU kernels; the same object where it has none without one.

    Where two kernels of one line and shape differ, neither is known.
    """
    known: dict[tuple[str, Any], set[KernelEstimate]] = collections.defaultdict(set)
    for each in estimates:
        known[each.place, each.results].add(each)
    said = {key: one for key, (one, *others) in known.items() if not others and one.flops is not None}
    changed = {}
    for name, computation in module.computations.items():
        instructions = tuple(_estimated(op, said) for op in computation.instructions)
        if instructions != computation.instructions:
            changed[name] = Computation(name, instructions)
    return dataclasses.replace(module, computations={**module.computations, **changed}) if changed else module


def _estimated(op: Instruction, said: dict[tuple[str, Any], KernelEstimate]) -> Instruction:
    if op.custom_call_target not in GPU_KERNELS or op.cost_estimate is not None:
        return op
    results = tuple(shape.dims for shape in op.shapes)
    places = (f"{frame.file}:{frame.line}" for frame in op.stack)
    found = next((said[place, results] for place in places if (place, results) in said), None)
    return op if found is None else dataclasses.replace(op, cost_estimate={n: getattr(found, n) for n in _COSTS})
