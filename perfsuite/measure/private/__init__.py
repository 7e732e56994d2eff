"""What perfsuite knows about the internals of JAX, the frameworks and libtpu, with a test for each name that may move.

This module imports none of them.
"""

BACKEND_START = "jax._src.xla_bridge", "_init_backend"
"""The module and the function that starts a backend, which the fresh process of `perf.imports` wraps."""
