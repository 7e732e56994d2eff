"""orbax: what a save moves and leaves behind, whether training waits for it, and the program of a restored state."""

import itertools

import jax
import jax.numpy as jnp
import optax
import pytest

from perfsuite import Budget, RecompilationError, call

ocp = pytest.importorskip("orbax.checkpoint", reason="the project that is tried: pip install orbax-checkpoint")

ADAM = optax.adam(1e-3)
X = jnp.ones((8, 16))


def step(state, x):
    params, opt_state = state
    grads = jax.grad(lambda params: ((x @ params["w"] + params["b"]) ** 2).mean())(params)
    updates, opt_state = ADAM.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def new_state():
    params = {"w": jnp.ones((16, 4)), "b": jnp.zeros(4)}
    return params, ADAM.init(params)


def restored(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(folder, jax.tree.map(ocp.utils.to_shape_dtype_struct, state))


def test_the_state_that_is_restored_is_another_program(perf, tmp_path):
    """A new state is uncommitted. orbax 0.12.8 puts what it restores on a device, in `serialization.py:334`."""
    warm = perf.warm(jax.jit(step), over=[(new_state(), X)])
    with (
        pytest.raises(RecompilationError, match=r"7 leaves of args\[0\]: was uncommitted, is committed"),
        perf.no_compiles(),
    ):
        warm(restored(tmp_path / "state", new_state()), X)


def saving(checkpointer, folder):
    numbers = itertools.count()

    def save(state):
        checkpointer.save(folder / str(next(numbers)), state)
        checkpointer.wait_until_finished()

    return save


def test_a_save_leaves_no_array_behind(perf, tmp_path):
    with ocp.StandardCheckpointer() as checkpointer:
        save = saving(checkpointer, tmp_path)
        perf.memory(call(save, new_state()), steps=9, budget=Budget(leaked_arrays=0))
        perf.dispatches(call(save, new_state()), budget=Budget(dispatches=0))


def test_what_an_import_costs(perf):
    perf.imports("orbax.checkpoint", budget=Budget(started_backends=0))
