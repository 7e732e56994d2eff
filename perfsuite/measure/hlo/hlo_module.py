"""A compiled program as objects: computations of instructions, with their shapes and their source lines."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Final

_NUMBERED: Final = re.compile(r"(?:bf|[cfsu])([0-9]{1,3})", re.ASCII)
_TILE: Final = re.compile(r"T\(([0-9,]+)\)", re.ASCII)
_BITS: Final = {"pred": 8, "token": 0, "opaque": 0}


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the Python stack that traced an operation. `function` is empty where the text has none."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""The innermost frame first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Element type and sizes of one array; a size that varies (`<=10`) counts as its bound.

    `layout` is as the text has it, `{1,0:T(8,128)}`; arrays that differ in nothing else are equal.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: str = dataclasses.field(default="", compare=False)

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Without padding and tiling; elements below a byte are packed, and a token or opaque value takes none."""
        return ((bits_of(self.dtype) or 0) * self.elements + 7) // 8

    @property
    def tile(self) -> tuple[int, ...]:
        """The sizes of the tiles that a TPU's layout cuts the array into; empty without tiles."""
        found = _TILE.search(self.layout)
        return tuple(int(size) for size in re.findall(r"\d+", found[1])) if found else ()

    @property
    def allocated_bytes(self) -> int:
        """With the padding to whole tiles that a TPU's layout asks for."""
        tile = self.tile
        order = [int(dim) for dim in re.findall(r"\d+", self.layout.partition(":")[0])]
        if not tile or sorted(order) != [*range(len(self.dims))]:
            return self.bytes
        sizes = [self.dims[dim] for dim in reversed(order)]
        sizes = [1] * (len(tile) - len(sizes)) + sizes
        whole = len(sizes) - len(tile)
        padded = [-(-size // by) * by for size, by in zip(sizes[whole:], tile, strict=True)]
        return ((bits_of(self.dtype) or 0) * math.prod(sizes[:whole]) * math.prod(padded) + 7) // 8


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. Names are without their `%`.

    `shapes` are the arrays of the result, a tuple's in order with nested ones flattened. `calls` are the computations
    that it refers to, in the order of the text. `attributes` are those without a field here, as the text has them.
    `literal` is the value of a constant integer. The rest is from `backend_config`, of which nothing else is kept:
    `estimated_cycles` is the TPU compiler's own metric, `trip_count` how often a loop runs where the CPU's compiler
    knows it, `cost_estimate` what the author of a Pallas kernel says of its cost. Of a custom call for a TPU,
    `vmem_bytes` is what it takes of the memory on the chip, `vmem_limit_bytes` what its author lets it take. `kernel`
    is what the GPU's compiler makes of a fusion, such as "__triton"; for a product by cuBLAS, `attributes` has the
    dimensions and the precision of a `dot`.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    op_name: str = ""
    stack: Stack = ()
    fusion_kind: str | None = None
    custom_call_target: str | None = None
    is_host_transfer: bool = False
    estimated_cycles: int | None = None
    parameter: int | None = None
    is_root: bool = False
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    literal: int | None = None
    trip_count: int | None = None
    cost_estimate: Mapping[str, int] | None = None
    vmem_bytes: int | None = None
    vmem_limit_bytes: int | None = None
    kernel: str | None = None


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation, its instructions in the order of the text, which is that of the schedule where there is one."""

    name: str
    instructions: tuple[Instruction, ...]

    @property
    def root(self) -> Instruction:
        return next(op for op in reversed(self.instructions) if op.is_root)


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program. `reused` are the numbers of the arguments whose memory an output takes."""

    name: str
    computations: Mapping[str, Computation]
    entry: str
    reused: frozenset[int]


def bits_of(dtype: str) -> int | None:
    """Bits of one element: 16 for "bf16", 8 for "f8e4m3fn" and "pred", 4 for "s4"; `None` for an unknown type."""
    found = _NUMBERED.match(dtype)
    return int(found[1]) if found else _BITS.get(dtype)
