"""JAX's own switches that change how calls run and compile: what each does, and which instruments it disturbs."""

import dataclasses
from typing import Any

import jax

_COMPILING = ("perf.warm", "perf.no_compiles", "perf.count_compiles", "perf.first_call")
_RUNNING = (
    *("perf.host_calls", "perf.dispatches", "perf.fast_path", "perf.memory", "perf.donation"),
    *("perf.transfers", "perf.no_transfers", "perf.count_transfers"),
    *("perf.stays_async", "perf.stalls", "perf.compare", "perf.time", "perf.scaling"),
)


@dataclasses.dataclass(frozen=True)
class _Switch:
    does: str
    disturbs: tuple[str, ...]
    usual: bool = False


_READS = _Switch("JAX waits for each output and reads it, and donates nothing", (*_RUNNING, "perf.program"))
_LOGS = _Switch("JAX logs what it traces and lowers", ("perf.first_call",))
_SWITCHES = {
    "jax_disable_jit": _Switch("each operation is a program of its own", (*_COMPILING, *_RUNNING)),
    "jax_debug_nans": _READS,
    "jax_debug_infs": _READS,
    "jax_check_tracer_leaks": _Switch("JAX traces again under each transformation", (*_COMPILING, *_RUNNING)),
    "jax_enable_checks": _Switch("JAX checks all that it traces, in Python", (*_COMPILING, *_RUNNING)),
    "jax_debug_key_reuse": _Switch("JAX calls no program by its fast path", (*_COMPILING, *_RUNNING)),
    "jax_log_compiles": _LOGS,
    "jax_explain_cache_misses": _LOGS,
    "jax_cpu_enable_async_dispatch": _Switch(
        "a call runs its program before it returns", ("perf.stays_async", "perf.compare", "perf.time"), usual=True
    ),
}


def switches_first(method: str, text: str) -> str:
    """A cause or an error of an instrument such as "perf.donation", after the switches that disturb it.

    These are the ones that are not as usual in this thread: a line for each, with what it does and how to set it back.
    """
    values: dict[str, Any] = dict(jax.config.values)
    lines = [
        f"{name} is {values[name]}: {switch.does}. Measure without it: jax.config.update({name!r}, {switch.usual})"
        for name, switch in _SWITCHES.items()
        if method in switch.disturbs and bool(values.get(name, switch.usual)) != switch.usual
    ]
    return "\n".join(filter(None, [*lines, text]))
