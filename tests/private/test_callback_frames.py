"""The private names of JAX that tell callbacks of compiled programs.

A failure here means that a new JAX has moved one. Change `perfsuite/measure/private/callback_frames.py`.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from perfsuite.measure.private.jax_stack import outside_callbacks

X = jnp.ones(3)
SHAPE = jax.ShapeDtypeStruct(X.shape, X.dtype)


def debug(function, x, **options):
    jax.debug.callback(function, x, **options)
    return x


def ignored(value):
    pass


WAYS = {
    "pure_callback": lambda function, x: jax.pure_callback(function, SHAPE, x),
    "io_callback": lambda function, x: io_callback(function, SHAPE, x),
    "ordered io_callback": lambda function, x: io_callback(function, SHAPE, x, ordered=True),
    "debug.callback": debug,
    "ordered debug.callback": lambda function, x: debug(function, x, ordered=True),
    "buffer_callback": lambda function, x: buffer_callback(lambda context, out, x: ignored(function(x)), SHAPE)(x),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_profile_hears_the_same_whether_a_callback_does_much_or_little(way):
    def much(x):
        for _ in range(100):
            len("")
        return np.asarray(x)

    def heard(function):
        jitted, events = jax.jit(lambda x: WAYS[way](function, x)), []
        for _ in range(3):
            jax.block_until_ready(jitted(X))
        before = sys.getprofile()
        sys.setprofile(outside_callbacks(lambda frame, event, argument: events.append(event)))
        try:
            outputs = jitted(X)
        finally:
            sys.setprofile(before)
        jax.block_until_ready(outputs)
        jax.effects_barrier()
        return len(events)

    assert heard(much) == heard(np.asarray)
