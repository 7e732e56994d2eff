"""The message of a recompilation: what is listed, and what to do."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.compiling import refusal, total

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError

HERE = os.path.relpath(__file__)


@pytest.fixture(autouse=True)
def watching():
    """Remember what compiles, as the plugin does for the session."""
    with compiles.observe():
        yield


def test_many_differences_are_cut_short_and_the_same_one_of_many_leaves_is_one_line():
    step = jax.jit(lambda tree, x: total(tree) + x)
    trees = [[jnp.ones(size + place) for place in range(20)] for size in (30, 60)] + [[jnp.ones(3)] * 20]
    step(trees[0], 1.0)
    error = refusal(step, trees[1], 1.0)
    assert len(error.changes) == 20
    assert len(str(error).splitlines()) == 10
    step([jnp.ones(4)] * 20, 1.0)
    error = refusal(step, trees[2], jnp.ones(2))
    assert "\n  20 leaves of args[0]: shape was (4,), is (3,)\n  args[1]: " in str(error)


CONFIGURATIONS = [
    ("jax_numpy_dtype_promotion", "strict"),
    ("jax_debug_key_reuse", True),
    ("jax_debug_nans", True),
    ("jax_check_tracer_leaks", True),
    ("jax_enable_x64", True),
    ("jax_transfer_guard", "log"),
]


@pytest.mark.parametrize(("option", "value"), CONFIGURATIONS)
@pytest.mark.parametrize("transform", [lambda fn: fn, jax.grad], ids=["alone", "grad"])
def test_messages_are_whole_in_every_configuration(option, value, transform):
    """Describing a call runs no operation of JAX's, so no setting can make it fail."""
    step = transform(jax.jit(lambda x, rate: (x * 2).sum()))
    numbers, key = jnp.ones(3), jax.random.key(0)
    changed = [(numbers, 1), (numbers, 0.5), (jnp.ones(4), key), (jnp.ones((2, 2)), None), (numbers, jnp.int8(1))]
    before = jax.config.values[option]
    jax.config.update(option, value)
    try:
        for args in changed:
            with pytest.raises(RecompilationError) as raised, compiles.forbid():
                step(*args)
            assert "could not describe" not in str(raised.value)
            step(*args)
    finally:
        jax.config.update(option, before)


def test_every_operation_that_runs_by_itself_is_named_under_the_function_that_leads_to_it():
    jax.clear_caches()
    start = np.ones(13, np.float32)

    def leapfrog(position):
        return optax.tree.add(position, jnp.sin(position))

    def hmc_step(position):
        return leapfrog(position) * jnp.float32(2)

    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        hmc_step(start)
    lines = str(raised.value).splitlines()
    assert lines[0].endswith("eager operations ran outside any jitted function and were compiled, each for its shapes")
    assert lines[1].startswith("  in `leapfrog` at ")
    assert "`sin`, `add`" in lines[1]
    assert lines[2].startswith("  in `hmc_step` at ")
    assert "`multiply`" in lines[2]


def test_a_loop_of_an_installed_library_is_named_under_the_users_line_too():
    source = "def solve(x):\n    return jax.lax.while_loop(lambda y: y < 3, lambda y: y + 1, x)\n"
    library = {"jax": jax, "__name__": "solver"}
    exec(compile(source, "/usr/lib/site-packages/solver/loop.py", "exec"), library)
    start = np.float32(1)

    def simulate(x):
        return library["solve"](x)

    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        simulate(start)
    message = str(raised.value)
    assert f"at {HERE}:" in message
    assert "(in `while_loop`, solver/loop.py:2)" in message
    assert "put the call of solver in `simulate` inside jax.jit" in message
