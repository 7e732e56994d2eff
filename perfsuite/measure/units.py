"""The units of counts and sizes that gates and reports treat in a way of their own."""

HOST_CALLS = "calls"
MISSES = "misses"
"""Calls that missed `jax.jit`'s C++ fast path."""

CALLS_TO_TRACE = "calls to trace"
CALLS_TO_LOWER = "calls to lower"
EQUATIONS = "equations"

MODULES = "modules"
BACKENDS = "backends"

OF_PYTHON = (HOST_CALLS, CALLS_TO_TRACE, CALLS_TO_LOWER, MODULES)
"""Counts that change with Python's minor version."""
