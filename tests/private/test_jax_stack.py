"""`measure.private.jax_stack`. A test that fails under a new JAX names what JAX has moved."""

import functools
import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from perfsuite.measure.compiles import callsite, compiles
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.private import jax_stack
from perfsuite.measure.private.jax_stack import behind_bound, calls_the_same, is_jitted, without_chance
from perfsuite.measure.private.libraries import WAITING
from perfsuite.measure.private.names import local_variables

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


def profiled(run, profile):
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        return run()
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("wait", [float, jax.device_get, jax.block_until_ready, lambda _: jax.effects_barrier()])
def test_what_waits_for_the_device_is_known_by_name(wait):
    fresh = jax.jit(lambda x: x + 1)(jnp.float32(1))  # an array that was read keeps its value
    waits = []
    profiled(lambda: wait(fresh), lambda frame, *_: waits.append(any(each.runs(frame) for each in WAITING)))
    assert any(waits), "a function of JAX's that waits is named otherwise"


class Plain:
    @functools.partial(jax.jit, static_argnums=(0, 2))
    def top(self, x, n):
        return x[:n]

    def python(self, x):
        return x


class Model(eqx.Module):
    weight: jax.Array

    @eqx.filter_jit
    def __call__(self, x):
        return self.weight + x

    @jax.jit
    def scaled(self, x):
        return self.weight * x

    def python(self, x):
        return x


class Net(nnx.Module):
    @nnx.jit
    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    ("owner", "name"), [(Plain(), "top"), (Model(X), "__call__"), (Model(X), "scaled"), (Net(), "__call__")]
)
def test_a_jitted_method_gets_its_object_first(owner, name):
    function, args, kwargs = behind_bound(getattr(owner, name), (X,), {"n": 2})
    assert function is getattr(type(owner), name)
    assert is_jitted(function)
    assert args[0] is owner
    assert args[1] is X
    assert kwargs == {"n": 2}


def test_a_callable_that_binds_nothing_stays_as_it_is():
    step, instance = jax.jit(lambda x: x), functools.partial(lambda x: x, 1)
    instance.lower = step.lower
    for each in (step, instance, eqx.filter_jit(lambda x: x), nnx.jit(lambda x: x), len, Plain):
        assert behind_bound(each, (X,)) == (each, (X,), {})


def test_a_method_is_the_same_each_time_that_somebody_asks_for_it_and_another_objects_is_another():
    for make, name in ((Plain, "top"), (lambda: Model(X), "__call__"), (Net, "__call__"), (lambda: Model(X), "python")):
        one, other = make(), make()
        assert calls_the_same(getattr(one, name), getattr(one, name))
        assert not calls_the_same(getattr(one, name), getattr(other, name))
    assert not calls_the_same(functools.partial(len, X), functools.partial(len, jnp.ones(3)))
    assert not calls_the_same(functools.partial(len, a=X), functools.partial(len, b=X))


SHAPE = jax.ShapeDtypeStruct(X.shape, X.dtype)


def debug(function, x, **options):
    jax.debug.callback(function, x, **options)
    return x


WAYS = {
    "pure_callback": lambda function, x: jax.pure_callback(function, SHAPE, x),
    "io_callback": lambda function, x: io_callback(function, SHAPE, x),
    "ordered io_callback": lambda function, x: io_callback(function, SHAPE, x, ordered=True),
    "debug.callback": debug,
    "ordered debug.callback": lambda function, x: debug(function, x, ordered=True),
    "buffer_callback": lambda function, x: buffer_callback(lambda context, out, x: [function(x)].clear(), SHAPE)(x),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_profile_hears_the_same_whether_a_callback_does_much_or_little(way):
    def much(x):
        for _ in range(100):
            len("")
        return np.asarray(x)

    def heard(function):
        jitted, events = jax.jit(lambda x: WAYS[way](function, x)), []
        for _ in range(3):
            jax.block_until_ready(jitted(X))
        outputs = profiled(lambda: jitted(X), without_chance(lambda frame, event, argument: events.append(event)))
        jax.block_until_ready(outputs)
        jax.effects_barrier()
        return len(events)

    assert heard(much) == heard(np.asarray)


def backward(fn):
    return jax.vjp(jax.checkpoint(fn), X)[1]


@pytest.mark.parametrize(
    ("transform", "x"),
    [(lambda fn: fn, X), (jax.grad, X), (backward, np.float32(1))],
    ids=["alone", "grad", "backward"],
)
def test_a_call_whose_compile_was_refused_is_as_quick_as_another(transform, x):
    refused, other = (transform(jax.jit(lambda x: (x * 2).sum())) for _ in range(2))
    other(x)  # operations that run by themselves compile once a process
    with pytest.raises(RecompilationError), compiles.forbid():
        refused(x)
    counts = []
    for each in (refused, other):
        each(x), each(x)
        events: list[str] = []
        profiled(lambda each=each: each(x), lambda frame, event, argument, events=events: events.append(event))
        counts.append(len(events))
    assert abs(counts[0] - counts[1]) < 100, "the slow path takes 140 Python calls more"


def test_reading_the_variables_of_a_frame_changes_none():
    def keeps(value):
        kept = locals()
        return local_variables(sys._getframe())["value"], kept["value"], value

    assert keeps(1) == (1, 1, 1)
    assert profiled(lambda: keeps(2), lambda frame, *_: local_variables(frame)) == (2, 2, 2)
