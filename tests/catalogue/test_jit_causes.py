"""What makes `jax.jit` compile again, as users write it by mistake: every cause is named, and what to do about it.

Numbers of issues are those of jax-ml/jax, unless another project is named. "measured" is what jax 0.10.2 does.
"""

import collections
import dataclasses
import functools
import itertools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental import checkify
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from perfsuite.measure.private import jax_stack

from .catalogue import Case, Catalogue

causes = Catalogue()
entry = causes.entry

X = jnp.ones(3)
RATE = jnp.float32(0.1)
NP3, NP4 = np.ones(3, np.float32), np.ones(4, np.float32)


def make_descend():
    """A function that JAX has not seen: what it has seen under another entry, it does not compile."""

    def descend(x, rate):
        return x - rate

    return descend


def loss(x):
    return (x * x).sum()


def scaled(x, factor):
    return x * factor


# Numbers and their types.


@entry(
    "issue 4274",
    "args[1]: weak type was False (an array), is True (a Python float)",
    "Pass jnp.float32(x) in every call, not a Python number",
)
def a_python_float_in_place_of_an_array():
    step = jax.jit(lambda x, rate: x - rate)
    step(X, RATE)
    return Case(lambda: step(X, 0.2), lambda: step(X, np.float32(0.2)))


@entry(
    "issue 3163",
    "args[0]['count']: weak type was False (an array), is True (a Python int)",
    "Pass jnp.int32(x) in every call",
)
def a_counter_kept_as_a_python_int():
    step = jax.jit(lambda state: {"count": state["count"] + 1})
    state = step({"count": jnp.int32(0)})
    return Case(lambda: step({"count": 1}), lambda: step(state))


@entry(
    "measured: 1 is int32 and 0.5 is float32",
    "args[1]: dtype was int32 (a Python int), is float32 (a Python float)",
    "Pass jnp.float32(x) in every call",
)
def a_python_int_that_becomes_a_float():
    step = jax.jit(lambda x, rate: x - rate)
    step(X, 1)
    return Case(lambda: step(X, 0.5), lambda: step(X, 2))


@entry(
    "measured: True is bool and 1 is int32",
    "args[1]: dtype was bool (a Python bool), is int32 (a Python int)",
    "Pass jnp.int32(x) in every call",
)
def a_flag_that_becomes_a_number():
    step = jax.jit(lambda x, flag: jnp.where(flag, x, 0))
    step(X, True)
    return Case(lambda: step(X, 1), lambda: step(X, False))


@entry(
    "measured: with x64 a NumPy number of its default type is float64; without it is float32 and silent",
    "args[1]: dtype was float32, is float64",
    "x.astype('float32')",
)
def a_numpy_float64_under_x64():
    step = jax.jit(make_descend())
    with jax.enable_x64(True):
        step(X, np.float32(0.1))

    def under_x64(rate):
        with jax.enable_x64(True):
            step(X, rate)

    return Case(lambda: under_x64(np.float64(0.1)), lambda: under_x64(np.float32(0.2)))


@entry("measured: NumPy's default integer is int64, int32 for JAX", "args[1]: dtype was float32, is int32")
def a_numpy_integer_in_place_of_a_float():
    step = jax.jit(lambda x, rate: x - rate)
    step(X, np.float32(1))
    # Without x64 a float64 is the float32 that was warmed.
    return Case(lambda: step(X, np.int64(1)), lambda: step(X, np.float64(2)))


@entry(
    "google-deepmind/optax issue 1440; google/jaxopt issue 451",
    "args[0]['n']: weak type was True (an array), is False (an array)",
    "Give it a dtype where it is made, as in jnp.asarray(0, jnp.int32)",
)
def a_counter_made_without_a_dtype_and_returned_with_one():
    step, kept = (jax.jit(lambda state: {"n": state["n"] + jnp.int32(1)}) for _ in range(2))
    drifted, same = step({"n": jnp.asarray(0)}), kept({"n": jnp.asarray(0, jnp.int32)})
    return Case(lambda: step(drifted), lambda: kept(same))


@entry(
    "issue 4827",
    "args[0]['w']: dtype was bfloat16, is float32",
    "Cast it before the call, or in the step that returns it, with x.astype('bfloat16')",
)
def a_state_that_drifts_from_bfloat16_to_float32():
    step = jax.jit(lambda state, rate: {"w": state["w"] - rate * NP3})
    kept = jax.jit(lambda state, rate: {"w": (state["w"] - rate * NP3).astype(state["w"].dtype)})
    state = {"w": NP3.astype(jnp.bfloat16)}
    drifted, same = step(state, RATE), kept(state, RATE)
    return Case(lambda: step(drifted, RATE), lambda: kept(same, RATE))


@entry("issue 4827", "args[0]['n']: dtype was int32, is float32", "x.astype('int32')")
def a_state_that_drifts_from_int32_to_float32():
    step = jax.jit(lambda state: {"n": state["n"] * jnp.float32(0.9)})
    kept = jax.jit(lambda state: {"n": state["n"] * 2})
    state = {"n": np.int32(4)}
    drifted, same = step(state), kept(state)
    return Case(lambda: step(drifted), lambda: kept(same))


# Random keys.


@entry(
    "JAX documentation, JEP 9263: typed keys",
    "args[0]: dtype was key<fry>, is uint32",
    "Make keys in one way, with jax.random.key(seed)",
    "not also with jax.random.PRNGKey",
)
def an_old_key_in_place_of_a_typed_one():
    draw = jax.jit(lambda key: key)
    new, other, old = jax.random.key(0), jax.random.key(1), jax.random.PRNGKey(0)
    draw(new)
    return Case(lambda: draw(old), lambda: draw(other))


@entry(
    "JAX documentation, jax.random: advanced RNG configuration",
    "args[0]: dtype was key<fry>, is key<rbg>",
    "with jax.random.key(seed) and one impl",
)
def a_key_of_another_implementation():
    draw = jax.jit(lambda key: key)
    fry, rbg = jax.random.key(0), jax.random.key(0, impl="rbg")
    draw(fry)
    return Case(lambda: draw(rbg), lambda: draw(fry))


@entry("measured", "args[0]: shape was (), is (2,)", "Pass one key in every call, as keys[0] of jax.random.split(key)")
def an_array_of_keys_in_place_of_one():
    draw = jax.jit(lambda key: key)
    key = jax.random.key(0)
    keys = jax.random.split(key)
    first = keys[0]
    draw(key)
    return Case(lambda: draw(keys), lambda: draw(first))


@entry("measured", "args[0]: static value was 0, is 1", "Pass it as an array if it changes")
def a_seed_that_is_static():
    baked = jax.jit(lambda seed, x: x + seed, static_argnums=0)
    passed = jax.jit(lambda seed, x: x + seed)
    baked(0, X), passed(0, X)
    return Case(lambda: baked(1, X), lambda: passed(1, X))


# Static values.


@entry(
    "google-deepmind/optax issue 577",
    "kwargs['rate']: static value was 0.1, is 0.05",
    "Pass it as an array if it changes, or warm every value",
)
def a_learning_rate_that_is_static():
    baked, passed = jax.jit(make_descend(), static_argnames="rate"), jax.jit(make_descend())
    baked(X, rate=0.1), passed(X, rate=RATE)
    return Case(lambda: baked(X, rate=0.05), lambda: passed(X, rate=np.float32(0.05)))


@entry("measured", "args[1]: static value was np.int64(2), is np.int64(3)", "Pass it as an array if it changes")
def a_static_numpy_number():
    step = jax.jit(lambda x, n: x * n, static_argnums=1)
    step(X, np.int64(2))
    return Case(lambda: step(X, np.int64(3)), lambda: step(X, np.int64(2)))


@entry(
    "measured", "args[1]: static value was True, is False", "Each value of a static argument has a program of its own"
)
def a_flag_that_was_not_warmed():
    step = jax.jit(lambda x, train: x * 2 if train else x, static_argnums=1)
    step(X, True)
    return Case(lambda: step(X, False), lambda: step(X, True))


@entry(
    "JAX documentation, jax.jit: static_argnames",
    "kwargs['mode']: static value was 'train', is 'eval'",
    "Each value of a static argument has a program of its own. Warm every value",
)
def a_mode_that_was_not_warmed():
    step = jax.jit(lambda x, *, mode: x, static_argnames="mode")
    step(X, mode="train")
    return Case(lambda: step(X, mode="eval"), lambda: step(X, mode="train"))


@entry(
    "issue 3701",
    "args[1]: static value was ",
    "Config(n=2), is another ",
    "It is compared by identity: make it once, or give its class __eq__ and __hash__, as @dataclass(frozen=True) does",
)
def a_static_object_without_equality():
    @dataclasses.dataclass(eq=False)
    class Config:
        n: int = 2

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        n: int = 2

    step = jax.jit(lambda x, config: x * config.n, static_argnums=1)
    step(X, Config()), step(X, Frozen())
    return Case(lambda: step(X, Config()), lambda: step(X, Frozen()))


@entry(
    "issues 14743 and 28418",
    "args[1]: static value was Config, is another Config",
    "The two look the same but are unequal: repair the __eq__ and __hash__ of its class",
)
def a_static_object_with_a_wrong_equality():
    class Config:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            return self is other

        def __repr__(self):
            return "Config"

    once = Config()
    step = jax.jit(lambda x, config: x, static_argnums=1)
    step(X, once)
    return Case(lambda: step(X, Config()), lambda: step(X, once))


@entry("issues 2813 and 4712", "Non-hashable static arguments", "type <class 'list'>", raises=ValueError)
def a_static_list_in_place_of_a_tuple():
    step = jax.jit(lambda x, sizes: x * sizes[0], static_argnums=1)
    step(X, (2, 3))
    return Case(lambda: step(X, [2, 3]), lambda: step(X, (2, 3)))


@entry("issue 883", "Non-hashable static arguments", "numpy.ndarray", raises=ValueError)
def a_static_array():
    step = jax.jit(lambda x, weights: x, static_argnums=1)
    step(X, (1.0, 1.0))
    return Case(lambda: step(X, NP3), lambda: step(X, (1.0, 1.0)))


@entry(
    "issue 14183",
    "args[1]: static value was ",
    "Make the function once, at module level: JAX compares it by identity",
)
def a_static_lambda_made_in_the_loop():
    step = jax.jit(lambda x, activation: activation(x), static_argnums=1)

    def made_anew():
        return step(X, lambda x: -x)

    made_anew(), step(X, jnp.negative)
    return Case(made_anew, lambda: step(X, jnp.negative))


@entry(
    "issue 14183",
    "args[1].func: static value was ",
    "Make the function once, at module level: JAX compares it by identity",
)
def a_tree_util_partial_of_a_new_lambda():
    step = jax.jit(lambda x, activation: activation(x))

    def made_anew():
        return step(X, jax.tree_util.Partial(lambda x: -x))

    made_anew(), step(X, jax.tree_util.Partial(loss))
    return Case(made_anew, lambda: step(X, jax.tree_util.Partial(loss)))


# Functions made anew.


@entry(
    "issue 9288",
    "function: was an earlier object, is another of the same code (",
    "a lambda made anew",
    "Create the jitted function once, outside the loop (every lambda is a new function)",
)
def a_lambda_jitted_in_the_loop():
    def made_anew():
        return jax.jit(lambda x: x + 1)(X)

    made_anew(), jax.jit(loss)(X)
    # The same function jitted again is the same to JAX: only its host work is done again.
    return Case(made_anew, lambda: jax.jit(loss)(X))


@entry(
    "JAX documentation, Just-in-time compilation: JIT and caching",
    "a functools.partial made anew",
    "Create the jitted function once, outside the loop (every functools.partial(...) is a new function)",
)
def a_partial_jitted_in_the_loop():
    descend = make_descend()

    def made_anew():
        return jax.jit(functools.partial(descend, rate=0.1))(X)

    made_anew()
    step = jax.jit(functools.partial(descend, rate=0.1))
    step(X)
    return Case(made_anew, lambda: step(X))


@entry(
    "JAX documentation, Just-in-time compilation: JIT and caching",
    "a functools.partial made anew",
    "partial's rate: static value was 0.1, is 0.05",
    "with rate as an argument (what a function holds is built into its program)",
)
def a_learning_rate_in_a_partial():
    descend = make_descend()
    jax.jit(functools.partial(descend, rate=0.1))(X)
    step = jax.jit(make_descend())
    step(X, 0.1)
    return Case(lambda: jax.jit(functools.partial(descend, rate=0.05))(X), lambda: step(X, 0.05))


@entry(
    "google-deepmind/optax issue 197; issue 10596",
    "function: was an earlier object",
    "closed-over rate: static value was 0.1, is 0.05",
    "Create the jitted function once, outside the loop, with rate as an argument",
)
def a_learning_rate_in_a_closure():
    def make_step(rate):
        @jax.jit
        def step(x):
            return x - rate

        return step

    make_step(0.1)(X)
    step = jax.jit(make_descend())
    step(X, 0.1)
    return Case(lambda: make_step(0.05)(X), lambda: step(X, 0.05))


@entry("issue 10596", "default rate: static value was 0.1, is 0.05", "with rate as an argument")
def a_learning_rate_in_a_default():
    def made_anew(rate):
        return jax.jit(lambda x, rate=rate: x - rate)(X)

    made_anew(0.1)
    step = jax.jit(make_descend())
    step(X, 0.1)
    return Case(lambda: made_anew(0.05), lambda: step(X, 0.05))


class Model:
    """An object with methods, as users jit them."""

    def __init__(self):
        self.scale = 2.0
        self.step = jax.jit(self.apply)

    def apply(self, x):
        return x * self.scale

    def apply_alone(self, x):
        return x * self.scale

    @functools.partial(jax.jit, static_argnums=0)
    def apply_static(self, x):
        return x * self.scale


@entry(
    "issues 19570, 15338 and 9672",
    "a bound method made anew",
    "Create the jitted function once, outside the loop (every obj.method is a new object)",
)
def a_bound_method_jitted_in_the_loop():
    # While a jitted method of the same object lives, JAX finds its program, for the methods are equal.
    model, other = Model(), Model()
    jax.jit(model.apply_alone)(X), other.step(X)
    return Case(lambda: jax.jit(model.apply_alone)(X), lambda: jax.jit(other.apply)(X))


@entry(
    "issues 19570 and 9672",
    "a bound method made anew",
    "method's self: static value was ",
    "is another Model(scale=2.0",
)
def a_bound_method_of_a_new_instance():
    jax.jit(Model().apply)(X)
    model = Model()
    model.step(X)
    return Case(lambda: jax.jit(Model().apply)(X), lambda: model.step(X))


@entry(
    "issue 28418",
    "self: static value was ",
    "is another Model(scale=2.0",
    "It is compared by identity: make it once",
)
def a_new_instance_as_a_static_self():
    once = Model()
    once.apply_static(X)
    return Case(lambda: Model().apply_static(X), lambda: once.apply_static(X))


@entry(
    "issues 2095 and 1832",
    "a wrapped function made anew",
    "jax.grad, jax.vmap and decorators return a new function each time",
)
def a_gradient_taken_and_jitted_in_the_loop():
    jax.jit(jax.grad(loss))(X)
    gradient = jax.jit(jax.grad(loss))
    gradient(X)
    return Case(lambda: jax.jit(jax.grad(loss))(X), lambda: gradient(X))


@entry(
    "issue 2095", "a wrapped function made anew", "jax.grad, jax.vmap and decorators return a new function each time"
)
def a_vmap_jitted_in_the_loop():
    jax.jit(jax.vmap(loss))(X)
    jitted = jax.jit(loss)
    jax.vmap(jitted)(X)
    # Of what is jitted first, every map is the same program.
    return Case(lambda: jax.jit(jax.vmap(loss))(X), lambda: jax.vmap(jitted)(X))


MESH = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
NEW_LENGTHS = itertools.count(1001)
SPECS = {"mesh": MESH, "in_specs": PartitionSpec(), "out_specs": PartitionSpec()}


@entry("measured", "`scaled` was traced", "a functools.partial made anew", "Create the jitted function once")
def a_pmap_of_a_partial_made_in_the_loop():
    ones = jnp.ones((1, 3))

    def mapped():
        return jax.pmap(functools.partial(scaled, factor=2.0))

    mapped()(ones)
    kept = mapped()
    kept(ones)
    return Case(lambda: mapped()(ones), lambda: kept(ones))


@entry("measured", "args[1]: static value was 2.0, is 3.0", "Pass it as an array if it changes")
def another_static_value_of_one_pmapped_function():
    ones, mapped = jnp.ones((1, 3)), jax.pmap(scaled, static_broadcasted_argnums=1)
    mapped(ones, 2.0)
    return Case(lambda: mapped(ones, 3.0), lambda: mapped(ones, 2.0))


@entry("measured", "`scaled` was traced", "a functools.partial made anew", "Create the jitted function once")
def a_shard_map_of_a_partial_jitted_in_the_loop():
    def mapped():
        return jax.jit(jax.shard_map(functools.partial(scaled, factor=2.0), **SPECS))

    mapped()(X)
    kept = mapped()
    kept(X)
    return Case(lambda: mapped()(X), lambda: kept(X))


@entry(
    "measured",
    "`shard_map` x ",
    "`sin` (in `shard_map`)",
    "Outside jit, jax.shard_map runs each operation by itself, on all devices",
)
def a_shard_map_outside_jit():
    mapped = jax.shard_map(lambda x: jnp.sin(x) * 2, **SPECS)
    jitted, x = jax.jit(mapped), jnp.ones(next(NEW_LENGTHS))
    jitted(X)
    return Case(lambda: mapped(x), lambda: jitted(X))


if jax.__version_info__ >= (0, 10, 2):  # jax 0.10.0 counts no trace of it

    @entry(
        "measured",
        "Outside jit, jax.checkpoint has JAX trace every function that is made anew: jax.jit the function that calls it",
    )
    def a_checkpoint_outside_jit():
        def anew():
            return jax.checkpoint(lambda x: x)(X)

        anew()
        kept = jax.checkpoint(loss)
        kept(X)
        return Case(anew, lambda: kept(X))

    @entry(
        "measured",
        "Outside jit, jax.checkpoint has JAX trace every function that is made anew: jax.jit the function that calls it",
    )
    def the_gradient_of_a_checkpoint_outside_jit():
        def anew():
            return jax.grad(jax.checkpoint(lambda x: x.sum()))(X)

        anew()
        gradient = jax.jit(jax.grad(jax.checkpoint(loss)))
        gradient(X)
        return Case(anew, lambda: gradient(X))


@entry("measured", "Outside jit, checkify has JAX trace every function that is made anew")
def a_check_outside_jit():
    def anew():
        return checkify.checkify(lambda x: x)(X)

    anew()
    checked = jax.jit(checkify.checkify(loss))
    checked(X)
    return Case(anew, lambda: checked(X))


@entry("measured", "donate_argnums: was (), is (0,)", "Jit it once, with one donate_argnums")
def the_same_function_jitted_with_other_options():
    descend = make_descend()
    jax.jit(descend)(X, RATE)
    # Nothing is lost of X: the plant is refused before it runs.
    return Case(lambda: jax.jit(descend, donate_argnums=0)(X, RATE), lambda: jax.jit(descend)(X, RATE))


@entry("measured", "out_shardings", "is (SingleDeviceSharding(", "Jit it once, with one out_shardings")
def the_same_function_jitted_with_an_output_sharding():
    descend, placed = make_descend(), jax.sharding.SingleDeviceSharding(jax.devices()[0])
    jax.jit(descend)(X, RATE)
    return Case(lambda: jax.jit(descend, out_shardings=placed)(X, RATE), lambda: jax.jit(descend)(X, RATE))


@entry("measured", "compiler_options: was {}, is {'xla_cpu_enable_fast_math'", "Jit it once, with one compiler_options")
def the_same_function_jitted_with_compiler_options():
    descend, options = make_descend(), {"xla_cpu_enable_fast_math": True}
    jax.jit(descend)(X, RATE)
    return Case(lambda: jax.jit(descend, compiler_options=options)(X, RATE), lambda: jax.jit(descend)(X, RATE))


@entry("measured", "args[0]: layout was the usual one, is major_to_minor=(1, 0)", "Give it one layout")
def an_array_with_another_layout():
    step, usual = jax.jit(lambda x: x * 2), jax.device_put(np.ones((3, 4), np.float32), jax.devices()[0])
    turned = jax.device_put(usual, Format(Layout(major_to_minor=(1, 0)), usual.sharding))
    step(usual)
    return Case(lambda: step(turned), lambda: step(usual))


USER_CONTEXT = jax.make_user_context(None)


@entry("JAX documentation of make_user_context", "user context", "was 1, is 2", "Set it once, before warming")
def another_value_of_a_user_context():
    if not jax_stack.context_values():
        pytest.skip("jax 0.10.0 does not name what its cache of traces depends on")
    step = jax.jit(lambda x: x * 2)

    def under(value):
        with USER_CONTEXT(value):
            step(X)

    under(1)
    return Case(lambda: under(2), lambda: under(1))


@entry("measured", "mesh_context: was (), is (Mesh(axis_sizes=(1,), axis_names=('d',)", "Set it once, before warming")
def a_mesh_entered_as_a_context():
    if not jax_stack.context_values():
        pytest.skip("jax 0.10.0 does not name what its cache of traces depends on")
    step = jax.jit(lambda x: x * 2)
    step(X)

    def under():
        with warnings.catch_warnings(action="ignore"), MESH:
            step(X)

    return Case(under, lambda: step(X))


@entry("measured", "It is called under a transformation", "jax.jit", "the function that transforms it")
def a_map_over_another_axis():
    step, square = jax.jit(lambda x: x * 2), jnp.ones((3, 3))
    mapped, other = jax.vmap(step), jax.vmap(step, in_axes=1)
    mapped(square)
    return Case(lambda: other(square), lambda: mapped(square))


@entry("measured", "lowering_platforms: was ('cpu',), is ('tpu',)", "Jit it once, with one lowering_platforms")
def an_export_for_another_platform():
    step, other = jax.jit(lambda x: x * 2), jax.jit(lambda x: x * 3)
    export.export(step, platforms=["cpu"])(X)
    other(X)
    return Case(lambda: export.export(step, platforms=["tpu"])(X), lambda: other(X))


@entry(
    "measured",
    "args[1]: dtype was int32 (a Python int), is float32 (a Python float)",
    "Pass jnp.float32(x) in every call",
)
def a_number_under_strict_promotion():
    step = jax.jit(lambda x, rate: x)

    def strictly(rate):
        with jax.numpy_dtype_promotion("strict"):
            step(X, rate)

    strictly(1)
    return Case(lambda: strictly(0.5), lambda: strictly(2))


@entry("measured", "It is called under a transformation", "another program for each transformation, its options")
def a_traced_number_under_a_second_derivative():
    step, kept = jax.jit(lambda x: x**3), jax.jit(lambda x: x**4)
    second, other = jax.grad(jax.grad(step)), jax.grad(jax.grad(kept))
    second(2.0), other(2.0)
    step.clear_cache()
    return Case(lambda: second(3.0), lambda: other(3.0))


@entry(
    "measured",
    "static arguments: was none, is args[1], kwargs['rate']",
    "Jit it once, with the same static_argnums and static_argnames",
)
def the_same_function_jitted_with_other_static_arguments():
    descend = make_descend()
    jax.jit(descend)(X, 0.1)
    return Case(lambda: jax.jit(descend, static_argnames="rate")(X, 0.1), lambda: jax.jit(descend)(X, 0.1))


@entry("issue 5375", "JAX dropped its program (clear_cache(), jax.clear_caches(), a full cache)")
def a_cache_that_was_cleared():
    step, other = jax.jit(lambda x: x * 2), jax.jit(lambda x: x * 3)
    step(NP3)
    step.clear_cache()
    other(NP3)
    return Case(lambda: step(NP3), lambda: other(NP3))


# Shapes.


@entry(
    "patrick-kidger/diffrax issue 111",
    "args[0]['ids']: shape was (4, 3), is (2, 3)",
    "Where the last batch is smaller: pad it and mask the rest, or drop it.",
)
def a_ragged_last_batch():
    step = jax.jit(lambda batch: batch["ids"] * 2)
    full, ragged = {"ids": np.ones((4, 3), np.float32)}, {"ids": np.ones((2, 3), np.float32)}
    step(full)
    padded = {"ids": np.pad(ragged["ids"], ((0, 2), (0, 0)))}
    return Case(lambda: step(ragged), lambda: step(padded))


@entry(
    "issues 837, 803 and 15412",
    "args[0]: shape was (2, 4), is (2, 5)",
    "Pad to a declared shape",
    "Where a length grows: write into a buffer of fixed length",
)
def a_sequence_that_grows():
    step = jax.jit(lambda ids: ids * 2)
    grown = [np.ones((2, length), np.float32) for length in (3, 4, 5)]
    step(grown[0]), step(grown[1])
    padded = np.pad(grown[0], ((0, 0), (0, 1)))
    return Case(lambda: step(grown[2]), lambda: step(padded))


@entry("issue 837", "args[0]['k']: shape was (3,), is (4,)", "with jax.lax.dynamic_update_slice")
def a_cache_that_is_concatenated():
    grow = jax.jit(lambda cache, new: {"k": jnp.concatenate([cache["k"], new])})
    fill = jax.jit(lambda cache, new, at: {"k": jax.lax.dynamic_update_slice(cache["k"], new, (at,))})
    new, cache = NP3[:1], {"k": NP3}
    grown, filled = grow(cache, new), fill({"k": NP4}, new, np.int32(3))
    return Case(lambda: grow(grown, new), lambda: fill(filled, new, np.int32(2)))


# Trees of arguments.


@entry("measured", "args[0]['mask']: was absent, is float32[3]", "Pass the same tree in the same way in every call")
def a_batch_with_another_key():
    step = jax.jit(lambda batch: batch["ids"] * 2)
    step({"ids": NP3})
    return Case(lambda: step({"ids": NP3, "mask": NP3}), lambda: step({"ids": NP3}))


@entry("measured", "args[0]['tokens']: was absent, is float32[3]", "args[0]['ids']: was float32[3], is absent")
def a_batch_with_a_key_renamed():
    step = jax.jit(lambda batch: sum(batch.values()))
    step({"ids": NP3})
    return Case(lambda: step({"tokens": NP3}), lambda: step({"ids": NP3}))


@entry("JEP 26069: dict key order", "args[0]: was dict, is OrderedDict", "Pass the same tree in the same way")
def an_ordered_dict_in_place_of_a_dict():
    step = jax.jit(lambda batch: batch["a"] * 2)
    step({"a": NP3, "b": NP3})
    ordered = collections.OrderedDict(a=NP3, b=NP3)
    # The order of a plain dict's keys does not matter.
    return Case(lambda: step(ordered), lambda: step({"b": NP3, "a": NP3}))


@entry("JEP 26069: dict key order", "args[0]: was ('a', 'b'), is ('b', 'a')", "Pass the same tree in the same way")
def an_ordered_dict_in_another_order():
    step = jax.jit(lambda batch: batch["a"] * 2)
    step(collections.OrderedDict(a=NP3, b=NP3))
    ordered, turned = (collections.OrderedDict([(name, NP3) for name in names]) for names in ("ab", "ba"))
    return Case(lambda: step(turned), lambda: step(ordered))


@entry(
    "JAX documentation, Pytrees: None is a node without children",
    "args[1]: was None, is float32[3]",
    "None is part of the tree, not an array",
)
def an_array_in_place_of_none():
    step = jax.jit(lambda x, mask: x if mask is None else x * mask)
    step(NP3, None)
    return Case(lambda: step(NP3, NP3), lambda: step(NP3, None))


@entry("measured", "args[0]: was tuple, is list", "Pass the same tree in the same way in every call")
def a_list_in_place_of_a_tuple():
    step = jax.jit(lambda state: state[0] * 2)
    step((NP3, NP3))
    return Case(lambda: step([NP3, NP3]), lambda: step((NP3, NP3)))


class Pair(NamedTuple):
    """An optimizer's state, as users write it."""

    mean: Any
    variance: Any


@entry("measured", "args[0]: was Pair, is tuple", "Pass the same tree in the same way in every call")
def a_tuple_in_place_of_a_namedtuple():
    step = jax.jit(lambda state: state[0] * 2)
    step(Pair(NP3, NP3))
    return Case(lambda: step((NP3, NP3)), lambda: step(Pair(NP3, NP3)))


@entry("measured", "args[0][2]: was absent, is float32[3]", "Pass the same tree in the same way in every call")
def a_list_that_grows():
    step = jax.jit(lambda layers: layers[0] * 2)
    step([NP3, NP3])
    return Case(lambda: step([NP3, NP3, NP3]), lambda: step([NP3, NP3]))


@entry(
    "pull request 595; issue 523",
    "kwargs['rate']: was passed by position, is passed by keyword",
    "Pass it in the same way in every call (JAX does not match keywords to positions)",
)
def a_keyword_in_place_of_a_position():
    step = jax.jit(make_descend())
    step(NP3, RATE)
    return Case(lambda: step(NP3, rate=RATE), lambda: step(NP3, RATE))


@entry(
    "measured",
    "kwargs['scale']: was absent, is 2.0",
    "Pass it in every call or in none",
    "even where the default is the same",
)
def an_optional_argument_that_is_given():
    step = jax.jit(lambda x, scale=2.0: x * scale)
    step(NP3)
    return Case(lambda: step(NP3, scale=2.0), lambda: step(NP3))


@entry("measured", "kwargs['train']: was absent, is True", "Pass it in every call or in none")
def an_optional_static_argument_that_is_given():
    step = jax.jit(lambda x, train=True: x, static_argnames="train")
    step(NP3)
    return Case(lambda: step(NP3, train=True), lambda: step(NP3))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Noise:
    """A registered dataclass whose `level` is part of the tree's structure."""

    x: Any
    level: Any = dataclasses.field(metadata={"static": True})


@entry(
    "ryan112358/mbi pull request 196",
    "args[0].level: static value was 0.1, is 0.2",
    "Pass it as an array if it changes, or warm every value",
)
def a_registered_dataclass_whose_static_field_changes():
    step = jax.jit(lambda noise: noise.x * noise.level)
    step(Noise(NP3, 0.1))
    return Case(lambda: step(Noise(NP3, 0.2)), lambda: step(Noise(NP4[:3], 0.1)))


@entry("issue 14183", "args[0].level: static value was ", "Make the function once, at module level")
def a_registered_dataclass_that_holds_a_new_lambda():
    step = jax.jit(lambda noise: noise.level(noise.x))

    def made_anew():
        return step(Noise(NP3, lambda x: -x))

    made_anew(), step(Noise(NP3, loss))
    return Case(made_anew, lambda: step(Noise(NP3, loss)))


@entry(
    "measured", "args[0]: was ", "Define the class once, at module level: one that is defined again is another class"
)
def a_class_that_is_defined_again():
    def defined_again():
        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class State:
            x: Any

        return State(NP3)

    step = jax.jit(lambda state: state.x * 2)
    once = defined_again()
    step(once)
    # The structures of two dataclasses with the same fields are equal in jax 0.10.2 and only their hashes differ: of
    # 2,500 classes that were defined again it took 42 for the first one, and compiled nothing.
    return Case(lambda: [step(defined_again()) for _ in range(8)], lambda: step(once))


# Devices and shardings.


def sharded(names=("x",), shape=(8,), split=("x",), devices=slice(None)):
    mesh = Mesh(np.array(jax.devices()[devices]).reshape(shape), names)
    return jax.device_put(np.ones(8, np.float32), NamedSharding(mesh, PartitionSpec(*split)))


@entry(
    "issue 15924",
    "(its trace was reused)",
    "args[0]: was uncommitted, is committed to cpu:0",
    "Pass it through jax.device_put(x, device), which commits it, in every call or in none",
)
def an_array_that_is_committed():
    step = jax.jit(lambda x: x * 2)
    step(X)
    committed = jax.device_put(X, jax.devices()[0])
    return Case(lambda: step(committed), lambda: step(NP3))


@entry(
    "measured: the trace and the lowering are reused, so that nothing that counts traces sees it",
    "(its trace and lowering were reused)",
    "args[0]: device was cpu:0, is cpu:1",
    "Keep it on the device that was warmed, with jax.device_put(x, device)",
)
def an_array_on_another_device():
    step = jax.jit(lambda x: x * 2)
    first, second = (jax.device_put(X, device) for device in jax.devices()[:2])
    step(first)
    return Case(lambda: step(second), lambda: step(first))


@entry(
    "issue 31250", "args[0]: sharding was NamedSharding(", "spec=P('x',)", "Place it with jax.device_put(x, sharding)"
)
def an_array_with_another_sharding():
    step = jax.jit(lambda x: x * 2)
    split, whole = sharded(), sharded(split=())
    step(split)
    return Case(lambda: step(whole), lambda: step(split))


@entry("measured", "Mesh('x': 8", "Mesh('x': 4, 'y': 2", "Make the mesh once, and place it there with jax.device_put")
def an_array_on_a_mesh_of_another_shape():
    step = jax.jit(lambda x: x * 2)
    one, other, again = sharded(), sharded(("x", "y"), (4, 2)), sharded()
    step(one)
    # A mesh that is made again, of the same devices and names, is the same.
    return Case(lambda: step(other), lambda: step(again))


@entry("measured", "args[0]: device was cpu:0, cpu:1, cpu:2, cpu:3, is cpu:4, cpu:5, cpu:6, cpu:7")
def an_array_on_a_mesh_of_other_devices():
    step = jax.jit(lambda x: x * 2)
    first, second = sharded(shape=(4,), devices=slice(4)), sharded(shape=(4,), devices=slice(4, 8))
    step(first)
    return Case(lambda: step(second), lambda: step(first))


@entry(
    "issue 31250",
    "args[0]['w']: was uncommitted, is committed to 8 devices",
    "Place it in every call with jax.device_put(x, sharding): a state as the step returns it",
)
def a_state_that_the_first_step_shards():
    step = jax.jit(lambda state, x: {"w": state["w"] + x})
    x = sharded()
    state = {"w": np.ones(8, np.float32)}
    returned = step(state, x)
    return Case(lambda: step(returned, x), lambda: step(state, x))


# Configuration and contexts.


def under(context, step, *args):
    with context:
        return step(*args)


def config_case(context):
    step = jax.jit(lambda x: x * 2)
    step(X)
    return Case(lambda: under(context(), step, X), lambda: step(X))


@entry("measured: x64 is part of the key", "jax_enable_x64: was False, is True", "Set it once, before warming")
def x64_in_a_context():
    return config_case(lambda: jax.enable_x64(True))


@entry("measured", "jax_default_matmul_precision: was None, is 'float32'", "Set it once, before warming")
def a_matmul_precision_in_a_context():
    return config_case(lambda: jax.default_matmul_precision("float32"))


@entry("measured", "jax_default_device: was None, is CpuDevice(id=1)", "Set it once, before warming")
def a_default_device_in_a_context():
    return config_case(lambda: jax.default_device(jax.devices()[1]))


@entry("measured", "mesh: was Mesh(axis_sizes=(), axis_names=()), is Mesh(", "Set it once, before warming")
def a_mesh_in_a_context():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return config_case(lambda: jax.set_mesh(mesh))


@entry(
    "issue 19654",
    "an eager operation: it runs outside any jitted function",
    "`step` was jitted before: leave jax.disable_jit(), or call the jitted function, or call it inside a jitted function",
)
def jit_that_is_disabled():
    @jax.jit
    def step(x):
        return jnp.cbrt(x)

    step(X)
    return Case(lambda: under(jax.disable_jit(), step, X), lambda: step(X))


# Outside the jitted function.


@entry("measured", "(iterating over a jax.Array)", "iterate over np.asarray(x), or use jax.lax.scan")
def a_loop_over_an_array():
    rows = jax.device_put(np.ones((5, 7), np.float32))
    return Case(lambda: [None for _ in rows], lambda: [None for _ in np.asarray(rows)])


@entry(
    "issues 587, 2251 and 14743",
    "`<lambda>` was traced",
    "(in `scan`)",
    "a loop outside any jitted function: it compiles for every new body function, length and shape",
    "Put it inside jax.jit, or define its body once, at module level",
)
def a_scan_with_a_new_body():
    def made_anew():
        return jax.lax.scan(lambda carry, x: (carry + x, x), np.float32(0), NP3)

    made_anew()
    scan = jax.jit(made_anew)
    scan()
    return Case(made_anew, scan)


@entry("issue 587", "(in `while_loop`)", "it compiles for every new body function", "Put it inside jax.jit")
def a_while_loop_with_a_new_body():
    def made_anew(x):
        return jax.lax.while_loop(lambda x: x < 3, lambda x: x + 1, x)

    def once(x):
        return jax.lax.while_loop(below, add_one, x)

    made_anew(RATE), once(RATE)
    return Case(lambda: made_anew(RATE), lambda: once(RATE))


def below(x):
    return x < 3


def add_one(x):
    return x + 1


@entry(
    "measured: an operation outside jit compiles for every new shape",
    "`broadcast_in_dim` was traced at ",
    "(in `zeros`)",
    "an eager operation: it runs outside any jitted function and compiles for every new shape",
    "shape[0]: static value was 21, is 22",
    "Move it into the jitted function, or use NumPy.",
)
def zeros_of_a_new_shape_beside_the_step():
    jnp.zeros((21, 3))
    return Case(lambda: jnp.zeros((22, 3)), lambda: (jnp.zeros((21, 3)), np.zeros((23, 3))))


@entry("measured", "`convert_element_type` was traced at ", "an eager operation: it runs outside any jitted function")
def a_cast_of_a_new_shape_beside_the_step():
    known, new = (jnp.asarray(np.ones(length, np.float32)) for length in (23, 24))
    known.astype(jnp.float16)
    return Case(lambda: new.astype(jnp.float16), lambda: known.astype(jnp.float16))


@entry(
    "measured",
    "(in `__getitem__`)",
    "an eager operation",
    "idx: static value was slice(start=None, stop=5, step=None), is slice(",
)
def a_slice_of_a_new_length_beside_the_step():
    x, numpy = jnp.asarray(np.ones(29, np.float32)), np.ones(29, np.float32)
    x[:5]
    return Case(lambda: x[:6], lambda: (x[:5], numpy[:7]))


@entry("measured", "no earlier call is known", "Warm it first: perf.warm(step, over=[...])")
def a_step_that_was_never_warmed():
    @jax.jit
    def step(x):
        return x * 5

    warmed = jax.jit(loss)
    warmed(NP3)
    return Case(lambda: step(NP3), lambda: warmed(NP3))


@entry(
    "JAX documentation, Ahead-of-time lowering and compilation",
    "Argument types differ",
    "'x' compiled with float32[3] and called with float32[4]",
    raises=TypeError,
)
def a_compiled_function_with_another_shape():
    compiled = jax.jit(lambda x: x * 2).lower(NP3).compile()
    return Case(lambda: compiled(NP4), lambda: compiled(NP3))


@entry("measured", "args[0]: shape was (3,), is (4,)", "was traced again")
def a_lowering_for_another_shape():
    step = jax.jit(lambda x: x * 2)
    step.lower(NP3).compile()
    return Case(lambda: step.lower(NP4), lambda: step.lower(NP3))


@causes.each()
def test_the_cause_is_named_with_what_to_do_and_its_control_is_silent(entry, compile_counter):
    entry.check(compile_counter)


def test_every_entry_has_a_source_and_words_of_its_own():
    assert len({entry.name for entry in causes.entries}) == len(causes.entries) >= 60
    known = ("issue", "pull request", "JAX documentation", "JEP", "measured")
    assert all(any(word in entry.source for word in known) and entry.says for entry in causes.entries)


def test_debug_nans_and_log_compiles_compile_nothing(compile_counter):
    step = jax.jit(lambda x: x * 2)
    step(NP3)
    with compile_counter.forbid(), jax.debug_nans(True), jax.log_compiles():
        step(NP3)


def test_a_catalogue_entry_that_misses_its_words_fails(compile_counter):
    catalogue = Catalogue()

    @catalogue.entry("measured", "words that no message has")
    def planted():
        step = jax.jit(lambda x: x * 2)
        step(NP3)
        return Case(lambda: step(NP4), lambda: step(NP3))

    with pytest.raises(AssertionError, match="not in the message"):
        catalogue.entries[0].check(compile_counter)
