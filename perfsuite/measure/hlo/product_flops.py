"""How much arithmetic a matrix product or a convolution is, from its shapes."""

import functools
import math
import re

import numpy as np

from perfsuite.measure.hlo.hlo_module import Instruction, Shape


def product_flops(op: Instruction, left: Shape, right: Shape) -> int:
    """FLOP of a `dot` or a `convolution` of arrays of these shapes: two for each multiply-add."""
    if op.opcode == "convolution":
        return convolution_flops(op, left, right, op.shapes[0])
    return dot_flops(op, left, op.shapes[0])


def dot_flops(op: Instruction, left: Shape, result: Shape) -> int:
    """FLOP of a matrix product, of which `left` is the first operand."""
    contracted = [int(i) for i in re.findall(r"\d+", op.attributes.get("lhs_contracting_dims", ""))]
    return 2 * math.prod(result.dims) * math.prod(left.dims[i] for i in contracted)


def convolution_flops(op: Instruction, left: Shape, right: Shape, result: Shape) -> int:
    """Two for each multiply-add of two elements that are there, as XLA counts: none for padding and dilation.

    `left` is convolved with the kernel `right`. A TPU's batched matrix product is a convolution over its
    batch, dilated so that each output meets one element.
    """
    # `b01f_01io->b01f`: the dimensions of input, kernel and output.
    into, kernel, out = re.split("_|->", op.attributes["dim_labels"])
    fields = dict(re.findall(r"(\w+)=([\d_x-]+)", op.attributes.get("window", "")))
    axes = [label for label in kernel if label.isdigit()]
    multiply_adds = right.dims[kernel.index("i")] * math.prod(result.dims[out.index(label)] for label in "bf")
    for label in sorted(axes, key=int):
        stride, into_dilation, kernel_dilation, padding = (
            fields[name].split("x")[int(label)] if name in fields else default
            for name, default in (("stride", "1"), ("lhs_dilate", "1"), ("rhs_dilate", "1"), ("pad", "0_0"))
        )
        multiply_adds *= overlaps(
            left.dims[into.index(label)],
            right.dims[kernel.index(label)],
            result.dims[out.index(label)],
            (int(stride), int(into_dilation), int(kernel_dilation), int(padding.partition("_")[0])),
        )
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
