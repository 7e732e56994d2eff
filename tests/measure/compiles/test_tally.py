"""What a context counts, by function and stage, and what it leaves out."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import pytest
from support.compiling import SHORT, doubling, run_in_thread

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError


def test_hits_of_the_persistent_cache_are_counted_apart(tmp_path):
    from jax.experimental.compilation_cache import compilation_cache

    options = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: jax.config.values[name] for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        with warnings.catch_warnings(), compiles.count() as first:
            warnings.simplefilter("ignore")
            doubling()(SHORT)
        with compiles.count() as second:
            doubling()(SHORT)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert (first.compiles, first.cache_hits) == (1, 0)
    assert (second.compiles, second.cache_hits) == (1, 1)


def test_inputs_can_be_built_inside():
    step = doubling()
    step(SHORT)
    with compiles.count() as counted, compiles.forbid() as forbidden:
        with forbidden.building_inputs():
            argument = jnp.full((3,), 7.0, jnp.float32) * jnp.arange(3)
            doubling()(argument)
        step(argument)
    assert counted.events == ()


def test_after_building_inputs_compiles_are_forbidden_again():
    def build_and_compile(context):
        with context.building_inputs():
            doubling()(SHORT)
        doubling()(SHORT)

    with pytest.raises(RecompilationError), compiles.forbid() as forbidden:
        build_and_compile(forbidden)


def test_building_inputs_excuses_its_own_thread_only():
    step = doubling()

    def compile_elsewhere():
        with contextlib.suppress(RecompilationError):
            step(SHORT)

    with pytest.raises(RecompilationError), compiles.forbid() as forbidden, forbidden.building_inputs():
        run_in_thread(compile_elsewhere)
