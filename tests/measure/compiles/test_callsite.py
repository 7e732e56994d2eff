"""A compile is traced back to the user's line and to the call with its arguments."""

import functools
import os

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiling import SHORT, doubling, run_in_thread

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError

HERE = os.path.relpath(__file__)


pytestmark = pytest.mark.usefixtures("watching")


def test_the_users_line_is_named_behind_transformations_and_helpers():
    inner = jax.jit(lambda x: x * 2)
    x, more = jnp.ones((2, 3)), jnp.ones((2, 4))
    mapped = jax.vmap(inner)
    mapped(x)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        mapped(more)
    line = test_the_users_line_is_named_behind_transformations_and_helpers.__code__.co_firstlineno + 6
    assert f" at {HERE}:{line}" in str(raised.value)
    assert raised.value.changes == ("args[0]: shape was (2, 3), is (2, 4)",)


def test_lowering_ahead_of_time_is_explained_with_the_same_paths():
    step = jax.jit(lambda x: x * 2)
    step.lower(jnp.ones(3)).compile()
    after = jnp.ones(4)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        step.lower(after)
    assert raised.value.changes == ("args[0]: shape was (3,), is (4,)",)
    with compiles.count() as counted:
        step.lower(jax.ShapeDtypeStruct((5,), jnp.float32))
    assert counted.events[0].changes == ("args[0]: shape was (3,), is (5,)",)


PATHS = {
    "export": jax.export.export,
    "make_jaxpr": jax.make_jaxpr,
    "eval_shape": lambda fn: lambda *args: jax.eval_shape(fn, *args),
    "linearize": lambda fn: lambda *args: jax.linearize(fn, *args),
    "vjp": lambda fn: lambda *args: jax.vjp(fn, *args),
    "jvp": lambda fn: lambda *args: jax.jvp(fn, args, args),
    "checkpoint": jax.checkpoint,
    "vmap": lambda fn: jax.vmap(fn, in_axes=(None, None), axis_size=2),
}


@pytest.mark.parametrize("way", PATHS)
@pytest.mark.parametrize("place", [0, 1])
def test_an_argument_has_the_path_that_the_user_wrote(way, place):
    """Also where JAX calls the jitted function by one of its own, which takes the user's function or none."""
    called = PATHS[way](jax.jit(lambda x, y: x.sum() * y.sum()))
    with compiles.count():  # who only watches does not hear what jax.checkpoint traces
        called(jnp.ones(2), jnp.ones(3))
    others = [(jnp.ones(4), jnp.ones(3)), (jnp.ones(2), jnp.ones(4))]
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        called(*others[place])
    assert raised.value.changes == (f"args[{place}]: shape was ({2 + place},), is (4,)",)


def test_the_arguments_of_a_method_have_their_names():
    class Layer:
        @functools.partial(jax.jit, static_argnums=0)
        def apply(self, tree, *, scale):
            return tree["kernel"].sum() * scale

    layer = Layer()
    layer.apply({"kernel": jnp.ones(2)}, scale=1.0)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        layer.apply({"kernel": jnp.ones(3)}, scale=1.0)
    assert raised.value.changes == ("tree['kernel']: shape was (2,), is (3,)",)


@pytest.mark.parametrize(("derivative", "size"), [(jax.jacrev, 23), (jax.jacfwd, 29)])
def test_an_operation_of_a_derivative_names_the_function_that_the_user_called(derivative, size):
    x = np.ones(size, np.float32)
    with pytest.raises(RecompilationError), compiles.forbid() as watch:
        derivative(lambda x: x)(x)
    assert {cause.through for cause in watch.eager} == {derivative.__name__}


def in_a_checkout(path):
    """The module `diffrax._solve` at a path, whose `solve` runs an operation outside jit."""
    source = "import jax.numpy as jnp\ndef solve(x):\n    return jnp.cbrt(x) * 3\n"
    names = {"__name__": "diffrax._solve"}
    exec(compile(source, path, "exec"), names)
    return names["solve"]


@pytest.mark.parametrize(
    ("path", "named"),
    [("/elsewhere/diffrax/_solve.py", "/elsewhere/diffrax/_solve.py:3"), ("/x/site-packages/diffrax/_solve.py", HERE)],
)
def test_a_project_built_on_jax_is_the_users_own_where_it_is_no_installed_package(path, named):
    solve = in_a_checkout(path)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        solve(np.ones(len(path), np.float32))
    assert f" at {named}" in str(raised.value)


def test_a_thread_whose_target_is_the_jitted_function_has_no_line():
    step = doubling()
    with compiles.count() as counted:
        run_in_thread(step, SHORT)
    assert counted.compiles == 1
    assert counted.events[0].location == "a thread that runs no code but JAX's"


def test_an_eager_operation_inside_a_users_function_names_the_line_of_the_function():
    def build():
        return jnp.full((2, 3, 7), 1.5)

    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        build()
    assert f"{HERE}:{build.__code__.co_firstlineno + 1}" in str(raised.value)


def test_what_an_installed_package_compiles_is_located_at_the_users_line():
    source = "def solve(x):\n    return jax.lax.while_loop(lambda y: y < 3, lambda y: y + 1, x)\n"
    library = {"jax": jax, "__name__": "solver"}
    exec(compile(source, "/usr/lib/site-packages/solver/loop.py", "exec"), library)
    with compiles.count() as counted:
        library["solve"](np.float32(1))
    line = test_what_an_installed_package_compiles_is_located_at_the_users_line.__code__.co_firstlineno + 5
    assert {event.location for event in counted.events} == {f"{HERE}:{line}"}
