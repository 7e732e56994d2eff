"""What the instructions of a compiled program cost, by the rules of XLA's own cost analysis, with loops counted.

XLA counts the body of a loop once. Here it counts as often as it runs. Of a conditional's branches each cost is that of
the branch where it is largest, as XLA has it.

XLA's own analysis of a loop's body does not serve. Python reaches it with the rules of the CPU alone, which count 7 to
66 % fewer bytes than those of a TPU, for they leave out the padding of tiles; and it rounds, for it adds in float32 (38
programs of tests/perf, jax 0.10.2). Calls of NVIDIA's libraries cost what their work is: XLA makes them of some
products, convolutions and factorisations.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import jaxlib
import numpy as np
from packaging.version import Version

from perfsuite.measure.hlo.loops import Place
from perfsuite.measure.hlo.module import Computation, HloModule, Instruction, Shape

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

_LIBRARIES: Final = ("__cublas$", "__cudnn$", "cublas_", "cusolver_", "cusparse_")
_DOTS: Final = ("__cublas$gemm", "__cublas$lt$matmul")
_CONVOLUTIONS: Final = "__cudnn$conv"
_WORKSPACE: Final = ("s8", "u8")


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

    def __init__(self, module: HloModule, counts: Mapping[Place, int | None]):
        self.module = module
        self.counts = counts
        self.computation = functools.cache(self._computation)
        self.named = functools.cache(self._named)

    def total(self) -> Cost:
        """The cost of one run of the program."""
        return self.computation(self.module.entry)

    def _computation(self, name: str) -> Cost:
        """The cost of one run of a computation."""
        return sum((self.instruction(name, op) for op in self.module.computations[name].instructions), Cost())

    def _named(self, name: str) -> Mapping[str, Instruction]:
        """The instructions of a computation by name."""
        return {op.name: op for op in self.module.computations[name].instructions}

    def instruction(self, within: str, op: Instruction) -> Cost:
        """The cost of one run of an instruction of the computation `within`, and of what it calls."""
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
        """The cost of the gather or scatter alone for which a TPU's kernel is made, as XLA has it."""
        custom = op.fusion_kind == "kCustom" and not op.kernel
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
        factors = math.prod(int(math.log2(length)) for length in op.fft_length)
        return Cost(flops=8 * factors * operands[0].shapes[0].elements)
    if op.opcode == "cholesky":
        return Cost(flops=operands[0].shapes[0].dims[-1] * operands[0].shapes[0].elements // 3)
    if op.opcode == "triangular-solve":
        return Cost(flops=2 * operands[0].shapes[0].dims[-1] * operands[1].shapes[0].elements)
    if is_library_call(op.custom_call_target):
        return Cost(flops=library_flops(op, [operand.shapes[0] for operand in operands]) or 0)
    if op.cost_estimate is not None:
        return Cost(op.cost_estimate.get("flops", 0), op.cost_estimate.get("transcendentals", 0))
    return Cost()


def _reduction(op: Instruction, operands: Sequence[Instruction], called: Sequence[Cost]) -> Cost:
    """As often as the function that it applies is applied."""
    results = op.shapes[0].elements
    positions = math.prod(dimension.size for dimension in op.window)
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


def _whole_dimension(op: Instruction) -> int | None:
    """The size of the dimension that each window covers whole, where a TPU so writes a sum that it also broadcasts."""
    moving = [at for at, dimension in enumerate(op.window) if dimension.size != 1]
    padded = [at for at, dimension in enumerate(op.window) if dimension.low or dimension.high]
    if len(op.shapes) != 1 or len(moving) != 1 or moving != padded:
        return None
    window, whole = op.window[moving[0]], op.shapes[0].dims[moving[0]]
    around = whole - 1
    return whole if (window.size, window.low, window.high) == (whole + around, around, around) else None


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
    if is_library_call(op.custom_call_target):
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


def product_flops(op: Instruction, left: Shape, right: Shape) -> int:
    """FLOP of a `dot` or a `convolution` of arrays of these shapes: two for each multiply-add."""
    if op.opcode == "convolution":
        return convolution_flops(op, left, right, op.shapes[0])
    return dot_flops(op, left, op.shapes[0])


def dot_flops(op: Instruction, left: Shape, result: Shape) -> int:
    """FLOP of a matrix product, of which `left` is the first operand."""
    return 2 * math.prod(result.dims) * math.prod(left.dims[dim] for dim in op.contracted)


def convolution_flops(op: Instruction, left: Shape, right: Shape, result: Shape) -> int:
    """Two for each multiply-add of two elements that are there, as XLA counts: none for padding and dilation.

    `left` is convolved with the kernel `right`. A TPU's batched matrix product is a convolution over its
    batch, dilated so that each output meets one element.
    """
    convolution = op.convolution
    assert convolution is not None
    multiply_adds = right.dims[convolution.kernel_input] * math.prod(result.dims[dim] for dim in convolution.output)
    for (into, kernel, out), moves in zip(convolution.spatial, op.window, strict=True):
        steps = moves.stride, moves.input_dilation, moves.kernel_dilation, moves.low
        multiply_adds *= overlaps(left.dims[into], right.dims[kernel], result.dims[out], steps)
    return 2 * multiply_adds


@functools.lru_cache(maxsize=1024)
def overlaps(size: int, kernel: int, outputs: int, steps: tuple[int, int, int, int]) -> int:
    """How often an element of the kernel lies on one of the input, over all positions along one dimension."""
    stride, into_dilation, kernel_dilation, padding = steps
    if not (size and outputs):
        return 0
    # At position p the element k lies on an element of the input where p * stride - ahead[k] is 0, into_dilation, 2 *
    # into_dilation, ...: every `period` positions if at all. Trying all of them is too much for a batch of thousands.
    ahead = padding - np.arange(kernel) * kernel_dilation
    common = math.gcd(stride, into_dilation)
    period = into_dilation // common
    met = ahead // common * pow(stride // common, -1, period) % period
    first = np.maximum(-(-ahead // stride), 0)
    last = np.minimum((ahead + (size - 1) * into_dilation) // stride, outputs - 1)
    times = (last - met) // period - (first - 1 - met) // period
    return int(np.where(ahead % common == 0, np.maximum(times, 0), 0).sum())


def is_library_call(target: str) -> bool:
    """Whether a custom call of this target is one of NVIDIA's libraries."""
    return target.startswith(_LIBRARIES)


def is_library_product(op: Instruction) -> bool:
    """Whether the call is a matrix product or a convolution."""
    return op.custom_call_target.startswith((*_DOTS, _CONVOLUTIONS))


def library_product_flops(op: Instruction, operands: Sequence[Shape]) -> int:
    """FLOP of a product or convolution: two for each multiply-add.

    A convolution has the window and the dimensions of its forward pass in the backward passes too.
    """
    target = op.custom_call_target
    first, second, result = operands[0], operands[1], op.shapes[0]
    if target.startswith(_DOTS):
        return dot_flops(op, first, result)
    if "BackwardInput" in target:
        return convolution_flops(op, result, second, first)
    if "BackwardFilter" in target:
        return convolution_flops(op, first, result, second)
    return convolution_flops(op, first, second, result)


def library_flops(op: Instruction, operands: Sequence[Shape]) -> int | None:
    """FLOP of a call of a library; None where they depend on data, or are not known here.

    Of factorisations those of LAPACK's working note 41, which has all lower orders too; of a triangular solve XLA's.
    """
    if is_library_product(op):
        return library_product_flops(op, operands)
    matrix = operands[0].dims
    if len(matrix) < 2:
        return None
    batch, m, n, k = math.prod(matrix[:-2]), matrix[-2], matrix[-1], min(matrix[-2:])
    name = op.custom_call_target.removeprefix("cusolver_").removesuffix("_ffi")
    if name == "potrf":
        return batch * n**3 // 3
    if name == "getrf":
        return batch * (2 * m * n * k - (m + n) * k**2 + 2 * k**3 // 3)
    if name in ("geqrf", "orgqr"):
        k = k if name == "geqrf" else operands[1].dims[-1]
        return batch * (4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 // 3)
    if name == "__cublas$triangularSolve":
        return 2 * n * operands[1].elements
    return None


def library_bytes(op: Instruction, operands: Sequence[Shape]) -> int:
    """What a call reads and writes; its workspace is no part of that."""
    results = [shape for shape in op.shapes if not (shape.dtype in _WORKSPACE and len(op.shapes) > 1)]
    return sum(shape.bytes for shape in (*operands, *results))
