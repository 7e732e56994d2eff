"""JAX's private name for what starts a backend. No public API tells that without starting one.

The fresh process of `perf.imports` wraps this function when its module is imported. This one imports no jax. When JAX
moves the name, `tests/measure/compat/test_backend_start.py` fails.
"""

MODULE = "jax._src.xla_bridge"
FUNCTION = "_init_backend"
