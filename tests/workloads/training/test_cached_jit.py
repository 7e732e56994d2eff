import concurrent.futures
import functools
import gc
import warnings
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.workloads.training.cached_jit import cached_filter_jit

X = jnp.arange(3.0)
JITS = {"filter_jit": eqx.filter_jit, "cached_filter_jit": cached_filter_jit}
both = pytest.mark.parametrize("jit", JITS.values(), ids=JITS.keys())
"""What is tested of both is promised by Equinox, and kept."""


class Traced:
    """Counts how often `fn` is traced."""

    def __init__(self, fn):
        self.count = 0

        @functools.wraps(fn)
        def counting(*args, **kwargs):
            self.count += 1
            return fn(*args, **kwargs)

        self.fn = counting


# What is static and what is traced


@both
def test_arrays_are_traced_and_everything_else_is_static(jit):
    traced = Traced(lambda x, n: x + n)
    f = jit(traced.fn)
    assert np.array_equal(f(X, 1), X + 1)
    assert np.array_equal(f(X + 1, 1), X + 2)
    assert traced.count == 1
    assert np.array_equal(f(X, 2), X + 2)
    assert traced.count == 2


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (1, True), (0.0, -0.0), (0j, complex(0.0, -0.0))], ids=str)
def test_equal_static_leaves_that_differ_in_type_or_sign_compile_apart(first, second):
    f = cached_filter_jit(lambda x, n: (x, repr(n)))
    assert f(X, first)[1] == repr(first)
    assert f(X, second)[1] == repr(second)


def test_unhashable_static_leaf_is_named():
    with pytest.raises(ValueError, match=r"a bytearray is neither an array.*bytearray\(b'x'\)"):
        cached_filter_jit(lambda x, s: x)(X, bytearray(b"x"))


# Arguments


@both
def test_one_argument_by_position_and_by_keyword_is_one_program(jit):
    traced = Traced(lambda x, y=2, *, z=3: x * y + z)
    f = jit(traced.fn)
    assert np.array_equal(f(X, 5), f(X, y=5))
    assert np.array_equal(f(x=X, y=5), f(y=5, x=X))
    assert traced.count == 1
    assert np.array_equal(f(X, z=X), X * 2 + X)


# Outputs


@both
def test_static_outputs_belong_to_the_program_that_ran(jit):
    f = jit(lambda x: (x, x.shape, jax.config.jax_default_matmul_precision))
    for _ in range(2):
        assert f(X)[1:] == ((3,), None)
        with jax.default_matmul_precision("float32"):
            assert f(X)[1:] == ((3,), "float32")
        assert f(X[:2])[1:] == ((2,), None)


# What can be wrapped


@both
def test_wrapping_again_compiles_nothing_again(jit):
    def plain(x):
        calls.append(1)
        return x

    class Module(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            calls.append(1)
            return x * self.weight

    calls = []
    for _ in range(3):
        jit(plain)(X)
    assert len(calls) == 1
    for weight in (1.0, 2.0):
        assert np.array_equal(jit(Module(jnp.array(weight)))(X), weight * X)
    assert len(calls) == 2


# Donation


@both
@pytest.mark.parametrize(
    ("donate", "first", "second"),
    [
        ("none", False, False),
        ("all", True, True),
        ("all-except-first", False, True),
        ("warn", True, True),
        ("warn-except-first", False, True),
    ],
)
def test_donation_strings_donate_what_they_say(jit, donate, first, second):
    f = jit(lambda x, tree, *, z: (x + 1, {"y": tree["y"] + 1}, z + 1), donate=donate)
    for by_keyword in (False, True):
        x, y, z = X + 0, X + 0, X + 0
        out = f(z=z, x=x, tree={"y": y}) if by_keyword else f(x, {"y": y}, z=z)
        assert (x.is_deleted(), y.is_deleted(), z.is_deleted()) == (first, second, second)
        assert np.array_equal(out[2], X + 1)


@both
def test_unusable_donations_warn_or_not_as_asked(jit):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jit(lambda x: x[0], donate="all")(X + 0)
        assert caught == []
        jit(lambda x: x[0], donate="warn")(X + 0)
    assert ["donated buffers were not usable" in str(warning.message) for warning in caught] == [True]


# Inside other transformations


@both
def test_inside_jit_grad_vmap_scan_and_itself(jit):
    f = jit(lambda x, n, tag="t": (jnp.sum(x**n), tag))

    def value(x):
        return f(x, 2)[0]

    assert float(jax.jit(value)(X)) == 5
    assert np.array_equal(jax.grad(value)(X), 2 * X)
    assert np.array_equal(jax.jit(jax.vmap(jax.grad(value)))(X[None]), 2 * X[None])
    assert float(jax.lax.scan(lambda c, _: (c + value(X), None), 0.0, length=3)[0]) == 15
    assert jit(lambda x: f(x, 2))(X)[1] == "t"
    assert jax.eval_shape(value, X).shape == ()
    assert float(value(X)) == 5


# Waiting, errors, ahead of time


def test_returns_before_the_device_is_done():
    """A loaded machine may have the result ready early once."""
    f = cached_filter_jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: x @ x / 600, x))
    x = jax.block_until_ready(f(jnp.eye(600)))
    assert any(not f(x).is_ready() for _ in range(3))


def test_ahead_of_time_program_takes_the_functions_own_arguments():
    f = cached_filter_jit(lambda x, n, tag="a": (x * n, tag))
    lowered = f.lower(X, 2)
    assert "multiply" in lowered.as_text()
    compiled = lowered.compile()
    assert compiled.compiled.cost_analysis()["flops"] > 0
    out, tag = compiled(X + 1, 2)
    assert np.array_equal(out, (X + 1) * 2)
    assert tag == "a"
    with pytest.raises(TypeError, match="other static leaves"):
        compiled(X, 3)


# Memory and threads


def test_a_function_takes_its_programs_along_when_it_goes():
    def f(x):
        return x + 1

    cached_filter_jit(f)(X)
    reference = weakref.ref(f)
    del f
    gc.collect()
    assert reference() is None


def test_threads_that_call_at_once_get_their_own_results():
    f = cached_filter_jit(lambda x, n: (x * n, n))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: (i, *f(jnp.full(3, i), i % 4)), range(64)))
    for i, out, static in results:
        assert static == i % 4
        assert np.array_equal(out, np.full(3, i * (i % 4)))


def test_what_cannot_be_wrapped_is_an_error():
    with pytest.raises(TypeError, match="needs a callable, got 3"):
        cached_filter_jit(3)
    with pytest.raises(ValueError, match=r"donate must be one of 'all', .*, got 'most'"):
        cached_filter_jit(lambda x: x, donate="most")


@pytest.mark.filterwarnings("default")
def test_error_if_raises_where_the_result_is_waited_for():
    f = cached_filter_jit(lambda x: eqx.error_if(x, jnp.any(x > 1), "too large"))
    assert np.array_equal(f(X[:1]), X[:1])
    with pytest.raises(jax.errors.JaxRuntimeError, match="too large"):
        jax.block_until_ready(f(X))
