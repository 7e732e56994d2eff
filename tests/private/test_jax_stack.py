"""The private names of JAX that perfsuite uses are still where they were.

A failure here means that a new JAX has moved one: `perfsuite/measure/private/jax_stack.py` is the file to change.
"""

import functools
import os
import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from perfsuite.measure.compiles import callsite
from perfsuite.measure.private import jax_stack, slow_path

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


def test_jax_tells_when_each_stage_starts(seen):
    jax.jit(lambda x: x + 1)(X)
    assert len(seen) == 3, "jax.monitoring no longer sends a scalar event at the start of a stage"


@pytest.mark.parametrize("jit", [jax.jit, nnx.jit])
def test_the_stack_says_which_function_compiles_and_what_is_static(seen, jit):
    def step(x, n):
        return x * n

    jit(step, static_argnums=1)(X, 2)
    assert callsite.code_of(seen[0].function) == callsite.code_of(step), "cache_miss has no `fun` any more"
    assert seen[0].statics == callsite.Statics(argnums=(1,), argnames=("n",)), "cache_miss has no `jit_info` any more"


def test_the_stack_says_it_ahead_of_time_too(seen):
    def step(x):
        return x * 2

    jax.jit(step).lower(X)
    assert seen[0].function is step, "jit_lower has no `jit_func` any more"
    assert seen[0].args == (X,)


def test_filter_jit_is_seen_through(seen):
    def step(x):
        return x * 2

    eqx.filter_jit(step)(X)
    assert seen[0].function is step
    assert seen[0].statics == callsite.Statics(all=True)


def test_a_jitted_function_says_what_is_static():
    step = jax.jit(lambda x, n: x, static_argnames="n")
    assert jax_stack.static_arguments(step) == ((1,), ("n",)), "jitted functions have no `_jit_info` any more"
    assert jax_stack.static_arguments(nnx.jit(lambda x: x)) == ((), ())
    assert jax_stack.static_arguments(lambda x: x) is None


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


def test_jax_defines_its_operations_in_its_own_modules(seen):
    jax.clear_caches()
    jnp.zeros((3, 5, 7))
    assert [site.eager for site in seen] == [True] * len(seen)
    assert seen


@pytest.mark.parametrize("how", ["jitted", "ahead of time"])
def test_the_slow_path_is_seen_with_its_function_and_reason(how):
    def step(x):
        jax.debug.callback(lambda y: None, x)
        return x

    called = jax.jit(step) if how == "jitted" else jax.jit(step).lower(X).compile()
    called(X)
    found = []

    def profile(frame, event, argument):
        if event == "return" and slow_path.misses_fast_path(frame):
            found.append((slow_path.missed_function(frame), slow_path.why_missed(frame, argument)))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        called(X)
    finally:
        sys.setprofile(before)
    assert len(found) == 1, "cache_miss, or stages.Compiled.call, is called otherwise"
    ((function, reason),) = found
    if how == "jitted":
        assert function is step, "cache_miss has no `fun` any more"
        assert "DebugEffect" in reason, "cache_miss has no `jaxpr` with effects any more"
    else:
        assert "step" in function, "an executable has no `unsafe_call.name` any more"


def test_a_function_that_has_no_truth_value_is_still_the_one_that_missed():
    class Step:
        def __call__(self, x):
            return x

        def __bool__(self):
            raise ValueError("ambiguous")

    step = Step()
    jitted = jax.jit(step)
    found = profiled(
        lambda: jitted(X), lambda frame: slow_path.misses_fast_path(frame) and slow_path.missed_function(frame)
    )
    assert any(each is step for each in found)


def test_an_argument_that_jax_moves_in_each_call_is_seen():
    mesh = jax.make_mesh((2,), ("a",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    step = jax.jit(lambda x: x, in_shardings=jax.sharding.NamedSharding(mesh, jax.P("a")))
    x = jnp.ones(4)
    step(x)
    found = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: found.append(slow_path.places_argument(frame)))
    try:
        step(x)
    finally:
        sys.setprofile(before)
    assert any(found), "cc_shard_arg is named otherwise"


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


def test_the_frame_that_shortens_tracebacks_says_what_it_calls():
    found = profiled(lambda: jax.jit(lambda x: x * 5)(X), jax_stack.behind_filter)
    assert any(name.endswith("cache_miss") for name in found), "jax._src.traceback_util has no `fun` any more"
    assert jax_stack.behind_filter(sys._getframe()) == ""


@pytest.mark.parametrize("wait", [float, jax.device_get, jax.block_until_ready, lambda _: jax.effects_barrier()])
def test_what_waits_for_the_device_is_known_by_name(wait):
    fresh = jax.jit(lambda x: x + 1)(jnp.float32(1))  # an array that was read keeps its value
    found = profiled(lambda: wait(fresh), jax_stack.waits_for_device)
    assert any(found), "a function of JAX's that waits is named otherwise"


def test_without_any_of_the_names_messages_say_less_and_nothing_fails(seen, monkeypatch):
    monkeypatch.setattr(jax_stack, "compiling_function", lambda frames: None)
    jax.jit(lambda x: x + 1)(X)
    assert seen[0].function is None
    assert seen[0].named == {"args": (X,), "kwargs": {}}
    assert seen[0].location.startswith(f"{os.path.relpath(__file__)}:")
