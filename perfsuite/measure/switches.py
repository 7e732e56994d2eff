"""JAX's own switches that change how calls run and compile: what each does, and which instruments it disturbs."""

import jax

_COMPILING = "perf.warm", "perf.no_compiles", "perf.count_compiles", "perf.first_call"
_TIMED = "perf.stays_async", "perf.stalls", "perf.compare", "perf.time", "perf.scaling"
_RUNNING = (
    *("perf.host_calls", "perf.dispatches", "perf.fast_path", "perf.memory", "perf.donation", *_TIMED),
    *("perf.transfers", "perf.no_transfers", "perf.count_transfers"),
)
_READS = False, "JAX waits for each output and reads it, and donates nothing", (*_RUNNING, "perf.program")
_LOGS = False, "JAX logs what it traces and lowers", ("perf.first_call",)

_SWITCHES = {
    "jax_disable_jit": (False, "each operation is a program of its own", (*_COMPILING, *_RUNNING)),
    "jax_debug_nans": _READS,
    "jax_debug_infs": _READS,
    "jax_check_tracer_leaks": (False, "JAX keeps no trace under a transformation", (*_COMPILING, *_RUNNING)),
    "jax_enable_checks": (False, "JAX checks all that it traces, in Python", (*_COMPILING, *_RUNNING)),
    "jax_debug_key_reuse": (False, "JAX calls no program by its fast path", (*_COMPILING, *_RUNNING)),
    "jax_log_compiles": _LOGS,
    "jax_explain_cache_misses": _LOGS,
    "jax_cpu_enable_async_dispatch": (True, "a call runs its program before it returns", _TIMED),
}
"""By name: the usual value, what JAX does with the other one, and the instruments that this disturbs."""


def switches_first(method: str, text: str) -> str:
    """A cause or an error of an instrument such as "perf.donation", after the switches that disturb it.

    These are the ones that are not as usual in this thread: a line for each, with what it does and how to set it back.
    """
    values = dict(jax.config.values)
    lines = [
        f"{name} is {values[name]}: {does}. Measure without it: jax.config.update({name!r}, {usual})"
        for name, (usual, does, disturbed) in _SWITCHES.items()
        if method in disturbed and bool(values.get(name, usual)) != usual
    ]
    return "\n".join(filter(None, [*lines, text]))
