"""The function that starts a backend of JAX's, which the fresh process of `perf.imports` wraps."""

from perfsuite.measure.private.names import Name

START = Name("jax._src.xla_bridge", "_init_backend", called=True)
