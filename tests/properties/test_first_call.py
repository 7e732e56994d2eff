"""`measure.first_call` over generated programs: loops, branches, jitted functions, custom derivatives."""

import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsuite.measure.call import call
from perfsuite.measure.first_call.first_call import Jaxprs, first_call

X = jnp.ones(3)
TABLES = [jnp.arange(3.0 * rows).reshape(rows, 3) for rows in (1, 2, 5)]


def plus(table):
    return lambda x: x + table.sum(0)


def with_custom_derivative(body):
    wrapped = jax.custom_vjp(lambda x: body(x))
    wrapped.defvjp(lambda x: (body(x), x), lambda x, cotangent: (cotangent * x,))
    return wrapped


def in_sequence(bodies):
    def run(x):
        for body in bodies:
            x = body(x)
        return x

    return run


LEAVES = [jnp.sin, lambda x: x + 1, lambda x: jnp.where(x > 0, x, 0), lambda x: x * jnp.linalg.norm(x)]
LEAVES += map(plus, TABLES)
WRAPPERS = [
    jax.jit,
    with_custom_derivative,
    jax.checkpoint,
    lambda body: lambda x: jax.lax.scan(lambda carry, _: (body(carry), None), x, None, length=2)[0],
    lambda body: lambda x: jax.lax.cond(x.sum() > 0, body, lambda y: y, x),
    lambda body: lambda x: jax.lax.while_loop(lambda carry: carry.sum() < 0, body, x),
    lambda body: lambda x: jax.grad(lambda y: body(y).sum())(x),
]

# Not under `jax.grad`: a derivative of a loop that may run forever is an error.
programs = st.recursive(
    st.sampled_from(LEAVES),
    lambda bodies: (
        st.lists(bodies, min_size=1, max_size=3).map(in_sequence)
        | st.tuples(st.sampled_from(WRAPPERS[:-2]), bodies).map(lambda pair: pair[0](pair[1]))
    ),
    max_leaves=5,
)
outermost = st.tuples(st.sampled_from(WRAPPERS), programs).map(lambda pair: pair[0](pair[1]))


def inside(equation):
    """The jaxprs of an equation, with the constants of each."""
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda node: hasattr(node, "eqns")):
        if hasattr(value, "eqns"):
            yield getattr(value, "jaxpr", value), getattr(value, "consts", ())


def plain_count(jaxpr):
    return sum(1 + sum(plain_count(inner) for inner, _ in inside(equation)) for equation in jaxpr.eqns)


def plain_constants(jaxpr, constants):
    found = {id(each): each for each in constants if each.shape}
    for equation in jaxpr.eqns:
        for inner, inner_constants in inside(equation):
            found |= plain_constants(inner, inner_constants)
    return found


@settings(max_examples=100)
@given(outermost)
def test_equations_and_constants_are_those_of_a_plain_count(program):
    jaxpr = jax.make_jaxpr(program)(X)
    assert Jaxprs().equations(jaxpr).total() == plain_count(jaxpr.jaxpr)
    arrays = plain_constants(jaxpr.jaxpr, jaxpr.consts).values()
    assert sorted(each.bytes for each in Jaxprs().constants(jaxpr)) == sorted(each.size * 4 for each in arrays)


@settings(max_examples=15)
@given(outermost)
def test_a_call_is_counted_as_its_jaxpr_is_and_again_the_same(program):
    jitted = jax.jit(program)
    counted, again = (first_call(call(jitted, X), compiles=False) for _ in range(2))
    assert counted.equations == plain_count(jitted.trace(X).jaxpr.jaxpr)
    assert counted.calls_by_line.total() == counted.trace_calls
    unlike = [field for field in ("trace_calls", "lowering_calls", "traces", "equations") if
              getattr(counted, field) != getattr(again, field)]  # fmt: skip
    assert not unlike
