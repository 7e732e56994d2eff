"""Every variant of the framework tax does what the floor does, whatever its weights and its batches are."""

import hypothesis.extra.numpy as arrays
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsuite import call
from perfsuite.workloads.training.framework_tax import FLOOR, VARIANTS, WIDTH

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NUMBERS = st.floats(-2, 2, width=32)
LAYERS = 2


def values(*shape):
    return arrays.arrays(np.float32, shape, elements=NUMBERS)


weights = st.lists(st.tuples(values(WIDTH, WIDTH), values(WIDTH)), min_size=LAYERS, max_size=LAYERS)
batches = st.lists(values(WIDTH), min_size=1, max_size=3)


def updated(name, start, batches):
    """The losses of an update for each batch, and the arrays after them."""
    made = VARIANTS[name]([(jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in start])
    step, losses = call(made.step, *made.args, carry=made.carry), []
    for batch in batches:
        step.args = (*step.args[:-1], jnp.asarray(batch))
        outputs = step.run()
        losses.append(np.asarray(outputs[-1] if made.carry else outputs))
    return losses, [np.asarray(array) for array in made.arrays(step.args)]


# `nnx.cached_partial` compiles for each of its models: 0.2 s an example.
@settings(max_examples=10)
@given(weights, batches)
def test_every_variant_gives_the_arrays_and_losses_of_the_floor(start, batches):
    expected_losses, expected = updated(FLOOR, start, batches)
    for name in VARIANTS:
        losses, found = updated(name, start, batches)
        np.testing.assert_array_equal(losses, expected_losses)
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
