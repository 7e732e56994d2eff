"""A recompilation is compared with the nearest known call: the argument's path, what it was and what it is."""

import functools
import os
import warnings
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from support.compiling import refusal, silent, total
from support.jits import each_jit

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError

HERE = os.path.relpath(__file__)


@pytest.fixture(autouse=True)
def watching():
    """Remember what compiles, as the plugin does for the session."""
    with compiles.observe():
        yield


@each_jit
def test_a_new_shape_is_named_with_its_path_and_both_shapes(jit):
    step = jit(lambda state, batch: total(state) + total(batch))
    state, before, after = jnp.ones(3), {"ids": jnp.ones((8, 128))}, {"ids": jnp.ones((8, 96))}
    step(state, before)
    silent(step, state, before)
    error = refusal(step, state, after)
    assert error.changes == ("args[1]['ids']: shape was (8, 128), is (8, 96)",)
    assert error.stage == "trace"
    assert "nearest of 1 known signature. Pad to a declared shape" in str(error)


@each_jit
def test_a_new_dtype_is_named(jit):
    step = jit(lambda x: x * 2)
    before, after = jnp.ones(3), jnp.ones(3, jnp.int32)
    step(before)
    error = refusal(step, after)
    assert error.changes == ("args[0]: dtype was float32, is int32",)
    assert "Cast it before the call" in str(error)


@each_jit
def test_an_array_that_becomes_a_python_number_is_named(jit):
    step = jit(lambda x, rate: x * rate)
    x, rate = jnp.ones(3), jnp.asarray(0.5, jnp.float32)
    step(x, rate)
    error = refusal(step, x, 0.5)
    if jit is eqx.filter_jit:
        assert error.changes == ("args[1]: static value was float32[], is 0.5",)
        assert "Pass it as an array if it changes" in str(error)
    else:
        assert error.changes == ("args[1]: weak type was False (an array), is True (a Python float)",)
        assert "Pass jnp.float32(x) in every call, not a Python number" in str(error)


@each_jit
def test_a_weakly_typed_array_is_named(jit):
    step = jit(lambda x: x * 2)
    strong, weak = jnp.asarray(0.5, jnp.float32), jnp.asarray(0.5)
    step(strong)
    error = refusal(step, weak)
    assert error.changes == ("args[0]: weak type was False (an array), is True (an array)",)


@each_jit
def test_another_python_number_recompiles_only_where_it_is_static(jit):
    step = jit(lambda x, rate: x * rate)
    x = jnp.ones(3)
    step(x, 0.5)
    if jit is eqx.filter_jit:
        assert refusal(step, x, 0.25).changes == ("args[1]: static value was 0.5, is 0.25",)
    else:
        silent(step, x, 0.25)


@pytest.mark.parametrize("jit", [jax.jit, nnx.jit])
@pytest.mark.parametrize("how", [{"static_argnums": 1}, {"static_argnums": -1}, {"static_argnames": "n"}])
def test_a_new_static_value_is_named(jit, how):
    step = jit(lambda x, n: x * n, **how)
    x = jnp.ones(3)
    step(x, 2)
    silent(step, x, 2)
    error = refusal(step, x, 3)
    assert error.changes == ("args[1]: static value was 2, is 3",)
    assert "Pass it as an array if it changes, or warm every value" in str(error)


def test_a_new_static_value_by_keyword_is_named():
    step = jax.jit(lambda x, *, mode: x, static_argnames="mode")
    x = jnp.ones(3)
    step(x, mode="train")
    assert refusal(step, x, mode="eval").changes == ("kwargs['mode']: static value was 'train', is 'eval'",)


def test_a_python_number_that_is_not_static_is_not_blamed():
    step = jax.jit(lambda x, n: x * n)
    before, after = jnp.ones(3), jnp.ones(4)
    step(before, 1)
    assert refusal(step, after, 2).changes == ("args[0]: shape was (3,), is (4,)",)


@each_jit
def test_a_new_dictionary_key_is_named(jit):
    step = jit(lambda tree: total(tree))
    x = jnp.ones(3)
    step({"a": x})
    error = refusal(step, {"a": x, "b": x})
    assert error.changes == ("args[0]['b']: was absent, is float32[3]",)
    assert refusal(step, {"b": x}).changes == ("args[0]['a']: was float32[3], is absent",)


@each_jit
def test_an_array_in_place_of_none_is_named(jit):
    step = jit(lambda x, mask: x if mask is None else x * mask)
    x = jnp.ones(3)
    step(x, None)
    error = refusal(step, x, x)
    assert error.changes == ("args[1]: was None, is float32[3]",)
    assert "Pass the same tree in the same way in every call" in str(error)


@each_jit
def test_a_list_in_place_of_a_tuple_is_named(jit):
    step = jit(lambda tree: total(tree))
    x = jnp.ones(3)
    step((x, x))
    assert refusal(step, [x, x]).changes == ("args[0]: was tuple, is list",)


@each_jit
def test_an_argument_passed_by_keyword_is_named_where_it_recompiles(jit):
    step = jit(lambda x, mask: x * mask)
    x = jnp.ones(3)
    step(x, x)
    if jit is eqx.filter_jit:  # which binds the arguments to the parameters first
        silent(step, x, mask=x)
    else:
        error = refusal(step, x, mask=x)
        assert error.changes == ("kwargs['mask']: was passed by position, is passed by keyword",)


@each_jit
def test_committedness_recompiles_without_a_trace_and_is_named(jit):
    step = jit(lambda x: x * 2)
    x = jnp.ones(3)
    step(x)
    error = refusal(step, jax.device_put(x, jax.devices()[0]))
    assert error.stage == "lower"
    assert error.changes == ("args[0]: was uncommitted, is committed to cpu:0",)
    assert "(its trace was reused)" in str(error)
    assert "jax.device_put(x, device), which commits it, in every call or in none" in str(error)


@each_jit
def test_another_device_recompiles_without_a_trace_or_lowering_and_is_named(jit):
    step = jit(lambda x: x * 2)
    first, second = (jax.device_put(jnp.ones(3), device) for device in jax.devices()[:2])
    step(first)
    error = refusal(step, second)
    assert error.stage == "compile"
    assert error.changes == ("args[0]: device was cpu:0, is cpu:1",)
    assert "(its trace and lowering were reused)" in str(error)


@each_jit
def test_a_new_sharding_is_named(jit):
    mesh = jax.make_mesh((8,), ("x",))
    split, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("x"), PartitionSpec()))
    step = jit(lambda x: x * 2)
    x = jnp.ones((8, 2))
    before, after = jax.device_put(x, split), jax.device_put(x, whole)
    step(before)
    silent(step, before)
    error = refusal(step, after)
    assert len(error.changes) == 1
    assert error.changes[0].startswith("args[0]: sharding was NamedSharding(")
    assert "spec=P('x',)" in error.changes[0].partition(", is ")[0]
    assert "Place it with jax.device_put(x, sharding) as in the warm call" in str(error)


@each_jit
def test_a_function_made_anew_in_a_loop_is_named(jit):
    def make():
        return jit(lambda x: x + 1)

    x = jnp.ones(3)
    first, second = make(), make()
    first(x)
    silent(first, x)
    error = refusal(second, x)
    line = make.__code__.co_firstlineno + 1
    made = f"another of the same code ({HERE}:{line}), a lambda made anew"
    assert error.changes == (f"function: was an earlier object, is {made}",)
    assert "Create the jitted function once, outside the loop" in str(error)


@each_jit
def test_a_partial_made_anew_in_a_loop_is_named_also_when_the_earlier_one_is_gone(jit):
    def step(scale, x):
        return x * scale

    x = jnp.ones(3)
    jit(functools.partial(step, 2.0))(x)
    error = refusal(jit(functools.partial(step, 2.0)), x)
    assert len(error.changes) == 1
    assert f"another of the same code ({HERE}:{step.__code__.co_firstlineno})" in error.changes[0]


def test_jitting_the_same_function_again_is_silent():
    def step(x):
        return x + 1

    x = jnp.ones(3)
    jax.jit(step)(x)
    silent(lambda x: jax.jit(step)(x), x)
    eqx.filter_jit(step)(x)
    silent(lambda x: eqx.filter_jit(step)(x), x)


def test_two_functions_of_one_name_are_not_compared():
    def made_here():
        def step(x):
            return x + 1

        return step

    def made_there():
        def step(x):
            return x + 2

        return step

    jax.jit(made_here())(jnp.ones(3))
    error = refusal(jax.jit(made_there()), jnp.ones(4))
    assert error.changes == ()
    assert "no earlier call is known" in str(error)


def recompiles_under(jit, context, change: str) -> None:
    step = jit(lambda x: x @ x)
    x = jnp.ones((3, 3))
    step(x)
    with context:
        error = refusal(step, x)
    assert error.changes == (change,)
    assert "Set it once, before warming" in str(error)
    silent(step, x)


@each_jit
def test_x64_is_named(jit):
    recompiles_under(jit, jax.enable_x64(True), "jax_enable_x64: was False, is True")


@pytest.mark.parametrize(
    ("context", "change"),
    [
        (
            lambda: jax.default_matmul_precision("float32"),
            "jax_default_matmul_precision: was None, is 'float32'",
        ),
        (
            lambda: jax.numpy_dtype_promotion("strict"),
            "jax_numpy_dtype_promotion: was NumpyDtypePromotion.STANDARD, is NumpyDtypePromotion.STRICT",
        ),
        (
            lambda: jax.default_device(jax.devices()[3]),
            "jax_default_device: was None, is CpuDevice(id=3)",
        ),
    ],
    ids=["matmul precision", "dtype promotion", "default device"],
)
def test_an_option_that_a_program_depends_on_is_named(context, change):
    recompiles_under(jax.jit, context(), change)


def test_a_mesh_context_is_named():
    step = jax.jit(lambda x: x * 2)
    x = jnp.ones(8)
    step(x)
    with jax.set_mesh(jax.make_mesh((8,), ("x",))):
        error = refusal(step, x)
    assert any(change.startswith("mesh: was ") for change in error.changes)


def test_options_that_no_program_depends_on_are_not_blamed():
    step = jax.jit(lambda x: x * 2)
    before, after = jnp.ones(3), jnp.ones(4)
    step(before)
    with jax.explain_cache_misses(True), warnings.catch_warnings():
        assert refusal(step, after).changes == ("args[0]: shape was (3,), is (4,)",)


def test_a_static_field_of_a_module_is_named():
    class Block(eqx.Module):
        weight: jax.Array
        rate: float = eqx.field(static=True)

    weight = jnp.ones(3)
    step = eqx.filter_jit(lambda block, x: block.weight * x)
    step({"block": Block(weight, 0.1)}["block"], weight)
    error = refusal(step, Block(weight, 0.2), weight)
    assert error.changes == ("args[0].rate: static value was 0.1, is 0.2",)


def test_the_paths_of_equinox_modules_are_attributes():
    class Layer(eqx.Module):
        weight: jax.Array

    class Model(eqx.Module):
        layers: list[Layer]
        activation: Callable = jax.nn.relu

        def __call__(self, x):
            for layer in self.layers:
                x = self.activation(layer.weight * x)
            return x

    x = jnp.ones(4)
    model = Model([Layer(x), Layer(x)])
    step = eqx.filter_jit(lambda model, x: model(x))
    step(model, x)
    half = eqx.tree_at(lambda m: m.layers[1].weight, model, model.layers[1].weight.astype(jnp.bfloat16))
    assert refusal(step, half, x).changes == ("args[0].layers[1].weight: dtype was float32, is bfloat16",)
    smooth = eqx.tree_at(lambda m: m.activation, model, jax.nn.gelu)
    (change,) = refusal(step, smooth, x).changes
    assert change.startswith("args[0].activation: static value was ")
    assert change.endswith("is gelu")


def test_a_jitted_method_and_a_jitted_module_are_compared_by_equality():
    class Model(eqx.Module):
        weight: jax.Array

        @eqx.filter_jit
        def __call__(self, x):
            return self.weight * x

        def twice(self, x):
            return self.weight * x * 2

    x, longer = jnp.ones(3), jnp.ones(4)
    model = Model(x)
    model(x)
    assert refusal(model, x[:1]).changes == ("args[1]: shape was (3,), is (1,)",)
    eqx.filter_jit(model.twice)(x)
    silent(lambda x: eqx.filter_jit(Model(x).twice)(x), x)
    (change, _) = refusal(eqx.filter_jit(Model(longer).twice), longer).changes
    assert "weight: shape was (3,), is (4,)" in change


def test_the_paths_and_static_attributes_of_nnx_modules_are_attributes():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(3, 3, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.linear(x))

    model = Model(nnx.Rngs(0))
    x, more = jnp.ones((2, 3)), jnp.ones((4, 3))
    step = nnx.jit(lambda model, x: model(x))
    step(model, x)
    silent(step, model, x)
    assert refusal(step, model, more).changes == ("args[1]: shape was (2, 3), is (4, 3)",)
    model.eval()
    assert refusal(step, model, x).changes == ("args[0].dropout.deterministic: static value was False, is True",)
    model.train()
    model.linear.kernel[...] = model.linear.kernel[...]
    silent(step, model, x)


def test_an_nnx_module_that_is_no_pytree_is_looked_into():
    class Model(nnx.Module, pytree=False):
        def __init__(self, size):
            self.weight = nnx.Param(jnp.ones(size))

    step = nnx.jit(lambda model: model.weight[...] * 2)
    before, after = Model(3), Model(4)
    step(before)
    (change,) = refusal(step, after).changes
    assert change.startswith("args[0].weight")
    assert change.endswith("shape was (3,), is (4,)")


def test_the_paths_of_optimizer_states_name_their_fields():
    optimizer = optax.adam(1e-3)
    params = {"w": jnp.ones(3)}
    state = optimizer.init(params)
    step = jax.jit(lambda params, state: optimizer.update(params, state)[1])
    step(params, state)
    # What adam's bias correction makes of a count that was kept as a Python number.
    drifted = (state[0]._replace(count=0), *state[1:])
    assert refusal(step, params, drifted).changes == (
        "args[1][0].count: weak type was False (an array), is True (a Python int)",
    )


def test_a_numpy_array_is_as_good_as_an_uncommitted_one():
    step = jax.jit(lambda x: x * 2)
    step(jnp.ones(3))
    silent(step, np.ones(3, np.float32))
    assert refusal(step, np.ones(4, np.float32)).changes == ("args[0]: shape was (3,), is (4,)",)


def test_the_nearest_of_several_calls_is_chosen():
    step = jax.jit(lambda tree, scale: total(tree))
    x = jnp.ones((8, 128))
    step({"ids": x, "mask": x}, x)
    step([x], x)
    step({"ids": x[:, :64]}, x)
    step({"ids": x[:, :100]}, x)
    error = refusal(step, {"ids": x[:, :96]}, x)
    assert error.changes == ("args[0]['ids']: shape was (8, 100), is (8, 96)",)
    assert "nearest of 4 known signatures" in str(error)


def test_no_array_is_kept_alive_by_what_is_remembered():
    import gc
    import weakref

    class Static:
        def __init__(self, array):
            self.array = array

    step = jax.jit(lambda x, holder: x * 2, static_argnums=1)
    x = jnp.ones((3, 5))
    holder = Static(jnp.ones(7))
    references = [weakref.ref(x), weakref.ref(holder.array)]
    step(x, holder)
    step.clear_cache()  # which holds static values itself
    jax.clear_caches()
    del x, holder, step
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_an_argument_that_cannot_be_described_does_not_fail_the_compile():
    class Hostile:
        def __repr__(self):
            raise RuntimeError("no text for you")

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return isinstance(other, Hostile)

    step = jax.jit(lambda x, holder: x * 2, static_argnums=1)
    before, after = jnp.ones(3), jnp.ones(4)
    step(before, Hostile())
    assert refusal(step, after, Hostile()).changes == ("args[0]: shape was (3,), is (4,)",)


@pytest.mark.parametrize("jit", [jax.jit, nnx.jit, eqx.filter_jit])
def test_the_value_of_a_numpy_number_that_is_not_static_is_not_blamed(jit):
    step = jit(lambda x, rate: x * rate)
    before, after = np.ones(3, np.float32), np.ones(4, np.float32)
    step(before, np.float32(1))
    silent(step, before, np.float32(2))
    assert refusal(step, after, np.float32(3)).changes == ("args[0]: shape was (3,), is (4,)",)


def test_a_positional_number_is_not_blamed_where_a_later_static_argument_is_passed_by_keyword():
    step = jax.jit(lambda scale, x, n: x * scale, static_argnums=2)
    x, more = np.ones(3, np.float32), np.ones(4, np.float32)
    step(1, x, n=2)
    assert refusal(step, 5, more, n=2).changes == ("args[1]: shape was (3,), is (4,)",)


def test_of_several_partials_the_nearest_is_chosen_and_what_differs_is_named():
    def step(x, scale, mode):
        return x * scale

    x = np.ones(3, np.float32)
    jax.jit(functools.partial(step, scale=2.0, mode="train"))(x)
    jax.jit(functools.partial(step, scale=3.0, mode="eval"))(x)
    error = refusal(jax.jit(functools.partial(step, scale=2.0, mode="test")), x)
    assert error.changes[1:] == ("partial's mode: static value was 'eval', is 'test'",) or error.changes[1:] == (
        "partial's mode: static value was 'train', is 'test'",
    )


def test_what_a_closure_holds_is_named_and_not_kept_alive():
    import gc
    import weakref

    def make(weight, layers):
        return jax.jit(lambda x: x + weight.sum() + len(layers))

    x, weight = np.ones(3, np.float32), jnp.ones((3, 5))
    reference = weakref.ref(weight)
    make(weight, [weight])(x)
    error = refusal(make(jnp.ones((3, 6)), [x, x]), x)
    assert error.changes[1:] == (
        "closed-over layers[0]: shape was (3, 5), is (3,)",
        "closed-over layers[1]: was absent, is float32[3]",
        "closed-over weight: shape was (3, 5), is (3, 6)",
    )
    jax.clear_caches()
    del weight
    gc.collect()
    assert reference() is None


def test_a_closure_over_what_is_not_bound_yet_or_has_a_slow_text_is_no_obstacle():
    class Slow:
        def __repr__(self):
            raise AssertionError("a text that reads arrays")

    def make(slow):
        def step(x):
            return x if slow is None else later(x)

        jitted = jax.jit(step)
        with pytest.raises(NameError):
            jitted(x)
        later = jnp.negative
        return jitted, later

    x = np.ones(3, np.float32)
    make(Slow())
    with pytest.raises(RecompilationError, match="another of the same code") as raised, compiles.forbid():
        make(Slow())
    assert "Slow" not in str(raised.value)


def test_static_arguments_that_the_function_is_jitted_again_with_are_named():
    def step(x, n):
        return x * n

    x = np.ones(3, np.float32)
    jax.jit(step)(x, 2)
    error = refusal(jax.jit(step, static_argnums=1), x, 2)
    assert error.changes[0].startswith("static arguments: was none, is args[1]")
    assert "Jit it once, with the same static_argnums" in str(error)
    assert refusal(jax.jit(step, static_argnums=1), x, 3).changes == ("args[1]: static value was 2, is 3",)


def test_of_two_ways_in_which_a_function_is_jitted_a_call_is_compared_with_its_own():
    def step(x, n):
        return x * n

    x = np.ones(3, np.float32)
    jax.jit(step)(x, 2)
    jax.jit(step, static_argnames="n")(x, n=2)
    (change,) = refusal(jax.jit(step), x, n=2).changes
    assert change == "kwargs['n']: was passed by position, is passed by keyword"


def test_an_array_of_another_dtype_is_nearer_than_a_python_number():
    step = eqx.filter_jit(lambda x: x * 2)
    step(jnp.ones(3))
    step(1.0)  # the latest of equals would be named
    assert refusal(step, jnp.ones(3, jnp.bfloat16)).changes == ("args[0]: dtype was float32, is bfloat16",)
