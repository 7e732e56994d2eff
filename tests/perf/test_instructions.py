"""Instructions of a step, native code included: the ways of the framework tax, train steps, a dispatch, `tree_at`.

CI runs this file in a step of its own. All tests share one process under Valgrind, which also compiles: hence two
layers. With ten layers two steps took 74 s of the processor (jax 0.10.2).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from perfsuite import call
from perfsuite.workloads.training.framework_tax import VARIANTS, leaves_of, random_weights

from .test_framework_tax import LAYERS


@pytest.mark.parametrize("variant", VARIANTS)
def test_instructions_of_a_step(perf, variant):
    made = VARIANTS[variant](random_weights(2))
    perf.instructions(call(made.step, *made.args, carry=made.carry), name=variant)


@pytest.mark.parametrize("variant", ["filter_jit", "optimizer", "cached_filter_jit", "partition", "flat", "list"])
def test_instructions_of_a_train_step(perf, make_steps, variant):
    steps = make_steps("tiny", trivial=True, num_layers=1)
    perf.instructions(steps.cold_call(variant), name=variant)


def test_instructions_of_a_dispatch(perf):
    arrays = [jnp.ones(4) for _ in range(leaves_of(LAYERS))]
    perf.instructions(call(jax.jit(lambda arrays: arrays), arrays), name="dispatch")


def test_instructions_of_tree_at(perf):
    model = eqx.nn.MLP(4, 4, 4, 8, key=jax.random.key(0))
    moved = call(lambda model: eqx.tree_at(lambda each: each.layers[0].bias, model, jnp.ones(4)), model)
    perf.instructions(moved, name="tree_at")
