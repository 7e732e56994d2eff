"""The private names of JAX that tell callbacks of compiled programs.

A failure here means that a new JAX has moved one. Change `perfsuite/measure/private/callback_frames.py`.
"""

import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from perfsuite.measure.private.callback_frames import outside_callbacks, runs_callback

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
def test_a_callback_runs_in_a_frame_that_is_known(way):
    known = []

    def called(x):
        known.append(any(runs_callback(frame) for frame, _ in traceback.walk_stack(sys._getframe())))
        return np.asarray(x)

    jax.block_until_ready(jax.jit(lambda x: WAYS[way](called, x))(X))
    jax.effects_barrier()
    assert known == [True], "the function that JAX's C++ calls for a callback has another name"


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


def test_what_runs_after_a_callback_is_heard_again():
    names = []

    def inside():
        pass

    def after():
        pass

    # JAX's own frame by its names: called by hand, it certainly runs in this thread.
    known = {"__name__": "jax._src.callback", "inside": inside}
    exec("def _wrapped_callback(fails):\n    inside()\n    if fails: raise KeyError", known)
    before = sys.getprofile()
    sys.setprofile(
        outside_callbacks(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    )
    try:
        known["_wrapped_callback"](False)
        after()
        try:
            known["_wrapped_callback"](True)
        except KeyError:
            after()
    finally:
        sys.setprofile(before)
    assert names == ["after", "after"]
