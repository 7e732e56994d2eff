"""`first_call`: what the first call of a function takes, by line."""

import contextlib
import functools
import gc
import inspect
import json
import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from perfsuite.measure.call import call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warm import warm
from perfsuite.measure.errors import MeasurementError, RecompilationError
from perfsuite.measure.first_call.first_call import COUNTED, Jaxprs, apart, first_call, stage_seconds
from perfsuite.measure.private import compile_events

X = jnp.ones((3, 4))
TABLE = jnp.ones((8, 4))


def layers(x, number=4):
    for _ in range(number):
        x = jnp.where(x > 0, jnp.sin(x), x) + TABLE.sum()
    return x


def helper(x):
    return jnp.tanh(x) * 2


def unlike(x):
    return jnp.linalg.norm(helper(x)) + jnp.mean(x)


def values(counted):
    return {field: counted.value(field) for field in COUNTED}


def alike(found, others):
    """The same; calls to 1 %, which is what `COUNTED` promises of them."""
    calls = {"trace_calls", "lowering_calls"}
    return all(found[field] == pytest.approx(others[field], rel=0.01 * (field in calls)) for field in COUNTED)


def count(fn, *args, **kwargs):
    return first_call(call(fn, *args, **kwargs), compiles=False)


# What is counted.


def test_everything_that_tracing_and_lowering_take_is_counted():
    counted = count(jax.jit(layers), X)
    assert counted.trace_calls > counted.lowering_calls > 100
    assert counted.traces == sum(counted.traces_by_function.values()) >= 2
    assert counted.equations == counted.equations_by_line.total()
    assert counted.stablehlo_bytes > 1000
    assert [(each.array, each.bytes) for each in counted.constants] == [("float32[8,4]", 128)]
    assert counted.constant_bytes == 128
    assert counted.programs == 1


def test_calls_while_tracing_are_split_by_line_without_a_rest():
    counted = count(jax.jit(layers), X)
    assert counted.calls_by_line.total() == counted.trace_calls
    (line, most), *_ = counted.calls_by_line.most_common()
    assert line.function == "layers"
    assert most > 0.8 * counted.trace_calls


def test_large_constants_are_no_part_of_the_bytes_of_the_program():
    def made(rows):
        table = jnp.arange(4.0 * rows).reshape(rows, 4)
        return count(jax.jit(lambda x: x @ table.T), X)

    small, large = made(10), made(10_000)
    assert large.constant_bytes == 160_000
    assert large.stablehlo_bytes < small.stablehlo_bytes + 1000


def test_seconds_of_the_compiler_are_there_where_it_runs():
    with_compiler = first_call(call(jax.jit(layers), X))
    assert with_compiler.compile_seconds is not None
    assert count(jax.jit(layers), X).compile_seconds is None
    assert [each.name for each in with_compiler.seconds("step")] == [
        "step trace seconds",
        "step lowering seconds",
        "step compile seconds",
    ]


# The counts are the same.


def test_counts_do_not_depend_on_what_was_traced_before():
    jitted = jax.jit(layers)
    first = values(count(jitted, X))
    jitted(X)
    jax.jit(unlike)(X)
    assert alike(values(count(jitted, X)), first)
    jax.clear_caches()
    assert alike(values(count(jitted, X)), first)


SCRIPT = """
import json, sys
import jax, jax.numpy as jnp
from perfsuite.measure.call import call
from perfsuite.measure.first_call.first_call import COUNTED, first_call

TABLE = jnp.ones((8, 4))

@jax.jit
def step(params, x):
    def loss(params):
        y = x
        for layer in params.values():
            y = jax.nn.gelu(y @ layer["kernel"] + layer["bias"])
        return jnp.mean(jnp.where(y > 0, y, 0) ** 2) + jnp.linalg.norm(TABLE)
    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

params = {f"layer{n}": {"kernel": jnp.ones((4, 4)), "bias": jnp.ones(4)} for n in range(3)}
x = jnp.ones((2, 4))
if len(sys.argv) > 1:
    step(params, x)
    jnp.linalg.norm(jnp.ones((5, 5)))
counted = first_call(call(step, params, x), compiles=False)
print(json.dumps({field: counted.value(field) for field in COUNTED}))
"""


def test_counts_are_the_same_in_fresh_processes_with_other_hash_seeds(tmp_path):
    script = tmp_path / "counts.py"
    script.write_text(SCRIPT)
    printed = [
        subprocess.run(
            [sys.executable, script, *history],
            env={**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, history in (("0", []), ("1", []), ("20", ["traced before"]))
    ]
    first, *others = map(json.loads, printed)
    if jax.__version_info__ < (0, 12):
        assert all(each == first for each in others), printed
    else:  # it looks through sets of dtypes, in an order that depends on the hash seed
        assert all(alike(each, first) for each in others), printed


# Which functions.


class Step(eqx.Module):
    scale: jax.Array

    @eqx.filter_jit
    def __call__(self, x):
        return x * self.scale

    @functools.partial(jax.jit, static_argnums=2)
    def top(self, x, n):
        return jnp.sort(x)[:n]


def test_functions_of_jax_equinox_and_nnx_and_what_calls_them():
    linear = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    jitted = jax.jit(layers)
    calls = {
        "jit": call(jitted, X),
        "partial": call(functools.partial(jitted), X),
        "filter_jit": call(eqx.filter_jit(layers), X),
        "method": call(Step(jnp.ones(4)), X),
        "bound method": call(Step(jnp.ones(4)).__call__, X),
        "bound method with static arguments": call(Step(jnp.ones(4)).top, X, 3),
        "nnx.jit": call(nnx.jit(lambda model, x: model(x)), linear, X),
        "warm": call(warm(jitted, over=[(X,)]), X),
        "no jit": call(layers, X),
        "several": call(lambda x: jitted(helper(x)), X),
        "grad outside": call(lambda x: jax.grad(lambda y: jitted(y).sum())(x), X),
    }
    for name, each in calls.items():
        counted = first_call(each, compiles=False)
        assert counted.trace_calls > 0, name
        assert counted.equations > 0, name
        assert counted.stablehlo_bytes > 0, name
    assert first_call(calls["no jit"], compiles=False).programs > 4


def test_a_call_that_donates_what_it_does_not_carry_is_an_error():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    with pytest.raises(MeasurementError, match=r"perf\.first_call\(lambda\): .*args\[0\] was deleted"):
        count(lambda x: step(x), jnp.zeros(3))


def test_a_call_that_traces_nothing_is_an_error():
    with pytest.raises(MeasurementError, match="traces and lowers nothing; jit the function"):
        count(len, [1, 2])


# What it leaves behind.


def test_jax_has_traced_nothing_in_a_context_of_its_own():
    """What all of it rests on: nothing has to be cleared."""
    traced = []
    jitted = jax.jit(lambda x: traced.append(x) or x + 1)
    for context in (contextlib.nullcontext(), apart(), apart(), contextlib.nullcontext()):
        with context:
            jitted(X)
            jitted(X)
    assert len(traced) == 3


def test_no_context_is_told_of_what_is_measured():
    jitted = jax.jit(lambda x: layers(x))
    with compiles.count() as counted, compiles.forbid():
        first_call(call(jitted, X))
    assert (counted.traces, counted.lowerings, counted.compiles) == (0, 0, 0)
    with compiles.count() as counted:
        first_call(call(jitted, X))
        jitted(X)
    assert (counted.traces, counted.lowerings, counted.compiles) == (1, 1, 1)


def test_a_later_recompilation_is_compared_with_the_calls_of_the_test():
    jitted = jax.jit(layers)
    with compiles.observe():
        jitted(X)
        count(jitted, jnp.ones((5, 4)))
        longer = jnp.ones((5, 4))
        with pytest.raises(RecompilationError, match=r"args\[0\]: shape was \(3, 4\), is \(5, 4\)"), compiles.forbid():
            jitted(longer)


def test_an_error_in_the_function_gives_everything_back():
    def fails(x):
        raise RuntimeError("stop")

    def mine(frame, event, arg):
        pass

    sys.setprofile(mine)
    try:
        with pytest.raises(RuntimeError, match="stop"):
            count(jax.jit(fails), X)
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert gc.isenabled()
    with compiles.count() as counted:
        jax.jit(helper)(X)
    assert counted.traces == 1


# The metrics.


def test_equations_are_named_by_function_and_placed_by_line():
    counted = count(jax.jit(layers), X)
    parts = counted.parts("equations")
    name = f"{os.path.basename(__file__)}:layers"
    assert parts.amounts == {name: counted.equations}
    assert f":{layers.__code__.co_firstlineno + 2} (" in parts.places[name]


def test_a_donated_state_is_left_alone_by_a_jitted_function():
    state = jnp.ones(3)
    count(jax.jit(lambda x: x + 1, donate_argnums=0), state)
    assert not state.is_deleted()


def test_of_a_stage_inside_another_only_the_outer_one_has_seconds():
    trace, lower, _ = (stage.text for stage in compile_events._STAGES)
    with stage_seconds() as seconds_of:
        for event in (trace, lower):
            jax.monitoring.record_scalar(event, 0)
        for event in (lower, trace):
            jax.monitoring.record_event_duration_secs(event, 0)
    assert list(seconds_of) == ["trace"]


# The equations and constants of a jaxpr, by line.


VECTOR = jnp.ones(3)
ROWS = jnp.arange(12.0).reshape(4, 3)


def line_of(text):
    lines, start = inspect.getsourcelines(inspect.getmodule(line_of))
    return next(start + place for place, line in enumerate(lines, 1 - start) if line.strip().startswith(text))


def counted(fn, *args):
    """Equations by line and primitive."""
    found = Jaxprs().equations(jax.make_jaxpr(fn)(*args))
    return {(line.line if line else None, primitive): count for (line, primitive), count in found.items()}


def constants(fn, *args):
    jaxpr = jax.make_jaxpr(fn)(*args)
    return Jaxprs().constants(jaxpr)


def chain(x):
    for _ in range(5):
        x = jnp.sin(x) * 2
    return x


def test_equations_are_counted_by_line_and_primitive():
    line = line_of("x = jnp.sin(x) * 2")
    assert counted(chain, VECTOR) == {(line, "sin"): 5, (line, "mul"): 5}


def by_a_library(x):
    return jnp.where(x > 0, x, 0.0)


def test_what_a_library_traces_by_itself_counts_for_the_line_that_calls_it():
    line = line_of("return jnp.where(x > 0, x, 0.0)")
    assert {place for place, _ in counted(by_a_library, VECTOR)} == {line}


def test_equations_that_no_line_of_the_user_makes_have_none():
    assert {place for place, _ in counted(jnp.linalg.norm, VECTOR)} == {None}


def looked_up(x):
    y = x + 1
    return y @ ROWS[:3]


def test_a_constant_has_its_type_its_bytes_and_the_line_that_uses_it():
    (constant,) = constants(looked_up, VECTOR)
    assert (constant.array, constant.bytes) == ("float32[4,3]", 48)
    assert constant.line.line == line_of("return y @ ROWS[:3]")
    assert str(constant).startswith("float32[4,3] of 48 bytes at ")


def in_a_loop(x):
    def body(carry, _):
        return carry + ROWS[0], None

    return jax.lax.scan(body, x, None, length=3)[0]


def test_the_line_of_a_constant_is_that_inside_of_the_loop():
    (constant,) = constants(in_a_loop, VECTOR)
    assert constant.line.line == line_of("return carry + ROWS[0], None")


@jax.jit
def closing_over(x):
    return x + ROWS.sum()


def test_of_an_array_that_is_returned_too_the_line_that_uses_it_is_told():
    (constant,) = constants(lambda x: (closing_over(x), ROWS), VECTOR)
    assert constant.line.line == line_of("return x + ROWS.sum()")


def test_arrays_of_numpy_are_constants_and_single_numbers_are_not():
    table = np.ones((5, 3), np.int8)
    found = constants(lambda x: x + jnp.float32(2) + 3.0 + jnp.asarray(table)[0], VECTOR)
    assert [(each.array, each.bytes) for each in found] == [("int8[5,3]", 15)]


def test_a_jaxpr_that_is_in_many_places_is_looked_at_once():
    """Twenty jitted functions, each of which calls the last one twice: a million equations."""
    fn = jnp.sin
    for _ in range(20):
        fn = jax.jit(lambda x, fn=fn: fn(fn(x)))
    assert Jaxprs().equations(jax.make_jaxpr(fn)(1.0)).total() > 2**20
    assert Jaxprs().folding(jax.make_jaxpr(lambda: fn(MATRIX))()).flops.total() == 20 * 2**20


# What the compiler computes.

MATRIX = np.ones((4, 5), np.float32)


def scanned(x):
    constant, _ = jax.lax.scan(lambda c, _: (c * 2.0, None), jnp.ones(3), None, length=7)
    return jax.lax.scan(lambda c, _: (c * constant + jnp.sin(jnp.arange(3.0)), None), x, None, length=7)[0]


FOLDED = {
    "an argument": (lambda x: jnp.sin(x) * 2.0, 0, 0),
    "only broadcasts": (lambda x: x + jnp.zeros((100, 3)), 0, 0),
    "single numbers": (lambda x: x + jnp.sin(2.0), 0, 0),
    "a closed-over table": (lambda x: x + jnp.tanh(MATRIX).sum(), 20 + 20, 80 + 4),
    "a product": (lambda x: x + (MATRIX @ jnp.ones((5, 3))).sum(), 2 * 4 * 5 * 3 + 12, 48 + 4),
    "a window": (lambda x: x * jax.lax.cumsum(jnp.arange(9.0)).max(), 9 + 9, 36 + 4),
    "a transpose": (lambda x: x + jnp.transpose(MATRIX)[:3, 0], 0, 80 + 12),
    "in a jitted function": (lambda x: x + jax.jit(lambda y, z: (y, jnp.cos(z)))(x, MATRIX[0])[1].sum(), 5 + 5, 20 + 4),
    "in loops": (scanned, 7 * 3, 7 * 12),
    "a causal mask": (lambda x: x + (jnp.arange(9)[:, None] >= jnp.arange(9)).sum(), 0, 0),
}


@pytest.mark.parametrize(("fn", "flops", "size"), FOLDED.values(), ids=FOLDED)
def test_what_depends_on_no_argument_has_its_flop_and_bytes(fn, flops, size):
    folding = Jaxprs().folding(jax.make_jaxpr(fn)(VECTOR))
    assert (folding.flops.total(), folding.bytes.total(), folding.outputs) == (flops, size, (0,))


def test_a_convolution_of_constants_has_two_flop_for_each_product():
    def convolved(x):
        return x + jax.lax.conv(jnp.ones((1, 2, 8, 8)), jnp.ones((4, 2, 3, 3)), (1, 1), "VALID").sum()

    folding = Jaxprs().folding(jax.make_jaxpr(convolved)(VECTOR))
    assert folding.flops == {
        (next(iter(folding.flops))[0], "conv_general_dilated"): 2 * (4 * 6 * 6) * (2 * 3 * 3),
        (next(iter(folding.flops))[0], "reduce_sum"): 4 * 6 * 6,
    }
    assert {line.line for line, _ in folding.bytes} == {line_of("return x + jax.lax.conv(")}


def test_what_is_folded_is_counted_by_line_and_gated_as_a_size():
    counted = count(jax.jit(lambda x: x + jnp.tanh(MATRIX).sum()), VECTOR)
    assert (counted.folded_flops, counted.folded_bytes) == (40, 84)
    metrics = counted.metrics("step")
    assert [(metrics[field].value, metrics[field].kind) for field in ("folded_flops", "folded_bytes")] == [
        (40, "size"),
        (84, "size"),
    ]
    assert list(metrics["folded_flops"].detail.values()) == [40]
