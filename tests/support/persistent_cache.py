"""JAX's persistent compilation cache, for a test alone."""

import contextlib

import jax
from jax.experimental.compilation_cache import compilation_cache

QUICK = "jax_persistent_cache_min_compile_time_secs"
SMALL = "jax_persistent_cache_min_entry_size_bytes"
ON = "jax_enable_compilation_cache"
FOLDER = "jax_compilation_cache_dir"


@contextlib.contextmanager
def keeping_everything(folder):
    """The cache in a folder, with every program in it; as it was before afterwards."""
    settings = {FOLDER: str(folder), QUICK: 0.0, SMALL: -1, ON: True}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
