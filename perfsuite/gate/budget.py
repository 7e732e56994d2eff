"""A budget: limits in the test itself, checked where they are given."""

import dataclasses

from perfsuite.measure.metric import is_finite


class BudgetExceeded(AssertionError):  # noqa: N818  (the public name; it is an assertion, not a fault)
    """A metric lies over its budget. The message has the interval, the limit and the likely cause."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """Upper limits, each optional, each with its unit in its name.

    Raises `TypeError` or `ValueError` for a limit that is no finite number. An instrument that does not check
    a field that is set raises `ValueError` and names the one that does.
    """

    # Written by .ci/instruments.py: begin
    compiles: float | None = None
    """`perf.warm`: backend compiles while warming."""
    uncovered: float | None = None
    """`perf.covers`: signatures of inputs that were not warmed (default: 0)."""
    ratio: float | None = None
    """`perf.compare`: candidate over reference."""
    overhead_us: float | None = None
    """`perf.compare`: candidate minus reference."""
    time_us: float | None = None
    """`perf.time`: median time to ready, on a machine of your own."""
    p99_us: float | None = None
    """`perf.time`: 99th percentile of the time to ready."""
    us_per_leaf: float | None = None
    """`perf.scaling`: slope of a time over sizes."""
    exponent: float | None = None
    """`perf.scaling`: the power of the size with which a metric grows."""
    stall_us: float | None = None
    """`perf.stalls`: how much longer than the median one call may take."""
    host_calls: float | None = None
    """`perf.host_calls`: Python and C calls of one warm call."""
    dispatches: float | None = None
    """`perf.dispatches`: compiled programs that one warm call runs, eager operations too."""
    fast_path_misses: float | None = None
    """`perf.fast_path`: calls of jitted functions that take JAX's slow path in one warm call."""
    trace_calls: float | None = None
    """`perf.first_call`: Python and C calls while JAX traces a call."""
    lowering_calls: float | None = None
    """`perf.first_call`: Python and C calls while JAX lowers a call."""
    traces: float | None = None
    """`perf.first_call`: functions that JAX traces for a call."""
    folded_flops: float | None = None
    """`perf.first_call`: FLOP that depend on no argument."""
    folded_bytes: float | None = None
    """`perf.first_call`: the results of these FLOP."""
    equations: float | None = None
    """`perf.first_call`: equations of the jaxprs of a call's programs."""
    stablehlo_bytes: float | None = None
    """`perf.first_call`: the text that the compiler gets, without constants."""
    constants: float | None = None
    """`perf.first_call`: arrays in a call's programs."""
    constant_bytes: float | None = None
    """`perf.first_call`: the size of these arrays."""
    cache_keys: float | None = None
    """`perf.cache_key`: keys that processes have for a call, in a persistent cache (default: 1)."""
    cache_misses: float | None = None
    """`perf.cache_hits`: programs that a second process compiles, with a persistent cache (default: 0)."""
    imported_modules: float | None = None
    """`perf.imports`: modules that an import imports."""
    started_backends: float | None = None
    """`perf.imports`: backends of JAX that an import starts."""
    transfers: float | None = None
    """`perf.transfers`: implicit transfers and callbacks of one warm call."""
    blocking_reads: float | None = None
    """`perf.transfers`: reads that one warm call waits for."""
    programs: float | None = None
    """`perf.memory`: programs that a step compiles."""
    leaked_arrays: float | None = None
    """`perf.memory`: live arrays that a step adds and nothing frees."""
    leaked_bytes: float | None = None
    """`perf.memory`: device bytes that a step adds and nothing frees."""
    cyclic_bytes: float | None = None
    """`perf.memory`: device bytes that a step leaves in cycles."""
    undonated: float | None = None
    """`perf.donation`: arrays of the carried state that a step keeps in memory twice."""
    peak_bytes: float | None = None
    """`perf.program`: device memory at the compiled program's peak."""
    estimated_us: float | None = None
    """`perf.program`: estimated time of one run of the compiled program."""
    instructions: float | None = None
    """`perf.instructions`: instructions that one warm call executes, of all threads."""
    # Written by .ci/instruments.py: end

    def __post_init__(self):
        for name, limit in self.limits().items():
            if isinstance(limit, bool) or not isinstance(limit, int | float):
                raise TypeError(f"Budget({name}=...) must be a number, got {limit!r}")
            if not is_finite(limit) or (limit < 0 and name != "overhead_us"):
                got = limit if isinstance(limit, float) or is_finite(limit) else "a larger number"
                raise ValueError(f"Budget({name}={got}): must be finite and not negative")
            if name == "ratio" and limit == 0:
                raise ValueError("Budget(ratio=0): a ratio is above zero; ratio=1.0 allows no slowdown")

    def limits(self) -> dict[str, float]:
        """The fields that are set, by name."""
        return {
            field.name: value for field in dataclasses.fields(self) if (value := getattr(self, field.name)) is not None
        }
