"""`measure.runtime.call_transfers`: the transfers of one warm call."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError
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


@pytest.mark.parametrize("runs_before", range(2))
def test_what_moves_every_second_time_counts(runs_before):
    runs = itertools.count(runs_before)

    def logs_every_second_time(state):
        state = step(state, X, ONE)
        if next(runs) % 2:
            float(state[0])
        return state

    step(X, X, ONE)[0].block_until_ready()
    assert transfers_of(call(logs_every_second_time, X, carry=1)).device_to_host == 1


def test_what_moves_once_does_not_count():
    runs = itertools.count()

    def logs_once(state):
        state = step(state, X, ONE)
        if next(runs) == 1:
            float(state[0])
        return state

    assert transfers_of(call(logs_once, X)).total == 0


def test_another_number_of_transfers_each_time_is_an_error():
    runs = itertools.count()

    def logs_more(state):
        for _ in range(next(runs)):
            float(step(state, X, ONE)[0])
        return state

    with pytest.raises(MeasurementError, match=r"logs_more: the transfers differ from run to run \(\d+, \d+, \d+\)"):
        transfers_of(call(logs_more, X))
