"""The ways to jit a function that every promise about compiles is tested for."""

import equinox as eqx
import jax
import pytest
from flax import nnx


def plain(fn):
    """A plain function that calls a jitted one, as most training steps do."""
    jitted = jax.jit(fn)

    def calls_jitted(*args, **kwargs):
        return jitted(*args, **kwargs)

    return calls_jitted


JITS = {"jax.jit": jax.jit, "filter_jit": eqx.filter_jit, "nnx.jit": nnx.jit, "plain function": plain}

each_jit = pytest.mark.parametrize("jit", JITS.values(), ids=JITS.keys())
