"""`perfsuite.measure.private.persistent_cache`: keys of JAX's persistent cache, and what became of a program."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from support.persistent_cache import ON, QUICK, SMALL, keeping_everything
from support.private_names import taken_away

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.private import capabilities, persistent_cache
from perfsuite.measure.private.capabilities import PERSISTENT_CACHE
from perfsuite.measure.private.names import Moved
from perfsuite.measure.private.persistent_cache import COMPUTATION, key_of, watching_cache

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


def test_all_names_are_where_they_were():
    assert PERSISTENT_CACHE.lost() == ""


def test_a_line_that_jax_logs_no_more_is_seen():
    with taken_away(persistent_cache._HIT):
        capabilities.forget()
        assert "Persistent compilation cache hit" in PERSISTENT_CACHE.lost()
    capabilities.forget()


def test_another_first_argument_is_seen(monkeypatch):
    monkeypatch.setattr(persistent_cache, "_COMPILED", ("client", "computation"))
    with pytest.raises(Moved, match=r"^jax\._src\.compiler\.compile_or_get_cached takes \('backend', 'computation'\)"):
        persistent_cache.probe()


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


def test_the_parts_of_a_key_are_told_apart(cache):
    taken = key_of(step().lower(X))
    assert {COMPUTATION, "jax_lib version", "backend version", "XLA flags", "compile_options"} < taken.parts.keys()
    assert taken.contents.keys() < taken.parts.keys()
    assert all(re.fullmatch(r"[0-9a-f]{64}", each) for each in taken.parts.values())
    # The folder of the cache is part of the options.
    assert str(cache) in taken.contents["compile_options"]


def test_a_program_that_was_compiled_before_has_no_new_key():
    jitted = step()
    jitted.lower(X).compile()
    with pytest.raises(MeasurementError, match="compiled before"):
        key_of(jitted.lower(X))


def test_a_program_that_is_in_the_cache_is_found(cache):
    compiled(step())
    jax.clear_caches()
    assert compiled(step()).found


def test_why_a_program_is_not_kept(cache):
    jax.config.update(QUICK, 1000.0)
    assert "because it took < 1000.00 seconds to compile" in compiled(step()).not_kept
    jax.config.update(QUICK, 0.0)
    jax.config.update(SMALL, 10**9)
    assert "is less than threshold (1000000000 bytes)" in compiled(step()).not_kept
    jax.config.update(SMALL, -1)

    @jax.jit
    def printing(x):
        jax.debug.print("{}", x)
        return x

    if not_kept := compiled(printing).not_kept:
        assert "host callbacks" in not_kept
    else:  # jax 0.12 keeps it
        jax.clear_caches()
        assert compiled(printing).found


def test_a_cache_that_is_off_has_no_key(cache):
    jax.config.update(ON, False)
    compilation_cache.reset_cache()
    seen = compiled(step())
    assert seen.key is None
    assert not seen.found


def test_jax_compiles_as_before_afterwards(caplog):
    with watching_cache():
        pass
    compiled(step())
    assert not caplog.records, "what JAX logs for these is shown nowhere"
