"""A compiled program as objects, read from the proto in which XLA serialises it.

The proto is an `HloModuleProto`. The numbers of its fields, which never change, are in openxla/xla, in
`xla/service/hlo.proto` and `xla/xla_data.proto`. Most of a TPU's proto is `backend_config`, so the reader steps over
what it does not need, and reads once what repeats.
"""

import base64
import contextlib
import dataclasses
import functools
import json
import math
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

_NUMBERED: Final = re.compile(r"(?:bf|[cfsu])([0-9]{1,3})", re.ASCII)
_BITS: Final = {"pred": 8, "token": 0, "opaque": 0}
_TYPES: Final = (
    *("invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "tuple"),
    *("opaque", "c64", "bf16", "token", "c128", "f8e5m2", "f8e4m3fn", "s4", "u4", "f8e4m3b11fnuz", "f8e5m2fnuz"),
    *("f8e4m3fnuz", "s2", "u2", "f8e4m3", "f8e3m4", "s1", "u1", "f4e2m1fn", "f8e8m0fnu", "buffer"),
)
"""XLA's `PrimitiveType`."""

_PRECISIONS: Final = ("default", "high", "highest")

KERNEL_COSTS: Final = ("flops", "transcendentals", "bytes_accessed")
HOST_MEMORY: Final = 5
"""The number that compilers have for the host's memory."""
_VMEM: Final = "1"
"""The number that a TPU's compiler has for the memory on the chip."""

_NUMBER, _BYTES = 0, 2
"""How a field is written: an integer, or so many bytes."""
_FLOATS: Final = {1: 8, 5: 4}
"""The kinds of floats, which nothing here reads, each with its bytes."""

_NO_ATTRIBUTES: Final[Mapping[str, str]] = {}
_LITERAL_PATH: Final = (3, 2, 8)
"""From the module to its computations, their instructions, and the values of their constants."""
_LARGE: Final = 4096
"""Constants of fewer bytes are kept: the limit of a loop may be one."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceFrame:
    """One frame of the Python stack that traced an operation. `function` is empty where it is not known."""

    file: str
    line: int
    function: str


Stack = tuple[SourceFrame, ...]
"""The innermost frame first."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """Element type and sizes of one array; a size that varies counts as its bound.

    `order` are the dimensions from minor to major, `tile` the sizes of the tiles that a TPU's layout cuts the array
    into. `space` is the number of the memory that it is in: 0 for the device's, others for a host's or a chip's. Arrays
    that differ in nothing else are equal.
    """

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = dataclasses.field(default=(), compare=False)
    tile: tuple[int, ...] = dataclasses.field(default=(), compare=False)
    space: int = dataclasses.field(default=0, compare=False)

    @functools.cached_property
    def elements(self) -> int:
        return math.prod(self.dims)

    @functools.cached_property
    def bytes(self) -> int:
        """Without padding and tiling; elements below a byte are packed, and a token or opaque value takes none."""
        return (bits_of(self.dtype) * self.elements + 7) // 8

    @functools.cached_property
    def allocated_bytes(self) -> int:
        """With the padding to whole tiles that a TPU's layout asks for."""
        if not self.tile or len(self.order) != len(self.dims):
            return self.bytes
        sizes = [self.dims[dim] for dim in reversed(self.order)]
        sizes = [1] * (len(self.tile) - len(sizes)) + sizes
        whole = len(sizes) - len(self.tile)
        padded = [-(-size // by) * by for size, by in zip(sizes[whole:], self.tile, strict=True)]
        return (bits_of(self.dtype) * math.prod(sizes[:whole]) * math.prod(padded) + 7) // 8


@dataclasses.dataclass(frozen=True, slots=True)
class WindowDimension:
    """How a window moves along one dimension, in the order of XLA's message.

    `low` and `high` are the padding before and after the array.
    """

    size: int
    stride: int
    low: int
    high: int
    kernel_dilation: int
    input_dilation: int


@dataclasses.dataclass(frozen=True, slots=True)
class Convolution:
    """The dimensions of a convolution: the features of the kernel's input, batch and features of the output.

    `spatial` has those of input, kernel and output along which the window moves, one triple for each.
    """

    kernel_input: int
    output: tuple[int, int]
    spatial: tuple[tuple[int, int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    `shapes` are the arrays of the result, a tuple's in order with nested ones flattened. `calls` are the computations
    that it runs; those of a loop are its condition and its body. `literal` is the value of a constant that is one whole
    number, `index` is that of an element of a tuple, `contracted` are the dimensions of the left operand over which a
    `dot` sums; it is `batched` if it is one of many products.

    `group_size` is how many devices a collective is between, 0 where that is all.

    The last eight are from `backend_config`: `estimated_cycles` is the TPU compiler's own metric, `sol_us` the time
    that XLA's tables have for an operation of a GPU, `trip_count` how often a loop runs where the CPU's compiler knows
    it, `cost_estimate` what the author of a Pallas kernel says of its cost. Of a custom call for a TPU, `vmem_bytes` is
    what it takes of the memory on the chip, `vmem_limit_bytes` what its author lets it take. `kernel` is what the GPU's
    compiler makes of a fusion, such as "__triton". A product by cuBLAS has `contracted`, `batched` and `precision` of a
    `dot`. `mode` is the letter that tells a routine of LAPACK what to compute.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    op_name: str = ""
    stack: Stack = ()
    is_root: bool = False
    parameter: int | None = None
    literal: int | None = None
    index: int = 0
    direction: str = ""
    contracted: tuple[int, ...] = ()
    batched: bool = False
    precision: str = "default"
    window: tuple[WindowDimension, ...] = ()
    convolution: Convolution | None = None
    fft_length: tuple[int, ...] = ()
    fusion_kind: str = ""
    custom_call_target: str = ""
    channel: int = 0
    is_host_transfer: bool = False
    frontend_attributes: Mapping[str, str] = dataclasses.field(default_factory=lambda: _NO_ATTRIBUTES)
    group_size: int = 0
    estimated_cycles: int | None = None
    sol_us: float | None = None
    trip_count: int | None = None
    cost_estimate: Mapping[str, int] | None = None
    vmem_bytes: int | None = None
    vmem_limit_bytes: int | None = None
    kernel: str = ""
    mode: str = ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation, its instructions in the order of the schedule where there is one."""

    name: str
    instructions: tuple[Instruction, ...]

    @property
    def root(self) -> Instruction:
        return next(op for op in reversed(self.instructions) if op.is_root)


@dataclasses.dataclass(frozen=True)
class HloModule:
    """A compiled program. `reused` are the numbers of outputs, and of the arguments whose memory they take."""

    name: str
    computations: Mapping[str, Computation]
    entry: str
    reused: Mapping[int, int]


def bits_of(dtype: str) -> int:
    """Bits of one element: 16 for "bf16", 8 for "f8e4m3fn" and "pred", 4 for "s4"."""
    numbered = _NUMBERED.match(dtype)
    return int(numbered[1]) if numbered else _BITS[dtype]


def packed(proto: bytes) -> str:
    """A module's proto as a text for JSON, without the values of large constants."""
    return base64.b64encode(zlib.compress(_without_literals(proto, _LITERAL_PATH))).decode()


def unpacked(text: str) -> bytes:
    """The proto in a text that `packed` made. Raises `ValueError` for another text."""
    try:
        return zlib.decompress(base64.b64decode(text))
    except zlib.error as error:
        raise ValueError(f"not a packed module: {error}") from None


def proto_of_dump(dump: bytes) -> bytes:
    """The module's proto in a file that XLA dumps, an `HloProto`."""
    return _Message(dump).fields[1]


def read_module(text: str, *, restored: Callable[[Stack], Stack] = lambda stack: stack) -> HloModule:
    """The module in a text that `packed` made. `restored` maps its stacks to those that the instructions get.

    Raises `ValueError`, `LookupError` or `TypeError` for another text.
    """
    return _Reader(_Message(unpacked(text)), restored).module()


class _Message:
    """The fields of a message in protobuf's wire format, by their numbers. What a message lacks is 0 or empty.

    Messages and texts are bytes. Only a field that repeats is a list: a list for each takes the garbage collector as
    long as all of the reading.
    """

    __slots__ = ("fields",)

    def __init__(self, data: bytes):
        self.fields: dict[int, Any] = {}
        at, size = 0, len(data)
        while at < size:
            # Integers of one and two bytes are read here: a call for each takes a third more time.
            key = data[at]
            at += 1
            if key > 127:
                key += (data[at] - 1) << 7
                at += 1
            kind = key & 7
            if kind in _FLOATS:
                at += _FLOATS[kind]
                continue
            if kind not in (_NUMBER, _BYTES):
                raise ValueError(f"a field of the kind {kind}, which no proto has")
            value: Any = data[at]
            at += 1
            if value > 127:
                if data[at] > 127:
                    value, at = _varint(data, at - 1)
                else:
                    value += (data[at] - 1) << 7
                    at += 1
            if kind == _BYTES:
                at += value
                value = data[at - value : at]
            number = key >> 3
            if number not in self.fields:
                self.fields[number] = value
            elif isinstance(self.fields[number], list):
                self.fields[number].append(value)
            else:
                self.fields[number] = [self.fields[number], value]
        if at > size:
            raise ValueError("a proto that is cut short")

    def number(self, field: int) -> int:
        return self.fields.get(field, 0)

    def numbers(self, field: int) -> tuple[int, ...]:
        return _numbers(self.fields.get(field, b""))

    def text(self, field: int) -> str:
        return _text(self.fields.get(field, b""))

    def message(self, field: int) -> "_Message":
        return _Message(self.fields.get(field, b""))

    def values(self, field: int) -> list[Any]:
        """The values of a field that may repeat."""
        value = self.fields.get(field, [])
        return value if isinstance(value, list) else [value]

    def messages(self, field: int) -> "list[_Message]":
        return [_Message(value) for value in self.values(field)]


def _numbers(value: bytes | list[int] | int) -> tuple[int, ...]:
    """The numbers of a repeated field, packed in one value or not."""
    if not isinstance(value, bytes):
        return tuple(value) if isinstance(value, list) else (value,)
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(number)
    return tuple(numbers)


def _text(value: bytes) -> str:
    return sys.intern(value.decode())


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at a position, negative ones as two's complement of 64 bits, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value if value < 2**63 else value - 2**64), at
        shift += 7


def _without_literals(data: bytes, path: tuple[int, ...]) -> bytes:
    """A message without large fields at the end of a path of field numbers: a program may hold a model's weights."""
    if len(data) < _LARGE:
        return data
    if not path:
        return b""
    message = _Message(data)
    message.fields[path[0]] = [_without_literals(value, path[1:]) for value in message.values(path[0])]
    parts = []
    for number in message.fields:
        for value in message.values(number):
            if isinstance(value, int):
                parts += [_encoded(number << 3 | _NUMBER), _encoded(value % 2**64)]
            else:
                parts += [_encoded(number << 3 | _BYTES), _encoded(len(value)), value]
    return b"".join(parts)


def _encoded(number: int) -> bytes:
    groups = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


class _Reader:
    """A module's message, and what was read of it before."""

    def __init__(self, message: _Message, restored: Callable[[Stack], Stack]):
        self.message = message
        self.restored = restored
        self.shapes: dict[bytes, tuple[Shape, ...]] = {}
        self.metadata: dict[bytes, tuple[str, Stack]] = {}
        index = message.message(17)
        # Numbers begin at 1, and 0 stands for nothing.
        self.files, self.functions = (["", *(n.decode() for n in index.values(table))] for table in (1, 2))
        self.places, self.frames = ([_Message(b""), *index.messages(table)] for table in (3, 4))
        self.stack = functools.cache(self._stack)

    def module(self) -> HloModule:
        computations = self.message.messages(3)
        names = {one.number(5): one.text(1) for one in computations}
        sequences = {one.number(1): one.message(2).numbers(1) for one in self.message.message(7).messages(1)}
        read = [self.computation(one, names, sequences.get(one.number(5), ())) for one in computations]
        aliases = self.message.message(8).messages(1)
        # A TPU's program with more than 2000 arguments has one parameter, a tuple of them all: its index is 7 of {7}.
        reused = {(one.numbers(1) or (0,))[0]: (one.numbers(3) or (one.number(2),))[0] for one in aliases}
        return HloModule(self.message.text(1), {one.name: one for one in read}, names[self.message.number(6)], reused)

    def computation(self, message: _Message, computations: Mapping[int, str], order: tuple[int, ...]) -> Computation:
        by_id = {one.number(35): one for one in message.messages(2)}
        names = {number: one.text(1) for number, one in by_id.items()}
        root = message.number(6)
        instructions = [
            self.instruction(by_id[number], names, computations, is_root=number == root) for number in order or by_id
        ]
        return Computation(message.text(1), tuple(instructions))

    def instruction(
        self, message: _Message, names: Mapping[int, str], computations: Mapping[int, str], *, is_root: bool
    ) -> Instruction:
        fields: dict[str, Any] = {}
        for number, value in message.fields.items():
            if number in _FIELDS:
                name, read = _FIELDS[number]
                fields[name] = read(value)
            elif number == 3:
                fields["shapes"] = self.leaves(value)
            elif number == 7:
                fields["op_name"], fields["stack"] = self.described(value)
            elif number == 30:
                dimensions = _Message(value)
                fields["contracted"], fields["batched"] = dimensions.numbers(1), bool(dimensions.numbers(3))
            elif number == 36:
                fields["operands"] = tuple([names[operand] for operand in _numbers(value)])
            elif number == 38:
                fields["calls"] = tuple([computations[called] for called in _numbers(value)])
        opcode = fields["opcode"]
        if opcode == "parameter":
            fields["parameter"] = message.number(9)
        elif opcode == "while":
            fields["calls"] = fields["calls"][::-1]
        if 43 in message.fields:
            fields |= _configured(message.fields[43], opcode)
        return Instruction(is_root=is_root, **fields)

    def leaves(self, data: bytes) -> tuple[Shape, ...]:
        """The arrays of a shape."""
        if data not in self.shapes:
            message = _Message(data)
            dtype = _TYPES[message.number(2)]
            if dtype in ("tuple", "buffer"):
                parts = message.values(4)
                self.shapes[data] = tuple(leaf for part in parts for leaf in self.leaves(part))
            else:
                layout = message.message(5)
                tiles = layout.messages(6)
                tile = tiles[0].numbers(1) if tiles else ()
                # A tile may also combine dimensions, which has a negative size.
                tile = () if min(tile, default=0) < 0 else tile
                self.shapes[data] = (Shape(dtype, message.numbers(3), layout.numbers(1), tile, layout.number(8)),)
        return self.shapes[data]

    def described(self, data: bytes) -> tuple[str, Stack]:
        """The op_name and the stack of metadata."""
        if data not in self.metadata:
            message = _Message(data)
            stack = self.restored(self.stack(message.number(15)))
            if not stack and (file := message.text(3)):
                stack = (SourceFrame(file, message.number(4), ""),)
            self.metadata[data] = message.text(2), stack
        return self.metadata[data]

    def _stack(self, frame: int) -> Stack:
        """The frame and those around it, innermost first."""
        chain: dict[int, SourceFrame] = {}
        while 0 < frame < len(self.frames) and frame not in chain:
            row = self.frames[frame]
            place = self.places[row.number(1)]
            chain[frame] = SourceFrame(self.files[place.number(1)], place.number(3), self.functions[place.number(2)])
            frame = row.number(2)
        return tuple(chain.values())


_PACKED: Final = {3: "B", 8: "f", 9: "d", 11: "e", 15: "b", 16: "H", 17: "h"}
"""The fields of a literal whose numbers lie in bytes, and how `struct` calls them: u8, f32, f64, f16, s8, u16, s16."""


def _whole(value: bytes) -> int | None:
    """The value of a constant that is one whole number: the limit of a loop. None for others, and for an array."""
    literal = _Message(value)
    if literal.message(1).numbers(3):
        return None
    for field in literal.fields:
        if field in (4, 5, 6, 7):
            return literal.numbers(field)[0]
        if field in _PACKED:
            (number,) = struct.unpack(f"<{_PACKED[field]}", literal.fields[field])
        elif field == 13:  # bf16 is the upper half of an f32
            (number,) = struct.unpack("<f", b"\0\0" + literal.fields[field])
        else:
            continue
        return int(number) if math.isfinite(number) and number == int(number) else None
    return None


def _window(value: bytes) -> tuple[WindowDimension, ...]:
    return tuple(WindowDimension(*map(one.number, range(1, 7))) for one in _Message(value).messages(1))


def _convolution(value: bytes) -> Convolution:
    message = _Message(value)
    spatial = zip(message.numbers(11), message.numbers(6), message.numbers(12), strict=True)
    return Convolution(message.number(3), (message.number(9), message.number(10)), tuple(spatial))


def _precision(value: bytes) -> str:
    return _PRECISIONS[max(_Message(value).numbers(1), default=0)]


def _group_size(value: bytes | list[bytes]) -> int:
    """The number of devices of each group of a collective."""
    return len(_Message(value[0] if isinstance(value, list) else value).numbers(1))


def _group_size_of_list(value: bytes) -> int:
    message = _Message(value)
    groups = message.values(1)
    return _group_size(groups) if groups else _group_size_of_iota(message.fields.get(2, b""))


def _group_size_of_iota(value: bytes) -> int:
    return _Message(value).number(2)


def _group_size_of_mesh(value: bytes) -> int:
    """The product of the axes that it is along, or of their parts."""
    message = _Message(value)
    sizes = [axis.number(2) for axis in message.message(1).messages(1)]
    axes = message.messages(2)
    return math.prod(axis.message(2).number(2) or sizes[axis.number(1)] for axis in axes)


def _attributes(value: bytes) -> dict[str, str]:
    return {one.text(1): one.text(2) for one in _Message(value).messages(1)}


_FIELDS: Final[Mapping[int, tuple[str, Callable[[Any], Any]]]] = {
    1: ("name", _text),
    2: ("opcode", _text),
    8: ("literal", _whole),
    11: ("fusion_kind", _text),
    13: ("index", int),
    15: ("window", _window),
    16: ("convolution", _convolution),
    26: ("channel", int),
    28: ("custom_call_target", _text),
    32: ("fft_length", _numbers),
    47: ("is_host_transfer", bool),
    49: ("group_size", _group_size),
    51: ("precision", _precision),
    63: ("direction", _text),
    68: ("frontend_attributes", _attributes),
    87: ("group_size", _group_size_of_list),
    92: ("group_size", _group_size_of_iota),
    93: ("group_size", _group_size_of_mesh),
}
"""Fields of `HloInstructionProto`, and those of `Instruction`."""


def _configured(config: bytes, opcode: str) -> dict[str, Any]:
    """What `backend_config` says, by the fields of `Instruction`."""
    try:
        values = json.loads(config)
    except ValueError:  # that of a library's function is no JSON
        mode = re.search(rb"mode = (\d+) : ui8", config)
        return {"mode": chr(int(mode[1]))} if mode else {}
    if not isinstance(values, dict):  # the author of a custom call may write anything
        return {}
    fields: dict[str, Any] = {"kernel": values.get("fusion_backend_config", {}).get("kind", "")}
    if cycles := values.get("window_config", values).get("estimated_cycles"):
        fields["estimated_cycles"] = int(cycles)
    with contextlib.suppress(AttributeError, TypeError):  # of an option without documentation
        costs_of_models = {model.get("name"): model.get("exec_time_us") for model in values.get("reification_cost", ())}
        fields["sol_us"] = costs_of_models.get("sol")
    if opcode == "while" and (trips := values.get("known_trip_count")):
        fields["trip_count"] = int(trips["n"])
    if opcode != "custom-call":
        return fields
    if costs := values.get("custom_call_config", {}).get("cost_estimate"):
        fields["cost_estimate"] = {name: int(costs[name]) for name in KERNEL_COSTS if name in costs}
    if "used_scoped_memory_configs" in values:
        fields["vmem_bytes"] = sum(_vmem(values["used_scoped_memory_configs"]))
        fields["vmem_limit_bytes"] = sum(_vmem(values.get("scoped_memory_configs", ()))) or None
    if product := values.get("gemm_backend_config"):
        fields["contracted"] = tuple(map(int, product["dot_dimension_numbers"]["lhs_contracting_dimensions"]))
        fields["batched"] = bool(product["dot_dimension_numbers"].get("lhs_batch_dimensions"))
        words = [word.lower() for word in product["precision_config"]["operand_precision"]]
        fields["precision"] = max(words, key=_PRECISIONS.index, default="default")
    return fields


def _vmem(memories: Iterable[Mapping[str, str]]) -> Iterator[int]:
    return (int(each["size"]) for each in memories if each["memory_space"] == _VMEM)
