"""`perfsuite.measure.private.persistent_cache`: keys of JAX's persistent cache, and what became of a program."""

import jax
import jax.numpy as jnp
import pytest
from support.persistent_cache import keeping_everything
from support.private_names import taken_away

from perfsuite.measure.private import capabilities, persistent_cache
from perfsuite.measure.private.capabilities import PERSISTENT_CACHE
from perfsuite.measure.private.persistent_cache import key_of, watching_cache

X = jax.ShapeDtypeStruct((4,), jnp.float32)


@pytest.fixture
def cache(tmp_path):
    with keeping_everything(tmp_path):
        yield tmp_path


def step():
    """A jitted function that was never compiled."""

    @jax.jit
    def step(x):
        return jnp.sin(x) + 1

    return step


def compiled(jitted):
    with watching_cache() as programs:
        jitted.lower(X).compile()
    (program,) = programs
    return program


def test_a_line_that_jax_logs_no_more_is_seen():
    with taken_away(persistent_cache._HIT):
        capabilities.forget()
        assert "Persistent compilation cache hit" in PERSISTENT_CACHE.lost()
    capabilities.forget()


def test_the_key_is_that_of_the_entry_in_the_cache(cache):
    taken = key_of(step().lower(X))
    assert not list(cache.iterdir()), "nothing was compiled"
    seen = compiled(step())
    assert (seen.key.name, seen.key.key, seen.key.parts) == (taken.name, taken.key, taken.parts)
    assert not seen.found
    assert not seen.not_kept
    assert [path.name for path in cache.iterdir()] == [f"{taken.key}-cache"]
    assert taken.name == "step"
    assert "stablehlo.sine" in taken.text
    assert __file__ in taken.text


def test_a_program_that_is_in_the_cache_is_found(cache):
    compiled(step())
    jax.clear_caches()
    assert compiled(step()).found
