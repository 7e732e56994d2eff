"""What the instructions of a compiled program cost, by the rules of XLA's own cost analysis, with loops counted.

XLA counts the body of a loop once. Here it counts as often as it runs. Of a conditional's branches each cost is that of
the branch where it is largest, as XLA has it.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

import jaxlib
from packaging.version import Version

from perfsuite.measure.hlo.hlo_module import Computation, Instruction, Module, Shape
from perfsuite.measure.hlo.library_calls import library_bytes, library_flops, library_of
from perfsuite.measure.hlo.product_flops import product_flops
from perfsuite.measure.hlo.trip_counts import Place

_ELEMENTWISE: Final = {
    *("abs", "add", "and", "bitcast-convert", "ceil", "clamp", "compare", "complex", "convert", "count-leading-zeros"),
    *("divide", "floor", "imag", "is-finite", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt"),
    *("real", "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "select", "shift-left"),
    *("shift-right-arithmetic", "shift-right-logical", "sign", "stochastic-convert", "subtract", "xor"),
}
_TRANSCENDENTAL: Final = {
    *("atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log", "log-plus-one", "logistic"),
    *("power", "rng", "rng-bit-generator", "rsqrt", "sine", "sqrt", "tan", "tanh"),
}
_PRODUCTS: Final = ("dot", "convolution")
_REDUCTIONS: Final = ("map", "reduce", "reduce-window", "scatter", "select-and-scatter")
_FREE: Final = {"add-dependency", "after-all", "bitcast", "constant", "domain", "get-tuple-element", "parameter"}
_POINTER_BYTES: Final = 4 if Version(jaxlib.__version__) >= Version("0.11.2") else 8
"""What XLA counts on the CPU, as compiled programs of 0.11.1 and 0.11.2 say."""
_TPU_BLOCK: Final = 512
"""The bytes of the smallest array of a TPU; a table of pointers is whole blocks."""
_FLAG_BYTES: Final = 4096
"""What libtpu 0.0.42 counts for the flag that says that an asynchronous copy has ended, beside both arrays."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """`flops` and `transcendentals` are operations on single elements, `bytes` what is read and written."""

    flops: int = 0
    transcendentals: int = 0
    bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.transcendentals + other.transcendentals, self.bytes + other.bytes)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.flops * times, self.transcendentals * times, self.bytes * times)

    def largest(self, other: "Cost") -> "Cost":
        return Cost(*map(max, dataclasses.astuple(self), dataclasses.astuple(other)))


class CostModel:
    """The costs in a program whose loops run as often as `counts` says; a loop that it lacks counts once."""

    def __init__(self, module: Module, counts: Mapping[Place, int | None]):
        self.module = module
        self.counts = counts
        self.known: dict[str, Cost] = {}
        self.names: dict[str, Mapping[str, Instruction]] = {}

    def total(self) -> Cost:
        """Of one run of the program."""
        return self.computation(self.module.entry)

    def computation(self, name: str) -> Cost:
        """Of one run of a computation."""
        if name not in self.known:
            cost = Cost()
            for op in self.module.computations[name].instructions:
                cost += self.instruction(name, op)
            self.known[name] = cost
        return self.known[name]

    def named(self, name: str) -> Mapping[str, Instruction]:
        if name not in self.names:
            self.names[name] = {op.name: op for op in self.module.computations[name].instructions}
        return self.names[name]

    def instruction(self, within: str, op: Instruction) -> Cost:
        """Of one run of an instruction of the computation `within`, and of what it calls."""
        named = self.named(within)
        operands = [named[operand] for operand in op.operands]
        called = [self.computation(name) for name in op.calls]
        if op.opcode == "while":
            count = self.counts.get((within, op.name))
            return sum(called, Cost()) * (1 if count is None else count)
        if op.opcode == "conditional":
            return functools.reduce(Cost.largest, called, Cost())
        if op.opcode in ("call", "async-start"):
            return sum(called, Cost())
        if op.opcode == "fusion" and called:
            access = self.random_access(op)
            if access is not None:
                return access
            return dataclasses.replace(called[0], bytes=self.fusion_bytes(op))
        return dataclasses.replace(_arithmetic(op, operands, called), bytes=_bytes(op, operands))

    def random_access(self, op: Instruction) -> Cost | None:
        """Of a TPU's kernel made for a gather or a scatter, the cost of that alone, as XLA has it."""
        custom = op.fusion_kind == "kCustom" and op.kernel is None
        inside = self.module.computations[op.calls[0]].instructions if custom else ()
        return next(
            (self.instruction(op.calls[0], part) for part in inside if part.opcode in ("gather", "scatter")), None
        )

    def fusion_bytes(self, op: Instruction) -> int:
        """What a kernel reads and writes; what stays in it is free."""
        computation = self.module.computations[op.calls[0]]
        named = self.named(computation.name)
        root = computation.root
        results = [named[name] for name in root.operands] if root.opcode == "tuple" else [root]
        written = 0
        for number, shape in enumerate(op.shapes):
            result = results[number] if len(results) == len(op.shapes) else root
            update = result.opcode == "dynamic-update-slice"
            written += _size(named[result.operands[1]].shapes) if update else shape.allocated_bytes
        parameters = (part for part in computation.instructions if part.opcode == "parameter")
        return written + sum(self.read_bytes(computation, part) for part in parameters)

    def read_bytes(self, computation: Computation, parameter: Instruction) -> int:
        """What a kernel reads of one of its arguments: of one that it slices, the slices."""
        size, shared = 0, False
        for user in computation.instructions:
            if parameter.name not in user.operands:
                continue
            first = user.operands[0] == parameter.name
            if user.opcode == "fusion" and user.calls:
                inner = self.module.computations[user.calls[0]]
                numbers = [number for number, name in enumerate(user.operands) if name == parameter.name]
                size += sum(self.read_bytes(inner, part) for part in inner.instructions if part.parameter in numbers)
            elif user.opcode == "slice" or (user.opcode == "dynamic-slice" and first):
                size += _size(user.shapes)
            elif user.opcode in ("broadcast", "reshape"):
                size += _size(parameter.shapes)
            elif not (user.opcode == "dynamic-update-slice" and first) and not shared:
                # All other users share one read.
                shared = True
                size += _size(parameter.shapes)
        return size


def _arithmetic(op: Instruction, operands: Sequence[Instruction], called: Sequence[Cost]) -> Cost:
    """The operations of an instruction, without its bytes."""
    elements = sum(shape.elements for shape in op.shapes)
    if op.opcode in _ELEMENTWISE:
        return Cost(flops=elements)
    if op.opcode in _TRANSCENDENTAL:
        return Cost(transcendentals=elements)
    if op.opcode in _PRODUCTS:
        return Cost(flops=product_flops(op, operands[0].shapes[0], operands[1].shapes[0]))
    if op.opcode in _REDUCTIONS:
        return _reduction(op, operands, called)
    if op.opcode in ("all-reduce", "all-reduce-start"):
        return Cost(flops=elements)
    if op.opcode == "sort":
        sorted_elements = operands[0].shapes[0].elements
        return Cost(flops=sorted_elements * math.ceil(math.log2(max(sorted_elements, 1))))
    if op.opcode == "fft":
        factors = math.prod(int(math.log2(int(n))) for n in re.findall(r"\d+", op.attributes["fft_length"]))
        return Cost(flops=8 * factors * operands[0].shapes[0].elements)
    if op.opcode == "cholesky":
        return Cost(flops=operands[0].shapes[0].dims[-1] * operands[0].shapes[0].elements // 3)
    if op.opcode == "triangular-solve":
        return Cost(flops=2 * operands[0].shapes[0].dims[-1] * operands[1].shapes[0].elements)
    if library_of(op.custom_call_target):
        return Cost(flops=library_flops(op, [operand.shapes[0] for operand in operands]) or 0)
    if op.cost_estimate is not None:
        return Cost(op.cost_estimate.get("flops", 0), op.cost_estimate.get("transcendentals", 0))
    return Cost()


def _reduction(op: Instruction, operands: Sequence[Instruction], called: Sequence[Cost]) -> Cost:
    """As often as the function that it applies is applied."""
    results = op.shapes[0].elements
    positions = math.prod(size for size, _ in _window(op))
    if op.opcode == "map":
        return called[0] * results
    if op.opcode == "reduce":
        return called[0] * (operands[0].shapes[0].elements - results)
    if op.opcode == "reduce-window":
        over = _whole_dimension(op)
        return called[0] * (results // over + over - 1 if over else (positions - 1) * results)
    if op.opcode == "scatter":
        return called[0] * operands[len(operands) // 2 + 1].shapes[0].elements
    source = operands[1].shapes[0].elements
    return called[0] * (source * (positions - 1)) + called[1] * source


def _window(op: Instruction) -> list[tuple[int, str]]:
    """The size of a window in each dimension, and its padding, "0_0" for none."""
    fields = dict(re.findall(r"(size|pad)=([\d_x-]+)", op.attributes.get("window", "")))
    sizes = [int(size) for size in fields["size"].split("x")] if fields else []
    return list(zip(sizes, fields["pad"].split("x") if "pad" in fields else ["0_0"] * len(sizes), strict=True))


def _whole_dimension(op: Instruction) -> int | None:
    """The size of the dimension that each window covers whole, where a TPU so writes a sum that it also broadcasts."""
    moving = [at for at, (size, _) in enumerate(_window(op)) if size != 1]
    padded = [at for at, (_, pad) in enumerate(_window(op)) if pad != "0_0"]
    if len(op.shapes) != 1 or len(moving) != 1 or moving != padded:
        return None
    size, pad = _window(op)[moving[0]]
    whole = op.shapes[0].dims[moving[0]]
    return whole if size == 2 * whole - 1 and pad == f"{whole - 1}_{whole - 1}" else None


def _bytes(op: Instruction, operands: Sequence[Instruction]) -> int:
    """What an instruction outside of kernels reads and writes."""
    sizes = [_value_size(operand) for operand in operands]
    result = _value_size(op)
    if op.opcode in _FREE:
        return 0
    if op.opcode == "tuple":
        return _table_size(op)
    if op.opcode == "copy-start":
        return sizes[0] + 2 * sizes[0] + _FLAG_BYTES
    if op.opcode == "sort":
        return sum(sizes) + (_size(op.shapes) if _is_tiled(op) else result)
    if op.opcode == "slice":
        return 2 * result
    if op.opcode == "dynamic-slice":
        return 2 * result + (sizes[1] if len(sizes) > 1 else 0)
    if op.opcode == "gather":
        return (1 + _rows_at_once(operands[0])) * result + sizes[1]
    if op.opcode == "dynamic-update-slice":
        return 2 * sizes[1] + (sizes[2] if len(sizes) > 2 else 0)
    if op.opcode == "scatter":
        arrays = len(sizes) // 2
        return (1 + 2 * _rows_at_once(operands[0])) * sum(sizes[arrays + 1 :]) + sizes[arrays]
    if library_of(op.custom_call_target):
        return library_bytes(op, [operand.shapes[0] for operand in operands])
    if op.opcode == "custom-call":
        return (op.cost_estimate or {}).get("bytes_accessed", 0)
    return result + sum(sizes)


def _value_size(op: Instruction) -> int:
    """Of a tuple it is the size of its table of pointers."""
    return op.shapes[0].allocated_bytes if len(op.shapes) == 1 else _table_size(op)


def _table_size(op: Instruction) -> int:
    size = _POINTER_BYTES * len(op.shapes)
    return -(-size // _TPU_BLOCK) * _TPU_BLOCK if _is_tiled(op) else size


def _is_tiled(op: Instruction) -> bool:
    return any(shape.tile for shape in op.shapes)


def _rows_at_once(op: Instruction) -> int:
    """A TPU reads and writes whole tiles, whichever row of one is asked for."""
    return math.prod(op.shapes[0].tile[:-1])


def _size(shapes: Sequence[Shape]) -> int:
    return sum(shape.allocated_bytes for shape in shapes)
