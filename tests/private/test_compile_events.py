"""JAX still says when it traces, and `perfsuite/measure/private/compile_events.py` counts what JAX's own tests count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import test_util

from perfsuite.measure.compiles import compiles

X = jnp.ones(3)


def cubed(x):
    return (x**3).sum()


def effectful(x):
    jax.debug.callback(lambda value: None, x)
    return x + 1


def scanned(x):
    return jax.lax.scan(lambda carry, y: (carry + jnp.where(y > 0, y, 0), None), 0.0, x)[0]


cubing, scanning = jax.jit(cubed), jax.jit(scanned)

CALLS = {
    "jit": lambda: cubing(X),
    "jit made anew": lambda: jax.jit(cubed)(X),
    "jit of a lambda": lambda: jax.jit(lambda x: x + 1)(X),
    "effects, made anew": lambda: jax.jit(effectful)(X),
    "lower": lambda: jax.jit(cubed).lower(X),
    "eval_shape": lambda: jax.eval_shape(cubed, X),
    "make_jaxpr": lambda: jax.make_jaxpr(cubed)(X),
    "checkpoint": lambda: jax.vjp(jax.checkpoint(lambda x: jnp.sin(x)), X),
    "grad": lambda: jax.grad(cubing)(X),
    "grad, made anew": lambda: jax.grad(jax.jit(cubed))(X),
    "grad of a lambda": lambda: jax.grad(jax.jit(lambda x: cubed(x)))(X),
    "second derivative": lambda: jax.hessian(cubing)(X),
    "vmap": lambda: jax.vmap(jax.jit(lambda x: x * 2))(X),
    "linearize": lambda: jax.linearize(cubing, X)[1](X),
    "scan in jit": lambda: scanning(X),
    "scan alone": lambda: scanned(X),
    "cond alone": lambda: jax.lax.cond(True, jnp.sin, jnp.cos, X),
    "eager": lambda: jnp.linalg.norm(X + np.float32(1)),
    "random": lambda: jax.random.normal(jax.random.key(0), (5,)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_traces_are_those_that_jax_counts(call):
    for _ in range(3):
        with test_util.count_jit_tracing_cache_miss() as theirs, compiles.count() as ours:
            call()
        assert ours.traces + ours.inner_traces == theirs(), "JAX no longer says when it traces"


def test_a_program_that_jaxs_cache_of_compiled_programs_answers_is_no_compile():
    """Though JAX's own counter counts it: the lowering of an abstract mesh asks that cache each time."""
    mesh = jax.make_mesh((2,), ("a",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    half = jax.sharding.NamedSharding(mesh.abstract_mesh, jax.P("a"))
    traced = jax.jit(lambda x: x * 7, in_shardings=half).trace(jax.ShapeDtypeStruct((4,), np.float32, sharding=half))
    lowered = traced.lower(lowering_platforms=(jax.default_backend(),))
    counts = []
    for _ in range(2):
        with test_util.count_jit_compilation_cache_miss() as asked, compiles.count() as counted:
            lowered.compile(device_assignment=tuple(mesh.devices.flat))
        counts.append((counted.compiles, asked()))
    assert counts == [(1, 1), (0, 1)]


def test_what_is_traced_inside_is_counted_apart():
    with compiles.count() as counted:
        jax.jit(lambda x: scanned(x))(X)
    assert counted.traces == 1
    assert counted.inner_traces >= 1, "what is_inner looks for on the stack has another name now"
