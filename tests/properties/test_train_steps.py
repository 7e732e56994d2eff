"""Every train step computes what the plainest one does, whatever the model is made of."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given, settings

from perfsuite.workloads.training import (
    Optimizer,
    TrainState,
    make_filter_train_step,
    make_flat_train_step,
    make_list_train_step,
    make_train_step,
    make_train_step_with_partition,
)
from perfsuite.workloads.training.cached_jit import cached_filter_jit

from .strategies import assert_same, copied, shares_arrays, trees

pytestmark = pytest.mark.usefixtures("quick_to_compile")

TX = optax.adamw(1e-2)
BATCH = jnp.arange(1.0, 3.0)
UPDATES = 3


def loss_fn(model, batch, key):
    """Reads every array, and lets static leaves have their say."""
    arrays = [leaf for leaf in jax.tree.leaves(model) if eqx.is_array(leaf)]
    factor = 1 + sum(isinstance(leaf, float) for leaf in jax.tree.leaves(model))
    squares = [jnp.sum(jnp.square(jnp.abs(leaf)).astype(jnp.float32)) for leaf in arrays if leaf.dtype != bool]
    # The key's own bits: drawing from it takes a third of the time to compile.
    noise = jax.random.key_data(key).astype(jnp.float32)
    return factor * sum(squares, jnp.sum(batch * noise)), {"noise": noise, "factor": jnp.asarray(factor)}


def updated(step, carried):
    """What a step carries after `UPDATES` calls, and what else it gave each time."""
    outs = []
    for seed in range(UPDATES):
        *carried, out = step(*carried, BATCH, jax.random.key(seed))
        outs.append(out)
    return carried, outs


def by_filter_jit(model, donate, jit=eqx.filter_jit):
    step = make_filter_train_step(loss_fn, TX, donate=donate, jit=jit)
    (model, opt_state), outs = updated(step, (model, Optimizer.create(TX, model).opt_state))
    return model, opt_state, outs


def by_optimizer(model, donate, jit=eqx.filter_jit):
    step = make_train_step(loss_fn, donate=donate, jit=jit)
    (model, optimizer), outs = updated(step, (model, Optimizer.create(TX, model)))
    return model, optimizer.opt_state, outs


def by_partition(model, donate):
    made = make_train_step_with_partition(loss_fn, TX, model, donate=donate)
    (params, opt_state), outs = updated(made.step, (made.params, made.opt_state))
    return eqx.combine(params, made.static), opt_state, outs


def by_flat_state(model, donate):
    (state,), outs = updated(make_flat_train_step(loss_fn, TX, donate=donate), (TrainState.create(TX, model),))
    return state.model, state.opt_state, outs


def by_list(model, donate):
    made = make_list_train_step(loss_fn, TX, model, donate=donate)
    (arrays,), outs = updated(made.step, (made.arrays,))
    return *made.structure.join(arrays), outs


OTHERS = {
    "cached_filter_jit": lambda model, donate: by_filter_jit(model, donate, cached_filter_jit),
    "optimizer": by_optimizer,
    "optimizer, cached_filter_jit": lambda model, donate: by_optimizer(model, donate, cached_filter_jit),
    "partition": by_partition,
    "flat": by_flat_state,
    "list": by_list,
}


@settings(max_examples=5)
@given(trees(max_leaves=6).map(lambda tree: [tree]))  # Optax takes a bare `None` for parameters that were forgotten
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_every_step_gives_the_same_model_optimizer_state_and_loss(model):
    # Seven programs are compiled for each model. A buffer that is there twice cannot be donated twice.
    donate = not shares_arrays(model)
    expected = by_filter_jit(copied(model), donate)
    for update in OTHERS.values():
        assert_same(update(copied(model), donate), expected)
