"""A recompilation is compared with the nearest known call. `tests/catalogue` has each cause under one kind of jit."""

import functools
import os
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jax.test_util import check_grads
from support.compiling import refusal, silent, total
from support.jits import each_jit

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError

X = jnp.ones(3)
MESH = jax.make_mesh((8,), ("x",))
SPLIT, WHOLE = (NamedSharding(MESH, spec) for spec in (PartitionSpec("x"), PartitionSpec()))
FIRST, SECOND = (jax.device_put(X, device) for device in jax.devices()[:2])


pytestmark = pytest.mark.usefixtures("watching")


@each_jit
@pytest.mark.parametrize(
    ("before", "after", "stage", "changes"),
    [
        ({"ids": jnp.ones((8, 128))}, {"ids": jnp.ones((8, 96))}, "trace", "['ids']: shape was (8, 128), is (8, 96)"),
        (X, jnp.ones(3, jnp.int32), "trace", ": dtype was float32, is int32"),
        (jnp.asarray(0.5, jnp.float32), jnp.asarray(0.5), "trace", ": weak type was False (an array), is True"),
        ({"a": X}, {"a": X, "b": X}, "trace", "['b']: was absent, is float32[3]"),
        ({"a": X, "b": X}, {"a": X}, "trace", "['b']: was float32[3], is absent"),
        (None, X, "trace", ": was None, is float32[3]"),
        ((X, X), [X, X], "trace", ": was tuple, is list"),
        (X, FIRST, "lower", ": was uncommitted, is committed to cpu:0"),
        (FIRST, SECOND, "compile", ": device was cpu:0, is cpu:1"),
        (
            jax.device_put(jnp.ones(8), SPLIT),
            jax.device_put(jnp.ones(8), WHOLE),
            "lower",
            ": sharding was NamedSharding(",
        ),
    ],
)
def test_what_an_argument_has_different_is_named_with_its_path(jit, before, after, stage, changes):
    step = jit(lambda x, other: (total(x), total(other)))
    step(X, before)
    silent(step, X, before)
    error = refusal(step, X, after)
    (change,) = error.changes
    assert change.startswith(f"args[1]{changes}")
    assert error.stage in (stage, "trace" if stage == "lower" else stage)


@each_jit
def test_a_python_number_recompiles_where_it_is_static_or_was_an_array(jit):
    step = jit(lambda x, rate: x * rate)
    step(X, jnp.asarray(0.5, jnp.float32))
    if jit is eqx.filter_jit:
        assert refusal(step, X, 0.5).changes == ("args[1]: static value was float32[], is 0.5",)
        assert refusal(step, X, 0.25).changes == ("args[1]: static value was 0.5, is 0.25",)
    else:
        weak = "args[1]: weak type was False (an array), is True (a Python float)"
        assert refusal(step, X, 0.5).changes == (weak,)
        silent(step, X, 0.25)


@pytest.mark.parametrize("jit", [jax.jit, nnx.jit])
@pytest.mark.parametrize("how", [{"static_argnums": 1}, {"static_argnums": -1}, {"static_argnames": "n"}])
def test_a_new_static_value_is_named(jit, how):
    step = jit(lambda x, n: x * n, **how)
    step(X, 2)
    silent(step, X, 2)
    assert refusal(step, X, 3).changes == ("args[1]: static value was 2, is 3",)


def test_of_several_partials_the_nearest_is_chosen_and_what_differs_is_named():
    def step(x, scale, mode):
        return x * scale

    jax.jit(functools.partial(step, scale=2.0, mode="train"))(X)
    jax.jit(functools.partial(step, scale=3.0, mode="test"))(X)
    _, *changes = refusal(jax.jit(functools.partial(step, scale=2.0, mode="eval")), X).changes
    assert changes == ["partial's mode: static value was 'train', is 'eval'"]


def test_jitting_the_same_function_again_is_silent():
    def step(x):
        return x + 1

    for jit in (jax.jit, eqx.filter_jit):
        jit(step)(X)
        silent(lambda x, jit=jit: jit(step)(x), X)


def test_two_functions_of_one_name_are_not_compared():
    def made_here():
        def step(x):
            return x + 1

        return step

    def made_there():
        def step(x):
            return x + 2

        return step

    jax.jit(made_here())(X)
    error = refusal(jax.jit(made_there()), jnp.ones(4))
    assert error.changes == ()
    assert "no earlier call is known" in str(error)


def test_options_that_no_program_depends_on_are_not_blamed():
    step = jax.jit(lambda x: x * 2)
    step(X)
    with jax.explain_cache_misses(True), warnings.catch_warnings():
        assert refusal(step, jnp.ones(4)).changes == ("args[0]: shape was (3,), is (4,)",)


def test_a_jitted_method_and_a_jitted_module_are_compared_by_equality():
    class Model(eqx.Module):
        weight: jax.Array

        @eqx.filter_jit
        def __call__(self, x):
            return self.weight * x

        def twice(self, x):
            return self.weight * x * 2

    model, longer = Model(X), jnp.ones(4)
    model(X)
    assert refusal(model, X[:1]).changes == ("x: shape was (3,), is (1,)",)
    eqx.filter_jit(model.twice)(X)
    silent(lambda x: eqx.filter_jit(Model(x).twice)(x), X)
    (change, _) = refusal(eqx.filter_jit(Model(longer).twice), longer).changes
    assert "weight: shape was (3,), is (4,)" in change


def test_an_nnx_module_that_is_no_pytree_is_looked_into():
    class Model(nnx.Module, pytree=False):
        def __init__(self, size):
            self.weight = nnx.Param(jnp.ones(size))

    step = nnx.jit(lambda model: model.weight[...] * 2)
    step(Model(3))
    (change,) = refusal(step, Model(4)).changes
    assert change.startswith("args[0].weight")
    assert change.endswith("shape was (3,), is (4,)")


def test_the_nearest_of_several_calls_is_chosen():
    step = jax.jit(lambda tree, scale: total(tree))
    x = jnp.ones((8, 128))
    step({"ids": x, "mask": x}, x)
    step([x], x)
    step({"ids": x[:, :64]}, x)
    step({"ids": x[:, :100]}, x)
    assert refusal(step, {"ids": x[:, :96]}, x).changes == ("args[0]['ids']: shape was (8, 100), is (8, 96)",)


def test_an_array_of_another_dtype_is_nearer_than_a_python_number():
    step = eqx.filter_jit(lambda x: x * 2)
    step(X)
    step(1.0)  # the latest of equals would be named
    assert refusal(step, jnp.ones(3, jnp.bfloat16)).changes == ("args[0]: dtype was float32, is bfloat16",)


def test_a_closure_over_what_is_not_bound_yet_or_has_a_slow_text_is_no_obstacle():
    class Slow:
        def __repr__(self):
            raise AssertionError("a text that reads arrays")

    def make(slow):
        def step(x):
            return x if slow is None else later(x)

        jitted = jax.jit(step)
        with pytest.raises(NameError):
            jitted(X)
        later = jnp.negative

    make(Slow())
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        make(Slow())
    assert "another of the same code" in raised.value.changes[0]


HERE = os.path.relpath(__file__)


def test_many_differences_are_cut_short_and_the_same_one_of_many_leaves_is_one_line():
    step = jax.jit(lambda tree, x: total(tree) + x)
    trees = [[jnp.ones(size + place) for place in range(20)] for size in (30, 60)] + [[jnp.ones(3)] * 20]
    step(trees[0], 1.0)
    error = refusal(step, trees[1], 1.0)
    assert len(error.changes) == 20
    assert len(str(error).splitlines()) == 10
    step([jnp.ones(4)] * 20, 1.0)
    assert len(str(refusal(step, trees[2], jnp.ones(2))).splitlines()) < 6


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


def test_a_library_that_gets_keys_which_cannot_be_sorted_is_described():
    loss = jax.jit(lambda x: (x**2).sum())
    tolerance = {np.float32: 0.01, np.float64: 0.01}
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        check_grads(loss, (np.ones(4, np.float32),), order=1, rtol=tolerance, atol=tolerance)
    assert "no earlier call is known" in str(raised.value)
