"""A compiled program's own facts: what the compiler says, without running anything and without noise.

All facts are for one device; those of a sharded program are for each of its devices. `program_reader` reads a `Program`
from a compiler's output, `program_metrics` turns it into metrics for baselines.
"""

import collections
import dataclasses
import functools
import itertools
import operator
import os
import re
import site
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from perfsuite.measure.hlo.costs import Cost, is_library_call
from perfsuite.measure.hlo.module import SourceFrame, bits_of
from perfsuite.measure.targets.kernel_code import KernelCode
from perfsuite.measure.targets.targets import Rates
from perfsuite.measure.words import plural

NAME = re.compile(r"[^\s/();]+")
"""The names in JAX's path to an operation; "jit(f)/transpose(jvp(g))/mul" has jit, f, transpose, jvp, g and mul.

An operation that the compiler merges from several may have the paths of all, "jit(f)/mul;jit(f)/add".
"""


Limit = Literal["compute", "memory", "links", "network"]
"""FLOP/s; the bandwidth of the memory, of the links inside a slice or host, and of the network between slices."""

TimeLimit = Literal["compute", "memory", "latency", "link"]
"""What an operation takes its time for: its FLOP, its bytes, neither, or what it sends to other devices."""

_OF_PARTS = {"c64": "f32", "c128": "f64"}
"""A complex number's parts are of these types; the FLOP of its products are those of the parts."""

_RATES = {"bf16": "bf16", "f16": "fp16", "f64": "fp64", "s8": "int8", "u8": "int8"}
"""XLA's types, and those of published rates. float32 and float8 have several."""

_PASSES = {"default": 1, "high": 3, "highest": 3}
"""Products of bfloat16 that a TPU makes at least for one of float32 (`jax.lax.Precision`)."""

_LIBRARIES = tuple(
    {*site.getsitepackages(), site.getusersitepackages()}
    | {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)

_COMPREHENSION = re.compile(r"(\.<locals>\.<(listcomp|setcomp|dictcomp|genexpr)>)+$")
"""What Python calls the frame of one. A reader looks for the function around it."""

_LOWERING = os.path.join(Path(__file__).parents[1], "")
"""The package `measure`. What JAX adds when it lowers a call comes from its line that asks JAX to, no one's."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """One thing that the program does. `what` is an opcode, a custom call's target, or a fusion's kind.

    `bytes` are those of its operands and results; in a loop, of an array that it slices only the slice. `op_name` is
    JAX's path to it. `source` is the innermost line of the user's that it comes from, None for an operation that the
    compiler adds. `runs` is how often it runs in one run of the program: more than once in a loop.
    """

    what: str
    op_name: str
    source: SourceFrame | None
    bytes: int
    runs: int = dataclasses.field(default=1, kw_only=True)

    @property
    def where(self) -> str:
        """`model.py:42 in attention`, the path from the working directory; the op's name where no line is known."""
        if self.source is None:
            return self.op_name or "the compiler's own"
        return place_of(self.source)

    @property
    def part(self) -> str:
        """`copy in attention (bert.py)`: without the line, so that a line that moves changes nothing."""
        if self.source is None:
            names = NAME.findall(self.op_name)
            return f"{self.what} of {names[-1]}" if names else self.what
        function = self.source.function.rpartition(".<locals>.")[2]
        place = f"{function} ({os.path.basename(self.source.file)})" if function else os.path.basename(self.source.file)
        return f"{self.what} in {place}"


@dataclasses.dataclass(frozen=True)
class EstimatedOperation(Operation):
    """An operation with its estimated time on the device.

    `estimated_us` is that of one run, None without a source, `limit` what bounds it, and `basis` the source: "estimated
    cycles", "sol", "roofline" or "link". It first starts `start_us` after the program. `waiting_us` is how long the
    device waits for one run of what goes on beside other operations, a collective or a copy, and None of all others.
    """

    estimated_us: float | None = None
    limit: TimeLimit | None = None
    basis: str = ""
    start_us: float = 0.0
    waiting_us: float | None = None

    @property
    def total_us(self) -> float:
        """What all of its runs add to the time of the program; 0 without a source."""
        return ((self.estimated_us if self.waiting_us is None else self.waiting_us) or 0.0) * self.runs


@dataclasses.dataclass(frozen=True)
class Fusion(Operation):
    """Operations in one kernel.

    `names` are their opcodes and JAX's names for them, from primitives out to jitted functions. `op_names` are JAX's
    paths.
    """

    names: frozenset[str]
    op_names: frozenset[str]


class Fused(tuple[Fusion, ...]):
    """The fusions that hold operations of all of some names.

    A failed `assert program.fuses(...)` shows its `repr`, which says where each operation is instead.
    """

    _names: tuple[str, ...]
    _among: tuple[Fusion, ...]

    def __new__(cls, names: tuple[str, ...], fusions: tuple[Fusion, ...]) -> "Fused":
        """Those of `fusions` that have all names."""
        fused = super().__new__(cls, (fusion for fusion in fusions if fusion.names.issuperset(names)))
        fused._names, fused._among = names, fusions
        return fused

    def __repr__(self) -> str:
        if self:
            return f"<{plural(len(self), 'kernel')}: {', '.join(fusion.where for fusion in self[:3])}>"
        places = []
        for name in self._names:
            holders = [fusion.where for fusion in self._among if name in fusion.names]
            places.append(f"{name}: {', '.join(dict.fromkeys(holders[:3])) or 'in none'}")
        return f"<no kernel has all of them; {'; '.join(places)}>"


@dataclasses.dataclass(frozen=True)
class Arithmetic(Operation):
    """An instruction that computes: the FLOP and transcendental operations of one run of it."""

    flops: int
    transcendentals: int = dataclasses.field(default=0, kw_only=True)


@dataclasses.dataclass(frozen=True)
class Product(Arithmetic):
    """A matrix product or convolution. `dtypes` are those of its two operands. A multiply-add has two FLOP.

    `precision` is "default", "high" or "highest"; the last two take a TPU several passes in bfloat16.
    """

    dtypes: tuple[str, str]
    precision: str

    @property
    def rate_type(self) -> str:
        """The narrower of the two types, at whose rate the product runs at most."""
        return min(self.dtypes, key=bits_of)


@dataclasses.dataclass(frozen=True)
class Kernel(Operation, KernelCode):
    """A kernel of the user's, such as one of Pallas. `what` is its name.

    `vmem_bytes` is what it takes of VMEM, the memory on a TPU's chip; None where the compiler does not say.
    `vmem_limit_bytes` is what `CompilerParams(vmem_limit_bytes=)` lets it take, None for the compiler's default.
    `occupancy` is the share of the threads of a GPU's multiprocessor that its blocks can fill, None where not known.
    """

    vmem_bytes: int | None
    vmem_limit_bytes: int | None
    occupancy: float | None = dataclasses.field(default=None, kw_only=True)

    @property
    def all_bundles(self) -> int | None:
        """The bundles of all steps of its grid, in one run of the program."""
        if self.bundles is None or self.grid_steps is None:
            return None
        return self.bundles * self.grid_steps * self.runs

    @property
    def all_spills(self) -> int | None:
        """Spills and fills in its code."""
        return None if self.spills is None or self.fills is None else self.spills + self.fills


@dataclasses.dataclass(frozen=True)
class Loop(EstimatedOperation):
    """A loop. `iterations` are those of each time that it is reached, None where they depend on data.

    `estimated_us` is the time of all these iterations, None where the device's rates are not known.
    """

    iterations: int | None = dataclasses.field(kw_only=True)


@dataclasses.dataclass(frozen=True)
class LiveArray(Operation):
    """An array that is alive when the device's memory is highest.

    `shape` is "bf16[8,128]", `what` is that and the operation that makes it: "bf16[8,128] of tanh". `role` is
    "argument", "output" or "temporary". `bytes` has the padding of the device's layout, `op_name` an argument's path.
    """

    shape: str
    role: str


@dataclasses.dataclass(frozen=True)
class DonatedArgument:
    """An argument that the caller gives away.

    `path` leads to it from the call: `args[0]['w']`. `array` is its type, "float32[8,16]". `parameter` is its number in
    the program, None where the program drops it. `source` is the definition of the function that it is passed to, None
    where that is not known. `reason` says why no output reuses its memory; it is empty as long as one may.
    """

    path: str
    array: str
    bytes: int
    parameter: int | None
    source: SourceFrame | None = None
    reason: str = ""

    def __str__(self) -> str:
        """`args[0]['w']: float32[8,16]: the program does not use it`."""
        return f"{self.path}: {self.array}: {self.reason.removeprefix(f'{self.array}: ')}"

    @property
    def where(self) -> str:
        """The line where its function is defined; its path where that is not known."""
        return self.path if self.source is None else place_of(self.source)

    @property
    def part(self) -> str:
        """`args[0]['w'] (the program does not use it)`: its path and why it was lost."""
        return f"{self.path} ({self.reason})"


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a program comes from and what it runs on, which its text does not say.

    `target` is the name of the device it is compiled for, None for the present one. `partitions` devices run it, in
    `slices` slices. `memory_bytes` is the memory that a program may use there. It and `rates` are None where they are
    not known.
    """

    label: str
    target: str | None
    device_kind: str
    partitions: int
    slices: int
    compiler: str
    cached: bool
    lower_seconds: float
    compile_seconds: float
    memory_bytes: int | None
    rates: Rates | None


@dataclasses.dataclass(frozen=True, repr=False)
class Program(Origin):
    """The facts of one compiled program, for each device that it runs on.

    `flops`, `bytes_accessed`, `transcendentals`, `collective_bytes` and times count the body of a loop as often as it
    runs. `at_least` are the loops for which that depends on data: they count once. `at_most` are the loops
    that may end sooner than their limit, which count as often as it allows, and the conditionals whose branches cost
    different amounts, of which the largest counts. `unestimated` are the kernels without a cost estimate, and the
    custom calls whose cost is not known: where there is one, `flops`, `bytes_accessed` and `transcendentals` are None,
    and `known` has the cost of all the rest, and the bytes of the arrays of these calls.

    `compute_seconds` is the least time for the FLOP by the device's published rates: 0 where these are not known.

    `launches` is how many kernels one run starts, and `sequential_steps` how many iterations its loops make in a row,
    those of the innermost loops only; None where a loop's iterations depend on data. Of a conditional's branches both
    count the largest. `selections` choose between results, as `jax.vmap` lets a conditional do.

    `exposed_collectives` are those during which the device computes nothing; None on a CPU, which computes nothing
    during any.

    `collectives` stay inside a slice, `cross_slice_collectives` leave it: the bytes of one of these are what one device
    sends to other slices. `collective_bytes` and `cross_slice_bytes` are those of all runs. `resharding` has some of
    both.

    `at_peak` are the arrays that are alive when the device's memory is highest, the largest first, by a simulation of
    the schedule: arguments, outputs that reuse no argument, and temporaries.

    `programs` are those of which this one is the sum, a run each, where a call runs several: then the memory is that of
    the one that needs most.

    `argument_sizes` and `output_sizes` have bytes by path (`args[0]['w']`, `result[1]`); empty where the compiler has
    others than JAX. `shards` has the pieces of those that are not whole on each device. `widening_conversions`
    are those to a wider float that the code asks for, each line once.

    `estimated_us` is the time of one run by the estimates of its `operations`, `known_us` that of those with a source,
    `waiting_us` what the device waits for collectives of it. They are None on a device whose rates are not known.

    `bytes_accessed` is the sum over the operations: an array that two read counts twice, and one that stays on
    the chip counts too.
    """

    known: Cost
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    code_bytes: int

    at_peak: tuple[LiveArray, ...]
    argument_sizes: Mapping[str, int]
    output_sizes: Mapping[str, int]
    shards: Mapping[str, int]
    reused_donations: tuple[DonatedArgument, ...]
    lost_donations: tuple[DonatedArgument, ...]
    fusions: tuple[Fusion, ...]
    operations: tuple[EstimatedOperation, ...]
    known_us: float | None
    waiting_us: float | None
    launches: int | None
    sequential_steps: int | None
    loops: tuple[Loop, ...]
    conditionals: tuple[Operation, ...]
    selections: tuple[Operation, ...]
    products: tuple[Product, ...]
    arithmetic: tuple[Arithmetic, ...]
    compute_seconds: float
    collectives: tuple[Operation, ...]
    collective_bytes: int
    exposed_collectives: tuple[Operation, ...] | None
    exposed_collective_bytes: int | None
    cross_slice_collectives: tuple[Operation, ...]
    cross_slice_bytes: int
    resharding: tuple[Operation, ...]
    custom_calls: tuple[Operation, ...]
    kernels: tuple[Kernel, ...]
    copies: tuple[Operation, ...]
    transposes: tuple[Operation, ...]
    host_transfers: tuple[Operation, ...]
    float64_operations: tuple[Operation, ...]
    widening_conversions: tuple[Operation, ...]
    at_least: tuple[Operation, ...]
    at_most: tuple[Operation, ...]
    unestimated: tuple[Operation, ...]
    programs: tuple["Program", ...] = ()

    @property
    def estimated_us(self) -> float | None:
        """The estimated time of one run in microseconds; None where an operation has no source for its own."""
        return None if any(operation.estimated_us is None for operation in self.operations) else self.known_us

    @property
    def hidden_share(self) -> float | None:
        """The share of the collectives' time during which the device does something else; None without collectives."""
        # A receive goes on while a send of as much does.
        over_links = [each for each in self.operations if each.limit == "link" and each.what != "recv"]
        whole = sum((operation.estimated_us or 0.0) * operation.runs for operation in over_links)
        return max(1 - self.waiting_us / whole, 0.0) if self.waiting_us is not None and whole else None

    @property
    def data_dependent_loops(self) -> tuple[Operation, ...]:
        """The loops whose iterations depend on data, and the kernels with such loops."""
        return (*self.at_least, *(kernel for kernel in self.kernels if kernel.unknown_loops))

    @property
    def flops(self) -> int | None:
        """FLOP of one run; None where the cost of a kernel or call is not known."""
        return None if self.unestimated else self.known.flops

    @property
    def bytes_accessed(self) -> int | None:
        """Bytes that operations read and write of one run; None where the cost of a kernel or call is not known."""
        return None if self.unestimated else self.known.bytes

    @property
    def transcendentals(self) -> int | None:
        """Transcendental operations of one run; None where the cost of a kernel or call is not known."""
        return None if self.unestimated else self.known.transcendentals

    @property
    def peak_bytes(self) -> int:
        """The memory for arguments, outputs that reuse no argument, temporaries, and the program itself."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes + self.code_bytes

    @property
    def vmem_bytes(self) -> int | None:
        """What the kernel that takes most of VMEM takes; None without a kernel whose share is known."""
        return max((kernel.vmem_bytes for kernel in self.kernels if kernel.vmem_bytes is not None), default=None)

    @property
    def kernel_bundles(self) -> int | None:
        """The bundles of all kernels for a TPU whose code is known; None without one."""
        return _sum(kernel.all_bundles for kernel in self.kernels)

    @property
    def kernel_spills(self) -> int | None:
        """The spills and fills of all kernels whose code is known; None without one."""
        return _sum(kernel.all_spills for kernel in self.kernels)

    @property
    def kernel_registers(self) -> int | None:
        """The registers of a thread of the kernel for a GPU that takes most; None without one that is known."""
        return max((kernel.registers for kernel in self.kernels if kernel.registers is not None), default=None)

    @property
    def kernel_occupancy(self) -> float | None:
        """The occupancy of the kernel for a GPU that has least; None without one that is known."""
        return min((kernel.occupancy for kernel in self.kernels if kernel.occupancy is not None), default=None)

    @property
    def fits(self) -> bool | None:
        """Whether the device's memory is large enough; None where it is not known."""
        return None if self.margin_bytes is None else self.margin_bytes >= 0

    @property
    def margin_bytes(self) -> int | None:
        """Memory that is left over at the peak."""
        return None if self.memory_bytes is None else self.memory_bytes - self.peak_bytes

    @property
    def arithmetic_intensity(self) -> float | None:
        """FLOP for each byte accessed; 0 for a program that accesses none, None where they are not known."""
        if self.flops is None or self.bytes_accessed is None:
            return None
        return self.flops / self.bytes_accessed if self.bytes_accessed else 0.0

    @property
    def bounds(self) -> dict[Limit, float]:
        """The least seconds that each limit allows, by the device's published rates; empty where they are not known."""
        if self.rates is None or self.flops is None or not self.bytes_accessed:
            return {}
        moved: dict[Limit, tuple[float, float | None]] = {
            "memory": (self.bytes_accessed, self.rates.memory_bandwidth),
            "links": (self.collective_bytes, self.rates.link_bandwidth),
            "network": (self.cross_slice_bytes, self.rates.network_bandwidth),
        }
        transfers = {limit: amount / rate for limit, (amount, rate) in moved.items() if rate is not None}
        return {"compute": self.compute_seconds, **transfers}

    @property
    def bound(self) -> Limit | None:
        """What limits the program: the largest of `bounds`. None where they are not known."""
        return max(self.bounds, key=self.bounds.__getitem__, default=None)

    @property
    def bound_seconds(self) -> float | None:
        """The largest of `bounds`."""
        return max(self.bounds.values(), default=None)

    @property
    def library_calls(self) -> Mapping[str, int]:
        """How often a GPU's program calls each function of a library, "__cublas$lt$matmul" and so on."""
        return collections.Counter(call.what for call in self.custom_calls if is_library_call(call.what))

    @property
    def float32_products(self) -> tuple[Product, ...]:
        """Products with an operand in float32, which are slow where bfloat16 was meant."""
        return tuple(product for product in self.products if "f32" in product.dtypes)

    @property
    def high_precision_products(self) -> tuple[Product, ...]:
        """Products at a precision above the default."""
        return tuple(product for product in self.products if product.precision != "default")

    def fuses(self, *names: str) -> Fused:
        """The kernels that hold an operation of every name, as a tuple, which is true if there are any.

        A name is that of a JAX primitive ("dot_general", "select_n"), of a jitted function or scope that the operation
        is in ("_bernoulli"), or an opcode of the compiled program ("convolution"). Raises `ValueError` without one.
        """
        if not names:
            raise ValueError('name at least one operation: program.fuses("dot_general", "select_n")')
        return Fused(names, self.fusions)

    def __repr__(self) -> str:
        device = f"for {self.target}" if self.target else f"on {self.device_kind}"
        fusions = plural(len(self.fusions), "fusion")
        flops = "unknown" if self.flops is None else f"{self.flops:.3g}"
        # A failed `assert program.fits` shows it.
        arrays = dict.fromkeys(f"{array.what} at {array.where}" for array in self.at_peak[:2])
        memory = f"; does not fit: {', '.join(arrays)}" if self.fits is False else ""
        return f"<program of {self.label} {device}: {fusions}, {flops} FLOP{memory}>"


def _sum(amounts: Iterable[int | None]) -> int | None:
    """The sum of the amounts that are known; None where none is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


_SIZES = (
    *("argument_bytes", "output_bytes", "temp_bytes", "alias_bytes", "code_bytes"),
    *("at_peak", "argument_sizes", "output_sizes", "shards"),
)


def sum_of(programs: Sequence[Program]) -> Program:
    """The facts of programs that run one after another; the sizes in memory are those of the one that needs most.

    Arguments of several programs have the same paths, so there are no shards.
    """
    largest = max(programs, key=lambda program: program.peak_bytes)
    sums: dict[str, Any] = {}
    for name in Program.__annotations__.keys() - {*_SIZES}:
        values = [getattr(program, name) for program in programs]
        if None in values:
            sums[name] = None
        elif isinstance(values[0], tuple):
            sums[name] = tuple(itertools.chain.from_iterable(values))
        else:
            sums[name] = functools.reduce(operator.add, values)
    compiled = {id(program): program for program in programs}.values()
    seconds = {name: sum(getattr(each, name) for each in compiled) for name in ("lower_seconds", "compile_seconds")}
    devices = {name: max(getattr(each, name) for each in programs) for name in ("partitions", "slices")}
    return dataclasses.replace(largest, **{**sums, **seconds, **devices, "shards": {}, "programs": tuple(programs)})


def place_of(source: SourceFrame) -> str:
    """`model.py:42 in attention`, the path from the working directory."""
    here = os.getcwd() + os.sep
    function = f" in {source.function}" if source.function else ""
    return f"{source.file.removeprefix(here)}:{source.line}{function}"


def source_of(stack: Sequence[SourceFrame]) -> SourceFrame | None:
    """The innermost frame outside installed libraries; failing that, the innermost. None where no line is a user's."""
    theirs = list(itertools.takewhile(lambda frame: not frame.file.startswith(_LOWERING), stack))
    source = next((frame for frame in theirs if not frame.file.startswith(_LIBRARIES)), theirs[0] if theirs else None)
    return source and dataclasses.replace(source, function=_COMPREHENSION.sub("", source.function))


def product_seconds(rates: Rates, product: Product) -> float:
    """The least time of one run of a product; 0 where no rate of its type is published."""
    rate = rate_of(rates, product.rate_type, product.precision)
    return 0.0 if rate is None else product.flops / rate


def rate_of(rates: Rates, dtype: str, precision: str) -> float | None:
    """The FLOP/s of products of an XLA type at a precision of JAX."""
    peak, dtype = rates.peak_flops, _OF_PARTS.get(dtype, dtype)
    if dtype == "f32" and "fp32" in peak:
        return peak["fp32"] if precision == "highest" else peak.get("tf32", peak["fp32"])
    if dtype == "f32" and "bf16" in peak:
        return peak["bf16"] / _PASSES[precision]
    return peak.get("fp8" if dtype.startswith("f8") else _RATES.get(dtype, ""))
