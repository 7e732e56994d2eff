"""`measure.runtime.call_transfers`: the transfers of one warm call."""

import os

import jax
import jax.numpy as jnp
import numpy as np

from perfsuite.measure.call import call
from perfsuite.measure.runtime.call_transfers import transfers_of

HERE = os.path.relpath(__file__)
X = jnp.arange(4.0)
ONE = jnp.float32(1)
HOST = np.ones(4, np.float32)


@jax.jit
def step(state, batch, rate=1.0):
    return jax.tree.map(lambda leaf: leaf + batch.sum() * rate, state)


def noisy(state, batch):
    state = step(state, batch)
    loss = state.sum()
    if loss > ONE:
        pass
    return state, loss


def test_the_transfers_of_a_call():
    counted = transfers_of(call(noisy, X, HOST, carry=1))
    assert (counted.host_to_device, counted.device_to_host, counted.callbacks, counted.explicit) == (1, 1, 0, 0)
    assert counted.total == 2
    to_device, to_host, back, explicit = counted.metrics("noisy")
    assert (to_device.name, to_device.value, to_device.kind) == ("noisy host to device transfers", 1, "count")
    assert to_device.detail == {"float32[4]: `step` was called with a NumPy array at args[1]": 1}
    assert to_host.places == {
        "bool[]: bool(x), as in `if x:` or `while x < y:`": f"{HERE}:{noisy.__code__.co_firstlineno + 3}"
    }
    assert (back.value, back.detail, explicit.value) == (0, None, 0)


def test_a_quiet_call_has_none():
    counted = transfers_of(call(step, X, X, ONE, carry=1))
    assert (counted.total, counted.explicit, counted.in_words()) == (0, 0, "")


def test_counting_the_transfers_of_a_call_moves_it_on():
    donating = jax.jit(lambda state: state + 1, donate_argnums=0)
    made = call(donating, jnp.zeros(3), carry=1)
    transfers_of(made)
    assert not made.args[0].is_deleted()
