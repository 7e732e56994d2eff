"""Instructions of one step, native code included: three ways of the framework tax, and `tree_at`.

Two layers only, because each step is traced and compiled under Valgrind, in one process for all. With ten layers two
steps took 74 s of the processor (jax 0.10.2).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from perfsuite import call
from perfsuite.workloads.training.framework_tax import FLOOR, VARIANTS, random_weights


@pytest.mark.parametrize("variant", [FLOOR, "filter_jit", "nnx.jit"])
def test_instructions_of_a_step(perf, variant):
    made = VARIANTS[variant](random_weights(2))
    perf.instructions(call(made.step, *made.args, carry=made.carry), name=variant)


def test_instructions_of_tree_at(perf):
    model = eqx.nn.MLP(4, 4, 4, 8, key=jax.random.key(0))
    moved = call(lambda model: eqx.tree_at(lambda each: each.layers[0].bias, model, jnp.ones(4)), model)
    perf.instructions(moved, name="tree_at")
