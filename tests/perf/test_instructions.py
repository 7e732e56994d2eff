"""Instructions of one step, native code included: the ways of the framework tax with 62 arrays, `tree_at`, and 602 leaves.

Few arrays, because each is traced and compiled under Valgrind. All in one process.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from perfsuite import call
from perfsuite.workloads.training.framework_tax import FLOOR, VARIANTS, random_weights

LAYERS = 10


@pytest.mark.parametrize("variant", VARIANTS)
def test_instructions_of_a_step(perf, variant):
    made = VARIANTS[variant](random_weights(LAYERS))
    perf.instructions(call(made.step, *made.args, carry=made.carry), name=variant)


def test_dispatch_of_602_leaves(perf):
    made = VARIANTS[FLOOR](random_weights(100))
    perf.instructions(call(made.step, *made.args, carry=made.carry), name="dispatch")


def test_tree_at(perf):
    model = eqx.nn.MLP(4, 4, 4, 8, key=jax.random.key(0))
    perf.instructions(
        call(lambda model: eqx.tree_at(lambda each: each.layers[0].bias, model, jnp.ones(4)), model), name="tree_at"
    )
