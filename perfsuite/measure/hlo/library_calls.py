"""Calls of NVIDIA's libraries in a GPU's program, which XLA makes of some products, convolutions and factorisations."""

import math
from collections.abc import Sequence
from typing import Final

from perfsuite.measure.hlo.hlo_module import Instruction, Shape
from perfsuite.measure.hlo.product_flops import convolution_flops, dot_flops

_LIBRARIES: Final = ("__cublas$", "__cudnn$", "cublas_", "cusolver_", "cusparse_")
_DOTS: Final = ("__cublas$gemm", "__cublas$lt$matmul")
_CONVOLUTIONS: Final = "__cudnn$conv"
_WORKSPACE: Final = ("s8", "u8")


def library_of(target: str | None) -> bool:
    """Whether a custom call of this target is one of a library."""
    return target is not None and target.startswith(_LIBRARIES)


def is_library_product(op: Instruction) -> bool:
    """Whether the call is a matrix product or a convolution."""
    return op.custom_call_target is not None and op.custom_call_target.startswith((*_DOTS, _CONVOLUTIONS))


def library_product_flops(op: Instruction, operands: Sequence[Shape]) -> int:
    """FLOP of a product or convolution: two for each multiply-add.

    A convolution has the window and the dimensions of its forward pass in the backward passes too.
    """
    target = op.custom_call_target or ""
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
    name = (op.custom_call_target or "").removeprefix("cusolver_").removesuffix("_ffi")
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
