"""`measure.runtime.memory`: leaks over steps, and who holds them."""

import collections
import math
import mmap
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.metric import Interval
from perfsuite.measure.runtime import memory as memory_module
from perfsuite.measure.runtime.memory import FEWEST_STEPS, WARM_STEPS, memory_of

STEPS = 12


@jax.jit
def forward(state):
    return state + 1, state.sum()


@jax.jit
def plus_one(state):
    return jax.tree.map(lambda leaf: leaf + 1, state)


donating = jax.jit(plus_one, donate_argnums=0)


def state():
    return plus_one({"kernel": jnp.zeros((8, 8)), "bias": jnp.zeros(8)})


# Leaks, each planted beside what is like it and is none.


def test_losses_kept_in_a_list_leak_one_array_a_step_and_the_list_is_named():
    losses = []

    def step(state):
        state, loss = forward(state)
        losses.append(loss)
        return state

    found = memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS)
    assert (found.leaked_arrays, found.leaked_bytes) == (1, 4)
    assert len(found.grown) == 1
    kept = WARM_STEPS + STEPS
    assert found.grown[0].startswith("float32[]: 1 more a step (4 bytes each), held by a list of length")
    assert f"a list of length {kept}, `losses` in the closure of" in found.grown[0]
    assert found.live_bytes == 8 * 4 + kept * 4


def test_a_module_global_that_holds_what_leaks_is_named(monkeypatch):
    train = types.ModuleType("train")
    train.history = []
    monkeypatch.setitem(sys.modules, "train", train)

    def step(state):
        state, loss = forward(state)
        train.history.append(loss)
        return state

    found = memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS)
    assert "a list of length 15, module global `train.history`" in found.grown[0]


def test_a_cache_keyed_by_step_leaks_and_its_object_is_named():
    class Trainer:
        def __init__(self):
            self.cache = {}

        def step(self, state):
            self.cache[len(self.cache)] = new = plus_one(state)
            return new

    trainer = Trainer()
    found = memory_of(call(trainer.step, jnp.zeros((4, 4)), carry=1), steps=STEPS)
    assert (found.leaked_arrays, found.leaked_bytes) == (1, 64)
    assert "a dict of length 15, attribute `cache` of" in found.grown[0]


def test_a_cache_that_grows_by_concatenation_leaks_bytes_and_no_arrays():
    def step(cache):
        return jnp.concatenate([cache, jnp.zeros((1, 4))])

    found = memory_of(call(step, jnp.zeros((1, 4)), carry=1), steps=FEWEST_STEPS)
    assert (found.leaked_arrays, found.leaked_bytes) == (0, 16)
    assert found.grown == ("float32[13,4]: it grows with the steps (208 bytes now), carried as args[0]",)


def test_an_array_in_every_other_step_is_a_leak_of_a_half():
    losses = []

    def step(state):
        state, loss = forward(state)
        if int(state[0]) % 2:
            losses.append(loss)
        return state

    found = memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS)
    assert 0 < found.leaked_arrays < 1
    assert found.metrics("step")[0].value == 1


def test_a_donated_carried_state_does_not_leak():
    found = memory_of(call(donating, state(), carry=1), steps=STEPS)
    assert (found.leaked_arrays, found.leaked_bytes, found.grown) == (0, 0, ())
    assert found.live_bytes == (64 + 8) * 4


def test_a_bounded_history_does_not_leak():
    recent: collections.deque = collections.deque(maxlen=5)

    def step(state):
        state, loss = forward(state)
        recent.append(loss)
        return state

    found = memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS)
    assert (found.leaked_arrays, found.leaked_bytes, found.grown) == (0, 0, ())


def test_cycles_that_the_collector_frees_do_not_leak():
    def step(state):
        state, loss = forward(state)
        cycle = [loss]
        cycle.append(cycle)
        return state

    assert memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS).leaked_arrays == 0


def test_arrays_that_were_there_before_are_not_the_calls():
    others = [jnp.zeros(1000) + i for i in range(3)]
    found = memory_of(call(plus_one, jnp.zeros(8), carry=1), steps=FEWEST_STEPS)
    assert found.live_bytes == 32
    assert len(others) == 3


# The process.


def test_memory_of_the_host_that_is_kept_is_growth():
    kept = []

    def step(state):
        kept.append(mmap.mmap(-1, 1 << 20))  # pages of its own: an allocator may have some left, of an earlier test
        kept[-1].write(b"1" * (1 << 20))
        return plus_one(state)

    found = memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS)
    assert found.host_growth.low > 0.5 * (1 << 20)
    assert found.host_growth.low <= found.host_growth_bytes <= found.host_growth.high
    assert found.leaked_arrays == 0


def test_a_step_that_keeps_nothing_has_no_growth_for_certain():
    found = memory_of(call(donating, state(), carry=1), steps=STEPS)
    assert found.host_growth.low < 100_000


def test_a_jit_made_anew_each_step_grows_the_process():
    kept = []

    def step(x):
        kept.append(jax.jit(lambda x: x * 2))  # what JAX's own caches do where the function lives on
        return kept[-1](x)

    found = memory_of(call(step, jnp.zeros(8)), steps=STEPS)
    assert found.host_growth.low > 0


def test_where_the_system_does_not_tell_there_is_no_metric(monkeypatch):
    monkeypatch.setattr(memory_module, "_resident_bytes", lambda: math.nan)
    found = memory_of(call(plus_one, jnp.zeros(8), carry=1), steps=FEWEST_STEPS)
    assert math.isnan(found.host_growth_bytes)
    assert found.host_growth is None
    assert len(found.metrics("step")) == 4


def test_a_system_that_tells_only_the_highest_resident_set_tells_none(monkeypatch):
    def no_such_file(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(memory_module, "open", no_such_file, raising=False)
    assert math.isnan(memory_module._resident_bytes())


def test_the_slope_is_exact_on_a_line_and_a_single_jump_is_none_for_certain():
    assert memory_module._slope([3.0 * i for i in range(12)]) == (3.0, Interval(3.0, 3.0))
    assert memory_module._slope([0.0] * 6 + [1000.0] * 6)[1].low == 0


# Peak.


def test_the_peak_is_that_of_the_live_arrays_where_the_device_has_no_statistics(monkeypatch):
    monkeypatch.setattr(memory_module, "_peak_of_device", lambda: None)
    found = memory_of(call(plus_one, jnp.zeros(8), carry=1), steps=FEWEST_STEPS)
    assert (found.peak_bytes, found.peak_source) == (32, "live arrays")


@pytest.mark.parametrize(("after", "expected"), [(9_000, (9_000, "device")), (5_000, (32, "live arrays"))])
def test_the_peak_of_the_device_counts_only_where_the_steps_raised_it(monkeypatch, after, expected):
    peaks = iter([5_000, after])
    monkeypatch.setattr(memory_module, "_peak_of_device", lambda: next(peaks))
    found = memory_of(call(plus_one, jnp.zeros(8), carry=1), steps=FEWEST_STEPS)
    assert (found.peak_bytes, found.peak_source) == expected


# Use.


@pytest.mark.parametrize("steps", [0, 8, -1, 9.5, True])
def test_too_few_steps_are_refused(steps):
    with pytest.raises(ValueError, match="steps must be an int of 9 or more"):
        memory_of(call(plus_one, jnp.zeros(8)), steps=steps)


def test_a_step_that_raises_leaves_a_call_that_can_go_on():
    def step(state):
        if state["bias"][0] > 5:
            raise ZeroDivisionError
        return donating(state)

    made = call(step, state(), carry=1)
    with pytest.raises(ZeroDivisionError):
        memory_of(made, steps=STEPS)
    assert not made.args[0]["bias"].is_deleted()
