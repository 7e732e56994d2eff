"""The message of a recompilation: what is listed, and what to do."""

import jax
import jax.numpy as jnp
import pytest
from support.compiling import LONG, SHORT, refusal, total

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError


@pytest.fixture(autouse=True)
def watching():
    """Remember what compiles, as the plugin does for the session."""
    with compiles.observe():
        yield


def test_many_differences_are_cut_short():
    step = jax.jit(lambda tree: total(tree))
    before, after = ([jnp.ones(size) for _ in range(20)] for size in (3, 4))
    step(before)
    error = refusal(step, after)
    assert len(error.changes) == 20
    assert "  and 14 more\n" in str(error)
    assert len(str(error).splitlines()) == 10


def test_nothing_found_is_said_with_what_was_compared():
    step = jax.jit(lambda x: x * 2)
    x = jnp.ones(3)
    step(x)
    step.clear_cache()
    error = refusal(step, x)
    assert error.changes == ()
    assert "nothing differs from one of 1 known signature, in tree structure, shapes, dtypes, weak types" in str(error)
    assert "jax.clear_caches()" in str(error)


@pytest.mark.parametrize(
    ("operation", "name", "through"),
    [
        (lambda x: jnp.zeros((x.size, 3)), "broadcast_in_dim", " (in `zeros`)"),
        (lambda x: jnp.linalg.norm(x), "norm", ""),
        (lambda x: x[::2], "slice", " (in `__getitem__`)"),
        (lambda x: x.astype(jnp.float16), "convert_element_type", " (in `_astype`)"),
    ],
)
def test_an_eager_operation_is_called_one_and_inputs_are_to_be_built_before(operation, name, through):
    jax.clear_caches()
    operation(SHORT)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        operation(LONG)
    message = str(raised.value)
    assert raised.value.function == name
    assert f"{through}\n  an eager operation: it runs outside any jitted function" in message
    assert "Build inputs before this context, or inside its .building_inputs()" in message
