"""A budget: limits in the test itself, checked where they are given."""

import dataclasses

from perfsuite.measure.metric import is_finite


class BudgetExceeded(AssertionError):  # noqa: N818  (the public name; it is an assertion, not a fault)
    """A metric lies over its budget. The message has the interval, the limit and the likely cause."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """Upper limits, each optional, each with its unit in its name.

    | field | limits | checked by |
    |---|---|---|
    | `ratio` | candidate over reference | `perf.compare` |
    | `overhead_us` | candidate minus reference, microseconds | `perf.compare` |
    | `us_per_leaf` | slope of a time over sizes, microseconds a unit | `perf.scaling` |
    | `compiles` | backend compiles while warming | `perf.warm` |
    | `uncovered` | signatures that inputs bring and that were not warmed; 0 where it is not set | `perf.covers` |
    | `host_calls` | Python and C calls of one warm call | `perf.host_calls` |
    | `dispatches` | compiled programs that one warm call runs, eager operations among them | `perf.dispatches` |
    | `fast_path_misses` | calls of jitted functions in one warm call that take JAX's slow path | `perf.fast_path` |
    | `stall_us` | how much longer than the median single calls may take, microseconds | `perf.stalls` |
    | `time_us` | median time to ready, microseconds; of a machine of one's own | `perf.time` |
    | `p99_us` | 99th percentile of the time to ready, microseconds | `perf.time` |
    | `peak_bytes` | device memory that the compiled program needs at its peak, bytes | `perf.program` |
    | `transfers` | implicit transfers and callbacks of one warm call | `perf.transfers` |
    | `leaked_arrays` | live arrays that a step adds and nothing frees | `perf.memory` |
    | `leaked_bytes` | device bytes that a step adds and nothing frees | `perf.memory` |
    | `trace_calls` | Python and C calls while JAX traces a call | `perf.first_call` |
    | `lowering_calls` | Python and C calls while JAX lowers a call | `perf.first_call` |
    | `traces` | functions that JAX traces for a call | `perf.first_call` |
    | `equations` | equations of the jaxprs of a call's programs | `perf.first_call` |
    | `stablehlo_bytes` | what the compiler gets for a call, without constants, bytes | `perf.first_call` |
    | `constants` | arrays that a call's programs contain | `perf.first_call` |
    | `constant_bytes` | the size of these arrays, bytes | `perf.first_call` |
    | `exponent` | the power of the size with which a count grows | `perf.scaling` |
    | `undonated` | arrays of the carried state that a step keeps in memory twice | `perf.donation` |
    | `cache_keys` | keys that processes have for a call, in a persistent cache | `perf.cache_key` |
    | `cache_misses` | programs that a second process compiles, with a persistent cache | `perf.cache_hits` |
    | `imported_modules` | modules that an import imports | `perf.imports` |
    | `started_backends` | backends of JAX that an import starts | `perf.imports` |

    Raises `TypeError` or `ValueError` for a limit that is no finite number. An instrument that does not check
    a field that is set raises `ValueError` and names the one that does.
    """

    ratio: float | None = None
    overhead_us: float | None = None
    us_per_leaf: float | None = None
    compiles: int | None = None
    uncovered: int | None = None
    host_calls: int | None = None
    dispatches: int | None = None
    fast_path_misses: int | None = None
    stall_us: float | None = None
    time_us: float | None = None
    p99_us: float | None = None
    peak_bytes: int | None = None
    transfers: int | None = None
    leaked_arrays: int | None = None
    leaked_bytes: int | None = None
    undonated: int | None = None
    trace_calls: int | None = None
    lowering_calls: int | None = None
    traces: int | None = None
    equations: int | None = None
    stablehlo_bytes: int | None = None
    constants: int | None = None
    constant_bytes: int | None = None
    exponent: float | None = None
    cache_keys: int | None = None
    cache_misses: int | None = None
    imported_modules: int | None = None
    started_backends: int | None = None

    def __post_init__(self):
        for name, limit in self.limits().items():
            if isinstance(limit, bool) or not isinstance(limit, int | float):
                raise TypeError(f"Budget({name}=...) must be a number, got {limit!r}")
            if not is_finite(limit) or (limit < 0 and name != "overhead_us"):
                got = limit if isinstance(limit, float) or is_finite(limit) else "a larger number"
                raise ValueError(f"Budget({name}={got}): must be finite and not negative")
        if self.ratio == 0:
            raise ValueError("Budget(ratio=0): a ratio is above zero; ratio=1.0 allows no slowdown")

    def limits(self) -> dict[str, float]:
        """The fields that are set, by name."""
        return {
            field.name: value for field in dataclasses.fields(self) if (value := getattr(self, field.name)) is not None
        }
