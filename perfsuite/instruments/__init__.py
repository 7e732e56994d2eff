"""The methods of the fixture `perf`, one file an instrument.

An instrument declares itself with `base.declare`: its method, the fields of `Budget` that it checks, and what it needs.
Its module is imported when a test first asks for the method, so that one which fails at import fails no other test, and
none costs a session that does without it.
"""

import importlib
from typing import Any

METHODS: dict[str, tuple[str, str]] = {
    "warm": ("compiling.compiles", "CompilesInstrument"),
    "no_compiles": ("compiling.compiles", "CompilesInstrument"),
    "count_compiles": ("compiling.compiles", "CompilesInstrument"),
    "first_call": ("compiling.first_call", "FirstCallInstrument"),
    "covers": ("compiling.covers", "CoversInstrument"),
    "cache_key": ("compiling.cache", "CacheInstrument"),
    "cache_hits": ("compiling.cache", "CacheInstrument"),
    "time": ("timing.time", "TimeInstrument"),
    "compare": ("timing.compare", "CompareInstrument"),
    "scaling": ("timing.scaling", "ScalingInstrument"),
    "stays_async": ("timing.waits", "WaitsInstrument"),
    "stalls": ("timing.waits", "WaitsInstrument"),
    "host_calls": ("host_calls", "HostCallsInstrument"),
    "dispatches": ("dispatches", "DispatchesInstrument"),
    "fast_path": ("dispatches", "DispatchesInstrument"),
    "transfers": ("transfers", "TransfersInstrument"),
    "no_transfers": ("transfers", "TransfersInstrument"),
    "count_transfers": ("transfers", "TransfersInstrument"),
    "memory": ("memory", "MemoryInstrument"),
    "donation": ("memory", "MemoryInstrument"),
    "program": ("program", "ProgramInstrument"),
    "imports": ("imports", "ImportsInstrument"),
    "trace": ("trace", "TraceInstrument"),
    "trace_block": ("trace", "TraceInstrument"),
}
"""Every method of `perf` that measures: the module below this package, and the class in it."""


def instrument_class(method: str) -> Any:
    """The class that has a method of `perf`. Imports its module."""
    module, name = METHODS[method]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
