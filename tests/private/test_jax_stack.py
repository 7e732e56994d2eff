"""The private names of JAX that perfsuite uses are still where they were.

A failure here means that a new JAX has moved one: `perfsuite/measure/private/jax_stack.py` is the file to change.
"""

import functools
import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from perfsuite.measure.compiles import callsite
from perfsuite.measure.private import jax_stack

STARTS = "/jax/core/compile/"
X = jnp.ones(3)


@pytest.fixture
def seen():
    """What the stack says at the start of each stage of a compile."""
    found = []

    def listener(event, value, **kwargs):
        if event.startswith(STARTS):
            found.append(callsite.on_stack(sys._getframe(1)))

    jax.monitoring.register_scalar_listener(listener)
    yield found
    jax.monitoring.unregister_scalar_listener(listener)


@pytest.mark.parametrize("jit", [jax.jit, nnx.jit])
def test_the_stack_says_which_function_compiles_and_what_is_static(seen, jit):
    def step(x, n):
        return x * n

    jit(step, static_argnums=1)(X, 2)
    assert callsite.code_of(seen[0].function) == callsite.code_of(step), "cache_miss has no `fun` any more"
    assert seen[0].statics == callsite.Statics(argnums=(1,), argnames=("n",)), "cache_miss has no `jit_info` any more"


def test_filter_jit_is_seen_through(seen):
    def step(x):
        return x * 2

    eqx.filter_jit(step)(X)
    assert seen[0].function is step
    assert seen[0].statics == callsite.Statics(all=True)


@pytest.mark.parametrize("jit", [jax.jit, nnx.jit])
def test_what_a_wrapper_was_given_by_functools_is_not_its_own(jit):
    step = jit(lambda x: x * 2)

    @functools.wraps(step)
    def zeros(n):
        return step(jnp.zeros(n))

    class Callable:
        def __call__(self, n):
            return zeros(n)

    wrappers = [zeros, types.MethodType(zeros, X), functools.partial(step)]
    wrappers += [functools.update_wrapper(each, step) for each in (Callable(), functools.partial(zeros))]
    for wrapper in wrappers:
        assert jax_stack.static_arguments(wrapper) is None
        assert jax_stack.jit_options(wrapper) == {}


def test_methods_and_transformations_have_the_arguments_of_the_jitted_function():
    class Step:
        @functools.partial(jax.jit, static_argnums=0)
        def run(self, x):
            return (x * 2).sum()

    for fn in (Step().run, jax.grad(Step.run), jax.vmap(Step.run)):
        assert jax_stack.static_arguments(fn) == ((0,), ("self",))


def profiled(run, ask):
    """What `ask` says of every Python frame that `run` enters."""
    found = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: found.append(ask(frame)) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("wait", [float, jax.device_get, jax.block_until_ready, lambda _: jax.effects_barrier()])
def test_what_waits_for_the_device_is_known_by_name(wait):
    fresh = jax.jit(lambda x: x + 1)(jnp.float32(1))  # an array that was read keeps its value
    found = profiled(lambda: wait(fresh), jax_stack.waits_for_device)
    assert any(found), "a function of JAX's that waits is named otherwise"
