"""A compiled program as objects: computations of instructions, with their shapes and where they come from."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Final

_NUMBERED: Final = re.compile(r"(?:bf|[cfsu])([0-9]{1,3})", re.ASCII)
_WITHOUT_BYTES: Final = ("token", "opaque")


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """One frame of the Python stack that traced an operation. `function` is empty where the text does not say."""

    file: str
    line: int
    function: str


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Element type and sizes of one array; a size that varies (`<=10`) counts as its bound. The layout is left out."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Without padding and tiling; elements below a byte are packed, and a token or opaque value takes none."""
        bits = bits_of(self.dtype) or 0
        for size in self.dims:
            bits *= size
        return (bits + 7) // 8


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. Names are without their `%`.

    `shapes` are the arrays of the result, a tuple's in order with nested ones flattened. `calls` are the computations
    that it refers to, in the order of the text. `stack` has the innermost frame first. `estimated_cycles` is the TPU
    compiler's own metric from `backend_config`, of which nothing else is kept. `attributes` are those without a field
    here, by name, as the text has them; `metadata` and `backend_config` are not among them.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    calls: tuple[str, ...]
    op_name: str
    stack: tuple[Source, ...]
    fusion_kind: str | None
    custom_call_target: str | None
    is_host_transfer: bool
    estimated_cycles: int | None
    parameter: int | None
    is_root: bool
    attributes: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation, its instructions in the order of the text: that of the schedule, where there is one."""

    name: str
    instructions: tuple[Instruction, ...]


@dataclasses.dataclass(frozen=True)
class Alias:
    """An output (the path to a leaf of the result) that shares the buffer of a parameter, or of a part of one.

    `kind` is "may-alias" or "must-alias".
    """

    output: tuple[int, ...]
    parameter: int
    parameter_index: tuple[int, ...]
    kind: str


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program. `buffer_donors` are parameters given away without an output to share their buffer with."""

    name: str
    computations: Mapping[str, Computation]
    entry: str
    aliases: tuple[Alias, ...]
    buffer_donors: tuple[int, ...]
    num_partitions: int


def bits_of(dtype: str) -> int | None:
    """Bits of one element: 16 for "bf16", 8 for "f8e4m3fn" and "pred", 4 for "s4"; `None` for an unknown type."""
    if dtype == "pred":
        return 8
    if dtype in _WITHOUT_BYTES:
        return 0
    found = _NUMBERED.match(dtype)
    return int(found[1]) if found else None
