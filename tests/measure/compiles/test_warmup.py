"""`warm` compiles every signature, leaves the caller's arrays alone, and knows what it has not warmed."""

import copy
import functools
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from support.jits import each_jit

from perfsuite.measure.call import call, label_of
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warmup import settle, warm
from perfsuite.measure.errors import MeasurementError, RecompilationError, SignatureWarning, UnwarmedSignatureError

HERE = os.path.relpath(__file__)
SHORT, LONG = jnp.ones(3), jnp.ones(4)


def doubling(jit):
    return jit(lambda x: x * 2)


def unwarmed(step, *args, **kwargs):
    """The changes that `check` raises for."""
    with pytest.raises(UnwarmedSignatureError) as raised:
        step.check(args, kwargs)
    return raised.value.changes


@each_jit
def test_every_warmed_signature_compiles_nothing_afterwards(jit):
    step = warm(doubling(jit), over=[(SHORT,), (LONG,)])
    assert step.compiles == 2
    assert step.compile_seconds > 0
    assert len(step.signatures) == 2
    with compiles.forbid():
        outputs = step(SHORT)
        step(LONG)
        step.fn(LONG)
    assert outputs.tolist() == [2.0, 2.0, 2.0]


@each_jit
def test_a_signature_that_was_not_warmed_is_named_before_it_compiles(jit):
    step = warm(doubling(jit), over=[(SHORT,), (LONG,)])
    argument = jnp.ones(5)
    with pytest.raises(UnwarmedSignatureError) as raised, compiles.forbid():
        step(argument)
    assert (raised.value.function, raised.value.stage) == (step.__name__, "trace")
    assert raised.value.changes == ("args[0]: shape was (4,), is (5,)",)
    line = test_a_signature_that_was_not_warmed_is_named_before_it_compiles.__code__.co_firstlineno
    assert f" at {HERE}:{line + 5} with a signature that was not warmed" in str(raised.value)
    with pytest.raises(UnwarmedSignatureError):
        step.check((argument,))
    assert step(argument).shape == (5,)  # outside, it is an ordinary function


@each_jit
def test_check_compares_without_calling(jit):
    calls = []
    step = warm(jit(lambda x: calls.append(x) or x), over=[(SHORT,)])
    calls.clear()
    step.check((SHORT,))
    step.check((SHORT + 1,))
    with pytest.raises(UnwarmedSignatureError) as raised:
        step.check((jnp.ones(3, jnp.int32),))
    assert raised.value.changes == ("args[0]: dtype was float32, is int32",)
    assert isinstance(raised.value, RecompilationError)
    assert raised.value.stage == ""
    if jit is eqx.filter_jit:  # which binds the arguments to the parameters first
        step.check((), {"x": SHORT})
    else:
        assert unwarmed(step, x=SHORT) == ("kwargs['x']: was passed by position, is passed by keyword",)
    assert calls == []


def test_check_sees_committedness_device_and_configuration():
    first, second = (jax.device_put(SHORT, device) for device in jax.devices()[:2])
    step = warm(doubling(jax.jit), over=[(first,)])
    step.check((first,))
    assert unwarmed(step, SHORT) == ("args[0]: was committed to cpu:0, is uncommitted",)
    assert unwarmed(step, second) == ("args[0]: device was cpu:0, is cpu:1",)
    with jax.enable_x64(True):
        assert unwarmed(step, first) == ("jax_enable_x64: was False, is True",)


def test_a_difference_that_compiles_nothing_is_not_refused():
    """JAX decides, not the signature: here a Python number only chooses what the plain function returns."""
    padded = jax.jit(lambda x: x.sum())

    def step(tokens, length):
        return padded(tokens), length

    warmed = warm(step, over=[(LONG, 4)])
    with compiles.forbid():
        warmed(LONG, 3)


def test_a_warmed_call_of_a_function_that_compiles_inside_says_what_compiled():
    def step(x):
        return jax.jit(lambda x: x + 1)(x)

    warmed = warm(step, over=[(SHORT,)])
    with pytest.raises(RecompilationError, match="another of the same code") as raised, compiles.forbid():
        warmed(SHORT)
    assert not isinstance(raised.value, UnwarmedSignatureError)


@pytest.mark.parametrize("donate", ["jax.jit", "filter_jit", "nnx.jit"])
def test_a_function_that_donates_leaves_the_callers_arrays_alone(donate):
    def step(state, x):
        return jax.tree.map(lambda leaf: leaf * 2, state), x + 1

    jitted = {
        "jax.jit": lambda: jax.jit(step, donate_argnums=0),
        "filter_jit": lambda: eqx.filter_jit(step, donate="all"),
        "nnx.jit": lambda: nnx.jit(step, donate_argnums=0),
    }[donate]()
    state = {"w": jnp.zeros(3), "b": jax.device_put(jnp.zeros(3), jax.devices()[0])}
    state["weak"] = jnp.asarray(1.0)
    warmed = warm(jitted, over=[(state, SHORT)])
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((state, SHORT)))
    with compiles.forbid():  # so the copies had the same weak types and committedness
        warmed(state, jax.device_put(SHORT, may_alias=False))


def test_nnx_modules_are_left_as_they_were_also_where_they_share_variables():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(2, 2, rngs=rngs)
            self.tied = self.linear
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.tied(self.dropout(self.linear(x)))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-1), wrt=nnx.Param)
    x = jnp.ones((1, 2))

    @nnx.jit
    def step(model, optimizer, x):
        gradients = nnx.grad(lambda model: model(x).sum())(model)
        optimizer.update(model, gradients)

    before = jax.tree.map(lambda leaf: leaf.copy(), nnx.state((model, optimizer), nnx.Param))
    warmed = warm(step, over=[(model, optimizer, x)])
    after = nnx.state((model, optimizer), nnx.Param)
    assert all((one == other).all() for one, other in zip(*map(jax.tree.leaves, (before, after)), strict=True))
    assert model.dropout.rngs.count[...] == 0
    assert model.linear is model.tied
    with compiles.forbid():
        warmed(model, optimizer, x)
    assert model.dropout.rngs.count[...] == 1


def test_a_sharded_argument_is_copied_with_its_sharding():
    split = jax.device_put(jnp.ones((8, 2)), jax.NamedSharding(jax.make_mesh((8,), ("x",)), jax.P("x")))
    warmed = warm(jax.jit(lambda x: x * 2, donate_argnums=0), over=[(split,)])
    assert not split.is_deleted()
    with compiles.forbid():
        warmed(split)


def test_a_call_runs_as_it_is_with_its_keywords():
    step = jax.jit(lambda x, *, scale: x * scale)
    warmed = warm(step, over=[call(step, SHORT, scale=LONG[0])])
    with compiles.forbid():
        warmed(SHORT, scale=LONG[0])
    assert unwarmed(warmed, SHORT, scale=SHORT) == ("kwargs['scale']: shape was (), is (3,)",)


def test_a_carrying_call_runs_on_until_nothing_compiles():
    step = jax.jit(lambda state, x: (state + x, x.sum()), donate_argnums=0)
    carrying = call(step, jnp.zeros(3), SHORT, carry=1)
    warmed = warm(step, over=[carrying])
    assert carrying.args[0].tolist() == [2.0, 2.0, 2.0]
    assert warmed.compiles == 1
    with compiles.forbid():
        carrying.run()


def test_a_state_that_settles_after_one_run_is_warmed_in_both_forms():
    step = jax.jit(lambda count: count + jnp.float32(1))
    carrying = call(step, 0.0, carry=1)
    warmed = warm(step, over=[carrying])
    assert warmed.compiles == 2
    assert len(warmed.signatures) == 2
    warmed.check((0.0,))
    warmed.check((jnp.float32(0.0),))
    assert carrying.args[0] == 3.0


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda state, x: jax.jit(lambda state: state + x)(state), "a lambda made anew"),
        (jax.jit(lambda cache, x: jnp.concatenate([cache, x])), r"args\[0\]: shape was \(9,\), is \(12,\)"),
    ],
    ids=["jitted anew", "grows"],
)
def test_a_carrying_call_that_compiles_in_every_run_says_why(step, says):
    with pytest.raises(MeasurementError, match=rf"entry 0: lambda compiled in each of 3 runs:\n(.|\n)*{says}"):
        warm(step, over=[call(step, jnp.zeros(3) + 0, SHORT, carry=1)])


@pytest.mark.parametrize("returned", [lambda x: x.sum(), lambda x: x.astype(int)], ids=["shape", "dtype"])
def test_a_carry_that_replaces_an_argument_by_something_else_is_warned_of(returned):
    """`carry=2` where one output is the next state, so that the batch became a scalar, and another step was measured."""
    step = jax.jit(lambda state, x: (state + x.sum(), returned(x)))
    with pytest.warns(SignatureWarning, match=r"call\(lambda, ..., carry=2\)(.|\n)*args\[1\] was float32\[3\], is "):
        settle(call(step, jnp.zeros(3), SHORT, carry=2))


@pytest.mark.filterwarnings("ignore:Python iterable type:DeprecationWarning")  # of JAX, for any such argument
def test_an_iterator_that_a_run_ends_is_found_among_other_arguments():
    def total(batches, scale):
        return sum(batches["train"]) * scale["by"]

    with pytest.raises(MeasurementError, match=r"total takes args\[0\]\['train'\], a list_iterator, to its end"):
        warm(total, over=[call(total, {"train": iter([SHORT, SHORT])}, {"by": 2.0})])


def test_arguments_that_were_donated_before_are_named():
    step = jax.jit(lambda state, x: (state["w"] + x, x), donate_argnums=0)
    state = {"w": jnp.zeros(3) + 0}
    training = call(jax.jit(lambda state, x: {"w": state["w"] + x}, donate_argnums=0), state, SHORT, carry=1)
    warm(training.fn, over=[training])
    for over in ([(state, SHORT)], [call(step, state, SHORT, carry=1)]):
        with pytest.raises(MeasurementError, match=r"args\[0\]\['w'\] was deleted, because an earlier call donated it"):
            warm(step, over=over)
    warm(training.fn, over=[training])  # which has moved on


def test_a_call_that_donates_what_it_does_not_carry_is_named():
    step = jax.jit(lambda state, x: (state + x, x + 1), donate_argnums=(0, 1))
    with pytest.raises(MeasurementError, match=r"donates args\[0\].*carry=n"):
        warm(step, over=[call(step, jnp.zeros(3) + 0, SHORT.copy())])
    with pytest.raises(MeasurementError, match=r"donates args\[1\], which carry=1 does not replace"):
        warm(step, over=[call(step, jnp.zeros(3) + 0, SHORT.copy(), carry=1)])


def test_inputs_that_make_no_sense_are_refused_with_what_is_wanted():
    step = doubling(jax.jit)
    wanted = r"over must be a list of argument tuples or call\(...\)s"
    with pytest.raises(ValueError, match=f"{wanted}; it is empty"):
        warm(step, over=[])
    with pytest.raises(TypeError, match=f"{wanted}; entry 0 is ArrayImpl: one argument alone is"):
        warm(step, over=[SHORT])
    with pytest.raises(TypeError, match=f"{wanted}; entry 1 is list: make the list a tuple"):
        warm(step, over=[(SHORT,), [SHORT]])
    for over, name in ((SHORT, "ArrayImpl"), ("abc", "str"), ({"x": SHORT}, "dict"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"{wanted}; got {name}"):
            warm(step, over=over)
    with pytest.raises(TypeError, match=r"got one call: over=\[call\(...\)\]"):
        warm(step, over=call(step, SHORT))
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        warm(3, over=[(SHORT,)])


class Model:
    @functools.partial(jax.jit, static_argnums=(0, 2))
    def top(self, x, n):
        return jnp.sort(x)[:n]


def test_a_method_is_warmed_with_the_object_and_the_static_arguments_that_it_has():
    model = Model()
    step = warm(model.top, over=[(SHORT, 1), call(model.top, SHORT, 2)])
    step.check((SHORT, 2))
    assert unwarmed(step, SHORT, 3) == ("args[2]: static value was 2, is 3",)
    with pytest.raises(ValueError, match="entry 0 is a call of another top"):
        warm(model.top, over=[call(Model().top, SHORT, 2)])


def other(x):
    return x


def other_of_the_same_name():
    def other(x):
        return x + 1

    return other


def test_a_call_of_another_function_is_refused_with_the_places_of_both_where_their_names_are_the_same():
    namesake = other_of_the_same_name()
    here, there = (f"{HERE}:{each.__code__.co_firstlineno}" for each in (other, namesake))
    with pytest.raises(ValueError, match="entry 1") as refused:
        warm(jax.jit(other), over=[(SHORT,), call(namesake, SHORT)])
    assert f"of other ({there}), not of other ({here})" in str(refused.value)
    with pytest.raises(ValueError, match="made anew of the same code"):
        warm(jax.jit(other), over=[call(jax.jit(other), SHORT)])
    step = jax.jit(other)
    assert len(warm(step, over=[call(warm(step, over=[(SHORT,)]), LONG)]).signatures) == 1


def test_a_warm_function_passes_for_the_function():
    def step(x):
        return x * 2

    jitted = jax.jit(step)
    warmed = warm(jitted, over=[(SHORT,)])
    assert warmed.fn is jitted
    assert warmed.__name__ == "step"
    assert label_of(warmed) == "step"
    assert warmed.lower(SHORT).as_text().startswith("module @jit_step")
    assert copy.copy(warmed).fn is jitted
    with pytest.raises(AttributeError):
        warmed.nonsense
    again = warm(warmed, over=[call(warmed, SHORT), (SHORT,)])
    assert again.fn is jitted
    assert again.compiles == 0


def test_warming_while_compiles_are_forbidden_is_refused():
    with pytest.raises(RecompilationError), compiles.forbid():
        warm(doubling(jax.jit), over=[(SHORT,)])
