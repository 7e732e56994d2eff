"""What the instructions of a compiled program cost: the sum over its operations as they run.

An operation costs the FLOP that XLA's own cost analysis has for it, on complex numbers those on real ones. It reads
each of its operands once and writes its results. A kernel reads its arguments, and what stays in it is free. What
slices, gathers, scatters and updates in place do not touch is free, too: XLA counts a whole table, on a TPU once for
each index. A loop counts as often as it runs. Of a conditional's branches each cost is that of the branch where it is
largest, as XLA has it.

XLA's own analysis does not serve: it counts the body of a loop once, nothing for a library's function, and it rounds,
for it adds in float32.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Final

import numpy as np

from perfsuite.measure.hlo.loops import Place
from perfsuite.measure.hlo.module import Computation, HloModule, Instruction, Shape

ELEMENTWISE: Final = {
    *("abs", "add", "and", "bitcast-convert", "ceil", "clamp", "compare", "complex", "convert", "count-leading-zeros"),
    *("divide", "floor", "imag", "is-finite", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt"),
    *("real", "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "select", "shift-left"),
    *("shift-right-arithmetic", "shift-right-logical", "sign", "stochastic-convert", "subtract", "xor"),
}
TRANSCENDENTAL: Final = {
    *("atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log", "log-plus-one", "logistic"),
    *("power", "rng", "rng-bit-generator", "rsqrt", "sine", "sqrt", "tan", "tanh"),
}
PRODUCTS: Final = ("dot", "convolution")
_REDUCTIONS: Final = ("map", "reduce", "reduce-window", "scatter", "select-and-scatter")
CONTROL: Final = frozenset(("while", "conditional", "call", "async-start"))
"""Instructions that run the computations that they call, instruction by instruction."""

FREE: Final = {
    *("add-dependency", "after-all", "async-update", "bitcast", "constant", "domain", "get-tuple-element"),
    *("opt-barrier", "parameter", "partition-id", "replica-id", "tuple"),
}
"""What takes no work."""
_SLICES: Final = {"dynamic-slice", "gather", "slice"}
"""They read as much of their first operand as they return."""
UPDATES: Final = {"dynamic-update-slice", "scatter"}
"""They write into their first operands."""
_FORWARDS: Final = (
    ELEMENTWISE
    | TRANSCENDENTAL
    | {"bitcast", "broadcast", "concatenate", "copy", "dynamic-update-slice", "pad", "reshape", "reverse", "transpose"}
)
"""They read of each operand at most as many elements as they return."""
_COMPLEX: Final = {"add": 2, "divide": 11, "multiply": 6, "negate": 2, "subtract": 2}
"""The real operations of one of complex numbers: (a + ib)(c + id) has four products and two sums."""

_LIBRARIES: Final = ("__cublas$", "__cudnn$", "cublas_", "cusolver_", "cusparse_")
_DOTS: Final = ("__cublas$gemm", "__cublas$lt$matmul", "__onednn$matmul")
_CONVOLUTIONS: Final = "__cudnn$conv"
_WORKSPACE: Final = ("s8", "u8")
_LAPACK: Final = re.compile(r"(?:lapack_[sdcz]|cusolver_|cublas_)(\w+?)(?:_batched)?_ffi")
_TRIANGULAR: Final = ("CompactWyHelper", "InvertDiagBlocksLowerTriangular", "InvertDiagBlocksUpperTriangular")
_ROUTINES: Final = dict.fromkeys(_TRIANGULAR, "trtri") | {
    "__cublas$triangularSolve": "trsm",
    "Cholesky": "potrf",
    "LuDecompositionBlock": "getrf",
    "QrDecompositionBlock": "geqrf",
}
"""Custom calls, and the routines of LAPACK that do the same. All but that of cuBLAS are for parts of a TPU's matrix."""

_RAGGED_SIZES: Final = "ragged-dot-metadata"
"""The kernel by which a TPU's compiler prepares a ragged product, on a few integers for each group."""

BOOKKEEPING: Final = {
    *("AllocateBuffer", "AssumeGatherIndicesInBound", "AsyncCollectiveDone", "AsyncCollectiveStart", "ConcatBitcast"),
    *("GatherScatterIndicesBitpacked", "X64Combine", "X64SplitHigh", "X64SplitLow"),
}
"""Custom calls that the TPU's compiler adds for its own use."""
_WITHOUT_FLOPS: Final = BOOKKEEPING | {"MoveToDevice", "MoveToHost", "cu_lu_pivots_to_permutation"}


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
        self.costs = functools.cache(self._costs)
        self.named = functools.cache(self._named)

    def total(self) -> Cost:
        """The cost of one run of the program."""
        return self.computation(self.module.entry)

    def instruction(self, within: str, op: Instruction) -> Cost:
        """The cost of one run of an instruction of the computation `within`, and of what it calls."""
        return self.costs(within)[op.name]

    def _computation(self, name: str) -> Cost:
        """The cost of one run of a computation."""
        return sum(self.costs(name).values(), Cost())

    def _costs(self, name: str) -> Mapping[str, Cost]:
        """The cost of one run of each instruction of a computation, by its name."""
        return {op.name: self._instruction(name, op) for op in self.module.computations[name].instructions}

    def _named(self, name: str) -> Mapping[str, Instruction]:
        """The instructions of a computation by name."""
        return {op.name: op for op in self.module.computations[name].instructions}

    def _instruction(self, within: str, op: Instruction) -> Cost:
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
            return dataclasses.replace(called[0], bytes=self.kernel_bytes(op))
        return dataclasses.replace(_arithmetic(op, operands, called), bytes=_bytes(op, operands, adds=self.adds(op)))

    def adds(self, op: Instruction) -> bool:
        """Whether an update reads what it changes."""
        return op.opcode == "scatter" and self.computation(op.calls[0]) != Cost()

    def kernel_bytes(self, op: Instruction) -> int:
        """What a kernel reads of its arguments and writes; what stays in it is free."""
        computation = self.module.computations[op.calls[0]]
        named, root = self.named(computation.name), computation.root
        results = [named[name] for name in root.operands] if root.opcode == "tuple" else [root]
        written, updates = 0, set[str]()
        for result in results:
            chain = _updates_in_place(named, result)
            updates.update(update.name for update in chain)
            parts = [named[name] for update in chain for name in _written_by(update)]
            written += sum(_size(part.shapes) for part in parts or [result])
        needed = {result.name: _elements(result) for result in results}
        read = self.elements_read(computation, needed, updates)
        parameters = [part for part in computation.instructions if part.opcode == "parameter"]
        return written + sum(
            _size(part.shapes) * read.get(part.parameter, 0) // max(_elements(part), 1) for part in parameters
        )

    def elements_read(
        self, computation: Computation, needed: Mapping[str, int], updates: Container[str] = ()
    ) -> dict[int | None, int]:
        """How many elements a kernel reads of each parameter, by its number.

        `needed` is how many elements of its results are, by name. `updates` are the instructions that write into an
        argument: of that they read nothing, or what they add to.
        """
        named = self.named(computation.name)
        shared, sliced = collections.Counter(needed), collections.Counter[str]()
        read: dict[int | None, int] = {}
        for op in reversed(computation.instructions):
            count = min(shared[op.name] + sliced[op.name], _elements(op))
            if op.opcode == "parameter":
                read[op.parameter] = count
            kernel = self.module.computations[op.calls[0]] if op.opcode == "fusion" and op.calls else None
            inner = self.elements_read(kernel, {kernel.root.name: count}) if kernel else {}
            for number, name in enumerate(op.operands):
                whole = _elements(named[name])
                if op.name in updates and number < len(_written_by(op)):
                    sliced[name] += _elements(named[_written_by(op)[number]]) if self.adds(op) else 0
                elif op.opcode in _SLICES and number == 0:
                    sliced[name] += count
                else:
                    limit = inner.get(number, count) if inner or op.opcode in _FORWARDS else whole
                    # What all of these read is the same.
                    shared[name] = max(shared[name], min(limit, whole) if count else 0)
        return read


def _updates_in_place(named: Mapping[str, Instruction], result: Instruction) -> list[Instruction]:
    """The updates by which a kernel makes a result of its argument; none where it writes all of the result."""
    updates = []
    while result.opcode == "bitcast" or result.opcode in UPDATES:
        if result.opcode != "bitcast":
            updates.append(result)
        result = named[result.operands[0]]
    return updates if result.opcode == "parameter" else []


def _written_by(update: Instruction) -> Sequence[str]:
    """The operands whose elements an update writes, one for each of the arrays that it changes: its first operands."""
    return update.operands[len(update.operands) // 2 + 1 :] if update.opcode == "scatter" else update.operands[1:2]


def _arithmetic(op: Instruction, operands: Sequence[Instruction], called: Sequence[Cost]) -> Cost:
    """The operations of an instruction, without its bytes."""
    elements = sum(shape.elements for shape in op.shapes)
    if op.opcode in ELEMENTWISE:
        return Cost(flops=elements * (_COMPLEX.get(op.opcode, 1) if _is_complex(op.shapes[0]) else 1))
    if op.opcode in TRANSCENDENTAL:
        return Cost(transcendentals=elements)
    if op.opcode in PRODUCTS:
        return Cost(flops=product_flops(op, operands[0].shapes[0], operands[1].shapes[0]))
    if op.opcode in _REDUCTIONS:
        return _reduction(op, operands, called)
    if op.opcode in ("all-reduce", "all-reduce-start"):
        return Cost(flops=elements)
    if op.opcode == "sort":
        return Cost(flops=_sort_flops(operands[0].shapes[0]))
    if op.opcode == "fft":
        factors = math.prod(int(math.log2(length)) for length in op.fft_length)
        return Cost(flops=8 * factors * operands[0].shapes[0].elements)
    if op.opcode in ("cholesky", "triangular-solve"):
        shapes = [operand.shapes[0] for operand in operands]
        return Cost(flops=_routine_flops("potrf" if op.opcode == "cholesky" else "trsm", op, shapes) or 0)
    if op.opcode == "custom-call":
        estimate = op.cost_estimate or {}
        flops = call_flops(op, [shape for operand in operands for shape in operand.shapes])
        return Cost(flops or 0, estimate.get("transcendentals", 0))
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


def _bytes(op: Instruction, operands: Sequence[Instruction], *, adds: bool) -> int:
    """What an instruction outside of kernels reads and writes; whether it `adds` to what it updates."""
    sizes = [_size(operand.shapes) for operand in operands]
    result = _size(op.shapes)
    if op.opcode in FREE or op.opcode.endswith("-done"):
        return 0
    if op.opcode in _SLICES:
        return 2 * result + sum(sizes[1:])
    if op.opcode == "dynamic-update-slice":
        return 2 * sizes[1] + sum(sizes[2:])
    if op.opcode == "scatter":
        arrays = len(sizes) // 2
        return (3 if adds else 2) * sum(sizes[arrays + 1 :]) + sizes[arrays]
    if op.opcode == "custom-call":
        return _call_bytes(op, operands)
    # What these give back has their operands in it.
    starts = op.opcode == "send" or (op.opcode.endswith("-start") and op.opcode != "all-reduce-start")
    return sum(sizes) + (max(result - sum(sizes), 0) if starts else result)


def _call_bytes(op: Instruction, operands: Sequence[Instruction]) -> int:
    """What a custom call reads and writes, by its author or by its arrays; its workspace is no part of that."""
    if op.custom_call_target in BOOKKEEPING:
        return 0
    if op.cost_estimate is not None:
        return op.cost_estimate.get("bytes_accessed", 0)
    results = [shape for shape in op.shapes if not (shape.dtype in _WORKSPACE and len(op.shapes) > 1)]
    return _size(results) + sum(_size(operand.shapes) for operand in operands)


def _elements(op: Instruction) -> int:
    return sum(shape.elements for shape in op.shapes)


def _size(shapes: Sequence[Shape]) -> int:
    return sum(shape.allocated_bytes for shape in shapes)


def _is_complex(shape: Shape) -> bool:
    return shape.dtype in ("c64", "c128")


def _sort_flops(shape: Shape) -> int:
    return shape.elements * math.ceil(math.log2(max(shape.elements, 1)))


def product_flops(op: Instruction, left: Shape, right: Shape) -> int:
    """FLOP of a `dot` or a `convolution` of arrays of these shapes: two for each multiply-add."""
    if op.opcode == "convolution":
        return convolution_flops(op, left, right, op.shapes[0])
    return dot_flops(op, left, op.shapes[0])


def dot_flops(op: Instruction, left: Shape, result: Shape) -> int:
    """FLOP of a matrix product, of which `left` is the first operand."""
    return _multiply_add(left) * math.prod(result.dims) * math.prod(left.dims[dim] for dim in op.contracted)


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
    return _multiply_add(left) * multiply_adds


def _multiply_add(shape: Shape) -> int:
    """FLOP of one multiply-add: of complex numbers four products, and as many sums."""
    return 8 if _is_complex(shape) else 2


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
    if target == "__onednn$matmul":
        batch = math.prod(result.dims[:-2])
        return _multiply_add(first) * math.isqrt(first.elements * second.elements * result.elements // max(batch, 1))
    if target.startswith(_DOTS):
        return dot_flops(op, first, result)
    if "BackwardInput" in target:
        return convolution_flops(op, result, second, first)
    if "BackwardFilter" in target:
        return convolution_flops(op, first, result, second)
    return convolution_flops(op, first, second, result)


def call_flops(op: Instruction, operands: Sequence[Shape]) -> int | None:
    """FLOP of a custom call on the device; None where they depend on data, or are not known here."""
    target = op.custom_call_target
    if op.cost_estimate is not None:
        return op.cost_estimate.get("flops", 0)
    if is_library_product(op):
        return library_product_flops(op, operands)
    if target in _WITHOUT_FLOPS or "callback" in target.lower() or op.name.startswith(_RAGGED_SIZES):
        return 0
    if all(shape.elements <= 1 for shape in (*operands, *op.shapes)):  # such as SliceId, of a program on several slices
        return 0
    if target.startswith("__cub$"):
        return _sort_flops(operands[0])
    if target == "PartialReduce":  # one comparison for each element
        return operands[0].elements
    lapack = _LAPACK.fullmatch(target)
    return _routine_flops(lapack[1] if lapack else _ROUTINES.get(target, ""), op, operands)


def _routine_flops(name: str, op: Instruction, operands: Sequence[Shape]) -> int | None:
    """FLOP of a routine of LAPACK, of the highest order.

    Those of LAPACK's working note 41; of eigenvectors those of the symmetric QR algorithm (Golub and Van Loan, Matrix
    Computations, 8.3); of singular vectors a bidiagonal form and the products that lead back from it, for a square
    matrix 6.67 n^3 as the LAPACK Users' Guide has it.
    """
    matrix = operands[0].dims if operands else ()
    if len(matrix) < 2:
        return None
    m, n, k = matrix[-2], matrix[-1], min(matrix[-2:])
    flops = None
    match name:
        case "potrf" | "trtri":
            flops = n**3 // 3
        case "getrf":
            flops = 2 * m * n * k - (m + n) * k**2 + 2 * k**3 // 3
        case "geqrf" | "orgqr" | "ungqr":
            k = k if name == "geqrf" else operands[1].dims[-1]
            flops = 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 // 3
        case "syevd" | "heevd":
            flops = 9 * n**3
        case "gesdd":
            flops = _singular_flops(op, max(m, n), k)
        case "trsm":
            flops = n * math.prod(operands[1].dims[-2:])
    if flops is None:
        return None
    # A TPU has the real and the imaginary part of a complex matrix apart.
    is_complex = _is_complex(operands[0]) or (name != "trsm" and operands[0] in operands[1:])
    return flops * math.prod(matrix[:-2]) * (4 if is_complex else 1)


def _singular_flops(op: Instruction, long: int, short: int) -> int:
    """FLOP of singular values, and of the vectors in the results where the call asks for them."""
    values = 4 * long * short**2 - 4 * short**3 // 3
    left, right = op.shapes[2:4]
    vectors = max(left.dims[-1], right.dims[-2])
    return values + (0 if op.mode == "N" else 4 * long * vectors * short - 2 * vectors * short**2 + 2 * short**3)
