"""`measure.runtime.transfer_causes`: the line that a transfer comes from, also behind a library."""

import functools
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


def test_an_operation_of_any_installed_package_is_named_with_the_users_line():
    library = {"__name__": "sampler"}
    exec(compile("def keep(x):\n    return float(x)\n", "/usr/lib/site-packages/sampler/io.py", "exec"), library)
    x = jnp.ones(()) + 1
    with count_transfers() as counted:
        library["keep"](x)
    assert f"at {HERE}:" in str(counted.events[0])
    assert "(in sampler/io.py:2)" in str(counted.events[0])


class Strategy:
    @functools.partial(jax.jit, static_argnames="self")
    def tell(self, key, population, params):
        return key + population + params["std"]


def test_the_parameter_is_named_where_the_function_has_many():
    """Of a method, `args[0]` is the object: a user who counts from the call's first argument finds another one."""
    strategy, x = Strategy(), jnp.ones(3)
    strategy.tell(x, x, {"std": 1.0})
    with count_transfers() as counted:
        strategy.tell(x, x, {"std": 1.0})
    assert [event.cause for event in counted.events] == [
        "`tell` was called with a Python float at args[3]['std'] (of params)"
    ]


@pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit, nnx.jit])
def test_an_argument_of_the_users_call_is_at_the_users_line_alone(jit):
    with count_transfers() as counted:
        jit(lambda x: x + 1)(HOST)
    assert [event.inside for event in counted.events] == [""]
