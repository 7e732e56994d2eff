"""Every instrument with a step over a mesh of eight devices: sharded, donated, with a sum over the mesh in it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from perfsuite import call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warm import warm
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.runtime.fast_path import fast_path
from perfsuite.measure.runtime.host_calls import host_calls
from perfsuite.measure.runtime.memory import donation_of, memory_of
from perfsuite.measure.runtime.transfers import forbid_transfers, transfers_of
from perfsuite.measure.timing.waits import asynchrony

MESH = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
ROWS = NamedSharding(MESH, PartitionSpec("data"))
WHOLE = NamedSharding(MESH, PartitionSpec())


def state():
    return {"kernel": jax.device_put(jnp.ones((8, 4)), ROWS), "bias": jax.device_put(jnp.ones(4), WHOLE)}


def batch(rows=8):
    return jax.device_put(np.ones((rows, 4), np.float32), ROWS)


def summed(x):
    """The sum over all devices, written out."""
    return jax.lax.psum(x.sum(0), "data")


across = jax.shard_map(summed, mesh=MESH, in_specs=PartitionSpec("data"), out_specs=PartitionSpec())


@functools.partial(jax.jit, donate_argnums=0, out_shardings=({"kernel": ROWS, "bias": WHOLE}, WHOLE))
def step(state, x):
    total = across(x)
    return {"kernel": state["kernel"] + x.mean(), "bias": state["bias"] + total}, total.sum()


@jax.jit
def without(state, x):
    return {"kernel": state["kernel"] + 1, "bias": state["bias"] + 1}


def trained():
    return call(step, state(), batch(), carry=1)


def test_it_is_warm_once_for_a_sharding_and_another_sharding_compiles():
    warmed = warm(step, over=[trained()])
    assert len(warmed.signatures) == 1
    with compiles.forbid():
        now, _ = warmed(state(), batch())
        jax.block_until_ready(warmed(now, batch()))
    other = jax.device_put(np.ones((8, 4), np.float32), WHOLE)
    with (
        pytest.raises(RecompilationError, match=r"args\[1\]: sharding was NamedSharding") as raised,
        compiles.forbid(),
    ):
        warmed(state(), other)
    (change,) = raised.value.changes
    assert "'data'" in change.partition(", is ")[0]
    assert "'data'" not in change.partition(", is ")[2].partition("spec=")[2]


def test_a_state_that_comes_back_with_another_sharding_recompiles_and_is_named():
    @jax.jit
    def drifting(x):
        return jax.lax.with_sharding_constraint(x + 1, WHOLE)

    jax.block_until_ready(drifting(batch()))
    with pytest.raises(RecompilationError, match="drifting"), compiles.forbid():
        drifting(drifting(batch()))


def test_host_calls_and_fast_path_are_those_of_one_call_however_many_devices():
    counted = host_calls(trained())
    assert counted.total == host_calls(trained()).total
    assert fast_path(trained()).misses == 0
    # The batch lies on one device: Python moves it to the mesh in each call.
    on_one = jax.device_put(np.ones((8, 4), np.float32), jax.devices()[0])
    moved = jax.jit(without, in_shardings=({"kernel": ROWS, "bias": WHOLE}, ROWS))
    elsewhere = call(lambda s: moved(s, jax.device_put(on_one, ROWS)), state())
    assert host_calls(elsewhere).total > host_calls(call(moved, state(), batch())).total


def test_transfers_to_a_mesh_are_counted():
    assert transfers_of(trained()).events == ()
    host = np.ones((8, 4), np.float32)
    fed = jax.jit(lambda x: x + 1, in_shardings=ROWS)
    counted = transfers_of(call(fed, host))
    assert len(counted.events) == 1
    with forbid_transfers(explicit=True):
        jax.block_until_ready(step(state_before, batch_before))


state_before, batch_before = state(), batch()


def test_memory_counts_each_devices_part_and_finds_what_leaks():
    made = memory_of(trained(), steps=9)
    assert made.leaked_arrays == 0
    # Kernel and batch lie once over all devices, the bias once on each of the eight.
    assert made.live_bytes == 2 * (8 * 4 * 4) + 8 * (4 * 4)
    kept = []

    def leaking(state, x):
        state, loss = step(state, x)
        kept.append(jax.device_put(x, ROWS, may_alias=False))
        return state, loss

    leaked = memory_of(call(leaking, state(), batch(), carry=1), steps=9)
    assert leaked.leaked_arrays == pytest.approx(1, abs=0.5)
    assert leaked.leaked_bytes == pytest.approx(8 * 4 * 4, rel=0.5)


def test_a_sharded_state_that_is_not_donated_is_named_with_its_bytes_on_all_devices():
    assert donation_of(trained()).undonated == ()

    (lost,) = donation_of(call(jax.jit(lambda x: x + 1), batch(), carry=1)).undonated
    assert (lost.path, lost.bytes) == ("args[0]", 8 * 4 * 4)
    assert "not donated" in lost.reason


def test_a_sharded_step_that_waits_for_its_sum_is_found():
    def waiting(state, x):
        state, loss = step(state, x)
        float(loss)
        return state, loss

    made = asynchrony(call(waiting, state(), jax.device_put(np.ones((8, 4), np.float32), ROWS), carry=1), seconds=1.0)
    assert made.waits is True
    assert "test_sharded_instruments.py" in made.where
