"""What an error leaves in JAX's caches is found and removed. A test that fails here names what JAX has moved."""

import sys

import jax
import jax.numpy as jnp
import pytest

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.private import error_repairs
from perfsuite.measure.private.capabilities import REPAIRS
from tests.support.private_names import without

X = jnp.ones(3)


@pytest.mark.parametrize("transform", [lambda fn: fn, jax.grad], ids=["alone", "grad"])
def test_what_an_error_leaves_in_jaxs_caches_is_found_and_removed(transform):
    found = []

    def step(x):
        if not found:
            found.extend(error_repairs.repairs(sys._getframe()))
            raise ValueError("once")
        return (x * 2).sum()

    call = transform(jax.jit(step))
    with pytest.raises(ValueError, match="once"):
        call(X)
    assert len(found) == 2, "JAX has other names for the frames of a call or of a trace"
    for repair in found:
        repair()
    call(X)
    with compiles.count() as counted:
        transform(jax.jit(step))(X)
    assert counted.traces == 0, "the trace that failed is still in JAX's cache"


@pytest.mark.parametrize("transform", [lambda fn: fn, jax.grad], ids=["alone", "grad"])
def test_where_jax_has_moved_what_a_repair_needs_the_error_is_the_same(compile_counter, transform):
    step = jax.jit(lambda x: (x * 3).sum())
    with without(REPAIRS), pytest.raises(RecompilationError, match="was traced"), compile_counter.forbid():
        transform(step)(X)
