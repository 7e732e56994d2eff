"""`measure.first_call.equations`: the equations of a jaxpr and the constants in it, by line."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np

from perfsuite.measure.first_call.first_call import Jaxprs

X = jnp.ones(3)
TABLE = jnp.arange(12.0).reshape(4, 3)


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


def layers(x):
    for _ in range(5):
        x = jnp.sin(x) * 2
    return x


def test_equations_are_counted_by_line_and_primitive():
    line = line_of("x = jnp.sin(x) * 2")
    assert counted(layers, X) == {(line, "sin"): 5, (line, "mul"): 5}


def by_a_library(x):
    return jnp.where(x > 0, x, 0.0)


def test_what_a_library_traces_by_itself_counts_for_the_line_that_calls_it():
    line = line_of("return jnp.where(x > 0, x, 0.0)")
    assert {place for place, _ in counted(by_a_library, X)} == {line}


def test_equations_that_no_line_of_the_user_makes_have_none():
    assert {place for place, _ in counted(jnp.linalg.norm, X)} == {None}


def looked_up(x):
    y = x + 1
    return y @ TABLE[:3]


def test_a_constant_has_its_type_its_bytes_and_the_line_that_uses_it():
    (constant,) = constants(looked_up, X)
    assert (constant.array, constant.bytes) == ("float32[4,3]", 48)
    assert constant.line.line == line_of("return y @ TABLE[:3]")
    assert str(constant).startswith("float32[4,3] of 48 bytes at ")


def in_a_loop(x):
    def body(carry, _):
        return carry + TABLE[0], None

    return jax.lax.scan(body, x, None, length=3)[0]


def test_the_line_of_a_constant_is_that_inside_of_the_loop():
    (constant,) = constants(in_a_loop, X)
    assert constant.line.line == line_of("return carry + TABLE[0], None")


@jax.jit
def closing_over(x):
    return x + TABLE.sum()


def test_of_an_array_that_is_returned_too_the_line_that_uses_it_is_told():
    (constant,) = constants(lambda x: (closing_over(x), TABLE), X)
    assert constant.line.line == line_of("return x + TABLE.sum()")


def test_arrays_of_numpy_are_constants_and_single_numbers_are_not():
    table = np.ones((5, 3), np.int8)
    found = constants(lambda x: x + jnp.float32(2) + 3.0 + jnp.asarray(table)[0], X)
    assert [(each.array, each.bytes) for each in found] == [("int8[5,3]", 15)]


def test_a_jaxpr_that_is_in_many_places_is_looked_at_once():
    """Twenty jitted functions, each of which calls the last one twice: a million equations."""
    fn = jnp.sin
    for _ in range(20):
        fn = jax.jit(lambda x, fn=fn: fn(fn(x)))
    assert Jaxprs().equations(jax.make_jaxpr(fn)(1.0)).total() > 2**20
