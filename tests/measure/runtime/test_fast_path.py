"""`fast_path`: calls of jitted functions that take JAX's slow path, though nothing compiles."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from perfsuite.measure.call import call
from perfsuite.measure.runtime.fast_path import ERROR_BEFORE, MOVED, PLACED, fast_path

HERE = "tests/measure/runtime/test_fast_path.py"
X = jnp.ones(8)
MESH = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
SPLIT = NamedSharding(MESH, PartitionSpec("a"))


@jax.jit
def double(x):
    return x * 2


@jax.jit
def left_in(x):
    jax.debug.callback(lambda y: None, x)
    return x * 2


def line(fn):
    return f"{HERE}:{fn.__wrapped__.__code__.co_firstlineno}"


# What hits.

HITS = {
    "an array": call(double, X),
    "a NumPy array": call(double, np.ones(8, np.float32)),
    "a Python number": call(double, 2.0),
    "eager operations": call(lambda x: (x + 1)[0] * jnp.sin(x).sum(), X),
    "filter_jit": call(eqx.filter_jit(lambda x: x * 2), X),
    "compiled ahead of time": call(double.lower(X).compile(), X),
    "a carried, donated state": call(jax.jit(lambda x: x + 1, donate_argnums=0), jnp.ones(3), carry=1),
    "jitted anew in each call": call(lambda x: jax.jit(double.__wrapped__)(x), X),
    "a config context in each call": call(lambda x: in_a_context(x), X),
    "nothing of JAX": call(lambda: None),
}


def in_a_context(x):
    with jax.default_matmul_precision("float32"):
        return double(x)


@pytest.mark.parametrize("subject", HITS.values(), ids=HITS.keys())
def test_a_warm_call_misses_nothing(subject):
    made = fast_path(subject)
    assert (made.misses, made.by_function, made.reasons, str(made)) == (0, {}, {}, "")
    subject.run()


# What misses: the real causes, each with what would hit instead.


def test_a_debug_print_left_in_misses_in_each_call():
    made = fast_path(call(left_in, X))
    assert made.by_function == {"left_in": 1}
    assert made.places == {"left_in": line(left_in)}
    assert "DebugEffect" in made.reasons["left_in"]
    assert "jax.debug.print" in made.reasons["left_in"]


def test_misses_are_counted_by_function_and_call():
    def steps(x):
        return left_in(left_in(double(x))), other(x)

    other = jax.jit(lambda x: io_callback(lambda y: np.asarray(y), x, x))
    made = fast_path(call(steps, X))
    assert (made.misses, made.by_function) == (3, {"left_in": 2, "lambda": 1})
    assert list(made.by_function) == ["left_in", "lambda"]
    assert "IOEffect" in made.reasons["lambda"]


def test_an_argument_that_lies_elsewhere_is_moved_in_each_call():
    split = jax.jit(lambda x: x * 2, in_shardings=SPLIT)

    def train(x):
        return split(x)

    made = fast_path(call(train, X))
    moved = f"{MOVED}: args[0]"
    assert (made.by_function, made.reasons) == ({moved: 1}, {moved: PLACED})
    assert made.places == {moved: f"{HERE}:{train.__code__.co_firstlineno + 1}"}
    assert fast_path(call(train, jax.device_put(X, SPLIT))).misses == 0


def test_a_gradient_outside_of_jit_misses_in_each_call():
    def gradient(x):
        return jax.grad(lambda y: double(y)[0])(x)

    made = fast_path(call(gradient, X))
    assert made.by_function["double"] == 1
    assert "jax.grad" in made.reasons["double"]
    assert fast_path(call(jax.jit(gradient), X)).misses == 0


def test_a_signature_whose_first_call_raised_misses_for_ever():
    failing = [True]

    @jax.jit
    def step(x):
        if failing:
            raise ValueError("no batch yet")
        return x + 1

    with pytest.raises(ValueError, match="no batch yet"):
        step(X)
    failing.clear()
    made = fast_path(call(step, X))
    assert (made.by_function, made.reasons) == ({"step": 1}, {"step": ERROR_BEFORE})
    step.clear_cache()
    assert fast_path(call(step, X)).misses == 0


@pytest.mark.parametrize(("misses_in", "misses"), [(lambda run: run <= 3, 0), (lambda run: run % 2, 1)])
def test_a_miss_in_some_of_the_runs_counts_unless_it_is_of_the_first_ones_only(misses_in, misses):
    runs = []

    def step(x):
        runs.append(1)
        return left_in(x) if misses_in(len(runs)) else double(x)

    double(X)
    left_in(X)
    assert fast_path(call(step, X)).misses == misses


# The metric, and what goes wrong.


def test_the_metric_is_a_count_with_functions_and_places():
    (metric,) = fast_path(call(left_in, X)).metrics("train")
    assert (metric.name, metric.value, metric.unit, metric.kind) == ("train fast-path misses", 1, "misses", "count")
    assert metric.detail == {"left_in": 1}
    assert metric.places == {"left_in": line(left_in)}


def test_a_miss_inside_a_callback_does_not_count_in_whichever_thread_it_runs():
    # A stand-in: JAX warns against calling a jitted function in a callback.
    missing = {"__name__": "jax._src.pjit"}
    exec("def cache_miss(): pass", missing)

    def called(x):
        missing["cache_miss"]()
        return np.asarray(x)

    def beside(x):
        missing["cache_miss"]()
        return jitted(x)

    jitted = jax.jit(lambda x: jax.pure_callback(called, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    assert fast_path(call(jitted, X)).misses == 0
    assert fast_path(call(beside, X)).misses == 1
