"""The estimated time of a compiled program on a device that need not be here, and what its operations take of it.

Each operation has an estimate from one source. Its roofline is what its FLOP take at the rate of their type or its
bytes at the bandwidth of the memory, whichever is more, at the share of these rates that devices attain. A GPU adds a
launch. A product takes what the compiler says within what its roofline makes likely: on a TPU by its estimate of
cycles, on a GPU by XLA's table of measured products (its model "sol"). A Pallas kernel of a TPU takes a cycle for each
bundle of its static schedule, or what its arrays do.

The device does one operation after the other, in the order of the schedule. Beside them collectives and copies go on,
one after the other on the links and on the memory; where one ends, the device waits for what is left of it.
"""

import collections
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from perfsuite.measure.hlo.costs import CONTROL, Cost, CostModel
from perfsuite.measure.hlo.loops import Place
from perfsuite.measure.hlo.module import HOST_MEMORY
from perfsuite.measure.program.program import Kernel, Product, TimeLimit, product_seconds, rate_of
from perfsuite.measure.program.schedule import (
    RUNNING,
    TRANSFERS,
    Placed,
    Span,
    bytes_of,
    collective_identity,
    collective_kind,
    computes,
    crosses_network,
    is_launch,
    moved_bytes,
    spans_of,
)
from perfsuite.measure.targets.targets import GPUS_OF_A_HOST, Rates

ATTAINED: Final = 0.85
"""The share of the published rates that devices attain: copies 0.83 on a v6e (49.4 us for 32 MiB, by the profiler, in
Google's tpu-recipes), products 0.81 and 0.87 on an A100, permutations between neighbours 0.86 on a v5p."""

LAUNCH_US: Final = 1.0
"""From one kernel of a GPU to the next: what XLA's own models of GPUs add (`kKernelLaunchOverhead`)."""

STEP_US: Final = 0.35
"""A step of a Pallas kernel's grid on a TPU takes at least so much: 32,768 steps whose bundles take 0.14 us each were
measured at 11.8 ms (v5e, https://docs.jax.dev/en/latest/pallas/tpu/matmul.html)."""

NCCL_LAUNCH_US: Final = 5.0
"""Of a collective between GPUs, by the same models (`kNcclKernelLaunchOverhead`)."""

HOP_US: Final = 1.0
"""From one chip of a ring to the next (https://jax-ml.github.io/scaling-book/sharding)."""

_TRANSCENDENTAL_FLOP: Final = {"GPU": 16, "TPU": 4}
"""A multiprocessor of a GPU has 16 units for transcendentals and 128 that multiply and add, a TPU 1 for 4."""

_OF_TABLE: Final = {"bf16", "f32"}
"""The types of XLA's table. For others it has a multiple: for float16 8 times the time of bfloat16 (jax 0.10.2)."""

_MOST: Final = 3.0
"""The table is not believed beyond so many times the roofline: for a product of 8192 x 8192 x 8192 in bfloat16 it has
more, for one of 4096 x 4096 x 4096 1.3 times (H100, jax 0.10.2)."""

_UNEXPLAINED: Final = 2.0
"""An operation that takes so many times its roofline is bound by neither of its sides."""


class OperationTime(NamedTuple):
    """Microseconds of one run, None where there is no source; what limits it, and where the number is from."""

    us: float | None
    limit: TimeLimit | None = None
    basis: str = ""


class _Timeline(NamedTuple):
    """One run of a computation: its microseconds, and by place the start of each operation and the waits for it.

    `longer` is by how much a kernel that computes takes longer for the collective that it carries.
    """

    us: float
    starts: Mapping[Place, float]
    waits: Mapping[Place, float]
    longer: Mapping[Place, float]


class TimeModel:
    """The estimates of a program's `kernels`, in the order of the schedule.

    `products` are all of its products, `codes` its kernels of the user's. The costs of the places in `unknown` are not
    known.
    """

    def __init__(
        self,
        model: CostModel,
        kernels: Iterable[Placed],
        products: Mapping[Place, Product],
        unknown: Collection[Place],
        codes: Mapping[Place, Kernel],
        rates: Rates,
        partitions: int,
    ):
        self.model, self.products, self.unknown, self.codes = model, products, unknown, codes
        self.rates, self.partitions = rates, partitions
        self.computations: dict[str, list[Placed]] = collections.defaultdict(list)
        for placed in kernels:
            self.computations[placed.within].append(placed)
        self.timeline = functools.cache(self._timeline)
        self.products_in = functools.cache(self._products_in)

    def total(self) -> float:
        """The microseconds of one run of the program; an operation without a source takes none."""
        return self.timeline(self.model.module.entry).us

    def waits(self) -> dict[Place, float]:
        """How long the device waits for each collective or copy, of one run of each."""
        # What a computation waits for that goes on beside another one is as long as the other one waits: callers last.
        inner_first = reversed(self.computations)
        return {place: us for name in inner_first for place, us in self.timeline(name).waits.items()}

    def longer(self) -> dict[Place, float]:
        """By how much kernels that compute take longer for the collectives that they carry."""
        return {place: us for name in self.computations for place, us in self.timeline(name).longer.items()}

    @functools.cached_property
    def starts(self) -> dict[Place, float]:
        """When each operation first starts, in microseconds from the start of the program."""
        begin, starts = {self.model.module.entry: 0.0}, {}
        for name, kernels in self.computations.items():
            for placed in kernels:
                starts[placed.place] = begin[name] + self.timeline(name).starts[placed.place]
                start = starts[placed.place]
                for called in placed.op.calls if placed.op.opcode in CONTROL else ():
                    begin.setdefault(called, start)
                    # The condition of a loop is before its body.
                    start += self.timeline(called).us if placed.op.opcode == "while" else 0.0
        return starts

    def estimate(self, placed: Placed) -> OperationTime:
        """The time of one run of an operation, whether something else goes on beside it or not."""
        transfer = self._beside(placed)
        if transfer is not None and not computes(placed):
            return transfer
        code, clock = self.codes.get(placed.place), self.rates.cycles_per_us
        if code and code.bundles and code.grid_steps and not code.unknown_loops and clock:
            moved = self._memory_us(placed.bytes)
            busy = code.grid_steps * max(code.bundles / clock, STEP_US)
            return OperationTime(max(busy, moved), "compute" if busy > moved else "memory", "static schedule")
        # Of a TPU's kernel an author's estimate does not stand for its schedule, which has loops of unknown count once.
        # The compiler's own kernels have no schedule.
        users = clock is not None and code is not None and "pallas_call" in placed.op.op_name
        if placed.place in self.unknown or users:
            return OperationTime(None)
        cost, products = self.model.instruction(placed.within, placed.op), self._inner_products(placed)
        compute = self._compute_us(placed, cost, products)
        memory = self._memory_us(cost.bytes)
        roofline = max(compute, memory)
        us, basis = self._by_compiler(placed, roofline, products)
        side: TimeLimit = "compute" if compute > memory else "memory"
        rates = [rate_of(self.rates, product.rate_type, product.precision) for product in products]
        if None in rates and basis != "estimated cycles":
            return OperationTime(None)
        return OperationTime(us, "latency" if us > _UNEXPLAINED * roofline else side, basis)

    def _by_compiler(self, placed: Placed, roofline: float, products: Sequence[Product]) -> tuple[float, str]:
        """What the compiler says an operation takes, within what its roofline makes likely; else its roofline."""
        op = placed.op
        if self.rates.cycles_per_us is None:
            least = roofline + LAUNCH_US
            # The table is of single products, of two types.
            in_table = products and {product.rate_type for product in products} <= _OF_TABLE
            batched = any(part.batched for part in (op, *placed.parts))
            table = op.sol_us or 0.0 if in_table and not batched else 0.0
            return (table, "sol") if least < table <= _MOST * least else (least, "roofline")
        cycles = (op.estimated_cycles or 0) / self.rates.cycles_per_us
        if cycles <= 0:
            return roofline, "roofline"
        # Of a kernel without products, libtpu's cycles are up to 10 times what the bandwidth of the memory allows; they
        # are less for an array that is on the chip.
        us = max(cycles, ATTAINED * roofline) if products else min(cycles, roofline + LAUNCH_US)
        return us, "estimated cycles" if us == cycles else "roofline"

    def _memory_us(self, size: int) -> float:
        return size / (ATTAINED * self.rates.memory_bandwidth) * 1e6

    def _compute_us(self, placed: Placed, cost: Cost, products: Sequence[Product]) -> float:
        """The least time for an operation's FLOP, its products at the rates of their types."""
        seconds = sum(product_seconds(self.rates, product) for product in products)
        others = max(cost.flops - sum(product.flops for product in products), 0)
        others += cost.transcendentals * _TRANSCENDENTAL_FLOP["GPU" if self.rates.cycles_per_us is None else "TPU"]
        peak = self.rates.peak_flops
        fastest = peak.get("bf16", max(peak.values()))
        # What a kernel counts may be products.
        slow = self.rates.vector_flops or peak.get("fp32", fastest)
        seconds += others / (fastest if placed.op.opcode == "custom-call" else slow)
        return seconds / ATTAINED * 1e6

    def _inner_products(self, placed: Placed) -> list[Product]:
        """The products that an operation is or holds."""
        own = [self.products[placed.place]] if placed.place in self.products else []
        if placed.op.opcode in CONTROL:
            return own
        return own + [product for name in placed.op.calls for product in self.products_in(name)]

    def _products_in(self, name: str) -> list[Product]:
        products = []
        for op in self.model.module.computations[name].instructions:
            products += [self.products[name, op.name]] if (name, op.name) in self.products else []
            products += [product for called in op.calls for product in self.products_in(called)]
        return products

    def _beside(self, placed: Placed, identity: Any = None) -> OperationTime | None:
        """The time of what an instruction starts that goes on beside others: a collective, a copy. None without.

        Of several collectives it is that of the first, or of that with the `identity`.
        """
        op = placed.op
        if op.opcode in RUNNING:
            return None
        if op.opcode == "async-start":
            limit: TimeLimit = "link" if any(map(collective_kind, placed.parts)) else "memory"
            return OperationTime(sum(self.timeline(name).us for name in op.calls), limit, "what it wraps")
        collectives = [each for each in (op, *placed.parts) if collective_kind(each)]
        same = [each for each in collectives if collective_identity(each) == identity]
        if collective := next(iter(same or collectives), None):
            if us := op.sol_us or collective.sol_us:
                return OperationTime(us, "link", "sol")
            group = collective.group_size or self.partitions
            if collective is op:
                size = moved_bytes(placed)
            else:
                size = bytes_of(collective.shapes) * (group if collective.opcode == "reduce-scatter" else 1)
            return self._over_links(collective_kind(collective), size, group)
        if op.opcode in TRANSFERS and op.opcode != "copy-start":
            rate = (self.rates.network_bandwidth or 0.0) * ATTAINED if crosses_network(op) else 0.0
            array = max(shape.bytes for shape in op.shapes)
            return OperationTime(array / rate * 1e6, "link", "link") if rate else OperationTime(None)
        if op.opcode == "copy-start":
            if HOST_MEMORY in (shape.space for shape in (*op.shapes, *placed.operands)):
                return OperationTime(None)  # the rate of the link to the host is not known
            return OperationTime(self._memory_us(bytes_of(placed.operands)), "memory", "roofline")
        return None

    def _over_links(self, kind: str, size: int, group: int) -> OperationTime:
        """The time of a collective between `group` devices; of a gather or scatter `size` is that of the whole array.

        Chips of a TPU are in rings, on which data goes both ways; a switch joins the GPUs of a host.
        """
        rates = self.rates
        if rates.link_bandwidth is None:
            return OperationTime(None)
        one_way = ATTAINED * rates.link_bandwidth / 2 / rates.links
        ring = rates.links > 1
        if not ring and self.partitions > GPUS_OF_A_HOST:
            return OperationTime(None)  # the rate of the network between hosts is not known
        shares = {"all-reduce": 2 * (group - 1) / group, "collective-permute": 1.0, "collective-broadcast": 1.0}
        share = shares.get(kind, (group - 1) / group)
        if kind.endswith("all-to-all") and ring:
            share = group / 4
        ways = 2 if ring and kind != "collective-permute" else 1
        latency = HOP_US * max(group // 2, 1) if ring else NCCL_LAUNCH_US
        return OperationTime(size * share / (one_way * ways) * 1e6 + latency, "link", "link")

    def busy_us(self, placed: Placed) -> float:
        """How long the device does one instruction and nothing after it."""
        op = placed.op
        called = [self.timeline(name).us for name in op.calls] if op.opcode in RUNNING else []
        if op.opcode == "while":
            count = self.model.counts.get(placed.place)
            return sum(called) * (1 if count is None else count)
        if op.opcode == "conditional":
            return max(called)
        if op.opcode == "call":
            return sum(called)
        if not is_launch(placed) or (self._beside(placed) is not None and not computes(placed)):
            return 0.0
        return self.estimate(placed).us or 0.0

    def _timeline(self, name: str) -> _Timeline:
        instructions = self.computations[name]
        first: dict[int, list[Span]] = collections.defaultdict(list)
        last: dict[int, list[Span]] = collections.defaultdict(list)
        for span in spans_of(instructions):
            first[span.first].append(span)
            last[span.last].append(span)
        now = 0.0
        free: dict[str | None, float] = {}
        ends: dict[Any, float] = {}
        starts: dict[Place, float] = {}
        waits: dict[Place, float] = {}
        longer: dict[Place, float] = {}
        for position, placed in enumerate(instructions):
            starts[placed.place] = now
            for number, span in enumerate(first[position]):
                transfer = self._beside(placed, span.identity) or OperationTime(None)
                if number and placed.op.opcode == "async-start":
                    transfer = OperationTime(0.0)  # what it wraps goes on as one
                # The network between slices has both directions at once, beside the links.
                lane = placed.op.opcode if crosses_network(placed.op) else transfer.limit
                begin = max(now, free.get(lane, 0.0))
                free[lane] = ends[span.identity] = begin + (transfer.us or 0.0)
                if not computes(placed):
                    starts[placed.place] = begin
            now += self.busy_us(placed)
            for span in last[position]:
                wait = max(ends[span.identity] - now, 0.0)
                now += wait
                start = instructions[span.first]
                if computes(start) and start.op.opcode != "async-start":
                    longer[start.place] = longer.get(start.place, 0.0) + wait
                else:
                    for carrier in self._carriers(start):
                        waits[carrier] = waits.get(carrier, 0.0) + wait
        return _Timeline(now, starts, waits, longer)

    def _carriers(self, start: Placed) -> list[Place]:
        """The operation that stands for what an instruction starts: itself, or what it wraps."""
        inner = [placed for name in start.op.calls for placed in self.computations.get(name, ())]
        return [placed.place for placed in inner if is_launch(placed)][:1] or [start.place]
