"""`warm` compiles every signature; `covers` compares those that inputs bring with them, and no program runs."""

import contextlib
import copy
import functools
import itertools
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support.compiling import LONG, SHORT, compiling, doubling
from support.jits import each_jit, plain

from perfsuite.measure.call import call, label_of
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles import warm as warm_module
from perfsuite.measure.compiles.warm import covers, warm
from perfsuite.measure.errors import MeasurementError, RecompilationError

HERE = os.path.relpath(__file__)


def unwarmed(step, *args, **kwargs):
    """The changes that the error of a refused call names."""
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        step(*args, **kwargs)
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
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        step(argument)
    assert (raised.value.function, raised.value.stage) == ("<lambda>", "trace")
    assert raised.value.changes == ("args[0]: shape was (4,), is (5,)",)
    line = test_a_signature_that_was_not_warmed_is_named_before_it_compiles.__code__.co_firstlineno
    if jit is not plain:  # that one calls the jitted function at a line of its own
        assert f" again at {HERE}:{line + 5}" in str(raised.value)
    assert step(argument).shape == (5,)  # outside, it is an ordinary function


@each_jit
def test_dtypes_and_keywords_are_part_of_a_signature(jit):
    step = warm(doubling(jit), over=[(SHORT,)])
    assert unwarmed(step, jnp.ones(3, jnp.int32)) == ("args[0]: dtype was float32, is int32",)
    if jit is jax.jit:  # the others bind the arguments to the parameters first, or do not tell them apart
        assert unwarmed(step, x=SHORT) == ("kwargs['x']: was passed by position, is passed by keyword",)


def test_committedness_device_and_configuration_are_part_of_a_signature():
    first, second = (jax.device_put(SHORT, device) for device in jax.devices()[:2])
    step = warm(doubling(), over=[(first,)])
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
    assert carrying.args[0] == 3.0
    with compiles.forbid():
        warmed(0.0)
        warmed(jnp.float32(0.0))


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
    step = doubling()
    wanted = r"over must be a list of argument tuples or call\(...\)s"
    with pytest.raises(ValueError, match=wanted):
        warm(step, over=[])
    for over in ([SHORT], [(SHORT,), [SHORT]], SHORT, "abc", {"x": SHORT}, None, call(step, SHORT)):
        with pytest.raises(TypeError, match=wanted):
            warm(step, over=over)
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        warm(3, over=[(SHORT,)])


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
        warm(doubling(), over=[(SHORT,)])


PARAMS, SIXTEEN = jnp.zeros(3), jnp.ones(16)
BUCKETS = (8, 16)

directly = pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit, nnx.jit])


def made(jit=jax.jit):
    @jit
    def step(params, x):
        return params + x.sum()

    return step


def of(size, dtype=np.float32):
    return np.ones(size, dtype)


@pytest.fixture
def warmed():
    return warm(made(), over=[(PARAMS, of(size)) for size in BUCKETS])


@contextlib.contextmanager
def nothing_compiles():
    with compiles.count() as counted:
        yield
    assert counted.events == ()


@directly
def test_inputs_of_warmed_signatures_are_covered_and_nothing_compiles(jit):
    step = warm(made(jit), over=[(PARAMS, of(size)) for size in BUCKETS])
    with nothing_compiles():
        found = covers(step, [(PARAMS, of(8)), (PARAMS, SIXTEEN), call(step, PARAMS, of(8))])
    assert (found.inputs, found.signatures, found.uncovered, found.unused) == (3, 2, (), ())
    assert found.ended


@directly
def test_an_uncovered_signature_has_its_first_input_and_how_many_bring_it(jit):
    step = warm(made(jit), over=[(PARAMS, of(size)) for size in BUCKETS])
    with nothing_compiles():
        found = covers(step, [(PARAMS, of(size)) for size in (8, 8, 5, 8, 5)])
    (uncovered,) = found.uncovered
    assert (found.signatures, uncovered.first, uncovered.inputs) == (2, 2, 2)
    assert uncovered.changes == ("args[1]: shape was (8,), is (5,)",)
    assert found.unused == (step.signatures[1],)


def test_specs_stand_for_arrays(warmed):
    specs = [(jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((size,), jnp.float32)) for size in (8, 9)]
    (uncovered,) = covers(warmed, specs).uncovered
    assert uncovered.first == 1


def test_a_setting_that_was_not_warmed_is_a_change(warmed):
    with jax.default_matmul_precision("highest"):
        (uncovered,) = covers(warmed, [(PARAMS, of(8)), (PARAMS, of(8))]).uncovered
    assert "jax_default_matmul_precision" in uncovered.changes[0]
    assert uncovered.inputs == 2


def test_a_loader_without_an_end_needs_a_limit(warmed, monkeypatch):
    endless = ((PARAMS, of(8)) for _ in itertools.count())
    found = covers(warmed, endless, limit=5)
    assert (found.inputs, found.ended) == (5, False)
    assert next(endless), "no more than the limit is taken"
    monkeypatch.setattr(warm_module, "MOST_INPUTS", 10)
    with pytest.raises(ValueError, match=r"has given 10 inputs and goes on.*limit=10_000"):
        covers(warmed, endless)


@pytest.mark.parametrize(
    ("inputs", "error", "says"),
    [
        ([], ValueError, "there are no inputs"),
        (3, TypeError, "got int"),
        ("text", TypeError, "got str"),
        (call(made(), PARAMS, of(8)), TypeError, r"got one call: \[call"),
        (of(8), TypeError, "got ndarray"),
        ([call(len, ())], ValueError, "input 0 is a call of another function, len"),
    ],
)
def test_what_are_no_inputs_is_refused(warmed, inputs, error, says):
    with pytest.raises(error, match=says):
        covers(warmed, inputs)


@pytest.mark.parametrize("limit", [0, -1, True, 2.5])
def test_a_limit_is_a_number_of_inputs(warmed, limit):
    with pytest.raises(ValueError, match=r"limit=.* must be an int of 1 or more"):
        covers(warmed, [(PARAMS, of(8))], limit=limit)


def test_what_is_not_warm_or_not_jitted_is_refused():
    with pytest.raises(TypeError, match=r"give what perf\.warm returned, got PjitFunction"):
        covers(made(), [(PARAMS, of(8))])
    step = made()

    def train(x):
        return step(PARAMS, x)

    warmed = warm(train, over=[(of(8),)])
    with pytest.raises(MeasurementError, match="train is not jitted"):
        covers(warmed, [of(8)])


class Model(eqx.Module):
    weight: jax.Array

    @eqx.filter_jit
    def __call__(self, x):
        return self.weight + x.sum()

    @jax.jit
    def scaled(self, x):
        return self.weight * x.sum()


class Net(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(PARAMS)

    @nnx.jit
    def __call__(self, x):
        return self.weight[...] + x.sum()


def bound_kinds():
    model, net = Model(PARAMS), Net()
    return {
        "a partial": functools.partial(made(), PARAMS),
        "Equinox's partial": eqx.Partial(made(), PARAMS),
        "an Equinox module": model,
        "its bound __call__": model.__call__,
        "its method of jax.jit": model.scaled,
        "an NNX module": net,
        "the bound __call__ of an NNX module": net.__call__,
    }


@pytest.mark.parametrize("kind", bound_kinds())
def test_what_binds_arguments_to_a_jitted_function_is_compared_with_them(kind):
    step = warm(bound_kinds()[kind], over=[(of(8),)])
    with nothing_compiles():
        found = covers(step, [of(8), of(5), of(8), of(5)])
    assert found.signatures == 2
    (uncovered,) = found.uncovered
    assert (uncovered.first, uncovered.inputs) == (1, 2)
    (change,) = uncovered.changes
    assert change.endswith(": shape was (8,), is (5,)")


class Sliced:
    @functools.partial(jax.jit, static_argnums=(0, 2))
    def top(self, x, n):
        return jnp.sort(x)[:n]

    @functools.partial(jax.jit, static_argnums=(0, -1))
    def last(self, x, n):
        return x[-n:]


@pytest.mark.parametrize("name", ["top", "last"])
def test_the_static_arguments_of_a_method_are_those_beside_its_object(name):
    step = warm(getattr(Sliced(), name), over=[(of(8), 3)])
    inputs = [(of(8), n) for n in (3, 4, 4)]
    (uncovered,) = covers(step, inputs).uncovered
    assert (uncovered.changes, uncovered.inputs) == (("n: static value was 3, is 4",), 2)
    assert compiling(step, inputs) == [1]


def test_the_method_of_another_object_is_another_function():
    model, other = Sliced(), Sliced()
    step = warm(model.top, over=[(of(8), 1), call(model.top, of(8), 3)])
    with pytest.raises(ValueError, match="entry 0 is a call of another top"):
        warm(model.top, over=[call(other.top, of(8), 3)])
    assert covers(step, [call(model.top, of(8), 3)]).uncovered == ()
    with pytest.raises(ValueError, match="a call of another function, top"):
        covers(step, [call(other.top, of(8), 3)])


def test_what_compiled_while_warming_is_named_with_its_line():
    inner = jax.jit(lambda x: x * 2)

    def step(x):
        return inner(x) + jnp.ones(37)

    compiled = warm(step, over=[(of(37),), (of(1),)]).compiled
    assert compiled.startswith("for 2 signatures, above all ")
    assert f"`<lambda>` at tests/measure/compiles/test_warm.py:{step.__code__.co_firstlineno + 1} (2 times)" in compiled
