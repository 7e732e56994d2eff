"""`measure.runtime.transfer_causes`: the line that a transfer comes from, also behind a library."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from perfsuite.measure.runtime.transfers import count_transfers

HERE = os.path.relpath(__file__)
HOST = np.ones(4, np.float32)


def test_an_operation_inside_a_library_is_named_with_the_librarys_line_too():
    attention = nnx.MultiHeadAttention(num_heads=1, in_features=2, decode=True, rngs=nnx.Rngs(0))
    attention.init_cache((1, 4, 2))
    token = jnp.ones((1, 1, 2))
    attention(token)  # compiled, so that JAX takes the fast path
    with count_transfers() as counted:
        attention(token)
    line = test_an_operation_inside_a_library_is_named_with_the_librarys_line_too.__code__.co_firstlineno + 6
    assert {event.location for event in counted.events} == {f"{HERE}:{line}"}
    assert {event.inside.rpartition(":")[0] for event in counted.events} == {"flax/nnx/nn/attention.py"}
    assert f"at {HERE}:{line} (in flax/nnx/nn/attention.py:" in str(counted.events[0])
    assert not any("PjitFunction" in event.cause for event in counted.events), "JAX's own, inside of jax.vmap"


@pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit, nnx.jit])
def test_an_argument_of_the_users_call_is_at_the_users_line_alone(jit):
    with count_transfers() as counted:
        jit(lambda x: x + 1)(HOST)
    assert [event.inside for event in counted.events] == [""]
