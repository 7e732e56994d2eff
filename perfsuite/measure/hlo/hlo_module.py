"""A compiled program as objects: computations of instructions, with their shapes and their source lines."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Final

_NUMBERED: Final = re.compile(r"(?:bf|[cfsu])([0-9]{1,3})", re.ASCII)
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
    """Element type and sizes of one array; a size that varies (`<=10`) counts as its bound. The layout is left out."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Without padding and tiling; elements below a byte are packed, and a token or opaque value takes none."""
        return ((bits_of(self.dtype) or 0) * math.prod(self.dims) + 7) // 8


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. Names are without their `%`.

    `shapes` are the arrays of the result, a tuple's in order with nested ones flattened. `calls` are the computations
    that it refers to, in the order of the text. `estimated_cycles` is the TPU compiler's own metric from
    `backend_config`, of which nothing else is kept. `attributes` are those without a field here, as the text has them.
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


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation, its instructions in the order of the text, which is that of the schedule where there is one."""

    name: str
    instructions: tuple[Instruction, ...]


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
