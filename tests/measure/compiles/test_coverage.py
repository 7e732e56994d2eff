"""`covers`: every signature that inputs bring is compared with what is warm, and no program runs."""

import contextlib
import functools
import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.compiling import compiling

from perfsuite.measure.call import call
from perfsuite.measure.compiles import compiles, coverage
from perfsuite.measure.compiles.coverage import covers
from perfsuite.measure.compiles.warmup import warm
from perfsuite.measure.errors import MeasurementError

PARAMS, LONG = jnp.zeros(3), jnp.ones(16)
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
        found = covers(step, [(PARAMS, of(8)), (PARAMS, LONG), call(step, PARAMS, of(8))])
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


def test_a_named_tuple_is_one_argument():
    class Batch(NamedTuple):
        x: np.ndarray
        mask: np.ndarray

    step = warm(jax.jit(lambda batch: batch.x * batch.mask), over=[(Batch(of(8), of(8)),)])
    assert covers(step, [Batch(of(8), of(8))]).uncovered == ()


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
    monkeypatch.setattr(coverage, "MOST_INPUTS", 10)
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
    assert (uncovered.changes, uncovered.inputs) == (("args[2]: static value was 3, is 4",), 2)
    assert compiling(step, inputs) == [1]


def test_the_method_of_another_object_is_another_function():
    model, other = Sliced(), Sliced()
    step = warm(model.top, over=[call(model.top, of(8), 3)])
    assert covers(step, [call(model.top, of(8), 3)]).uncovered == ()
    with pytest.raises(ValueError, match="a call of another function, top"):
        covers(step, [call(other.top, of(8), 3)])
