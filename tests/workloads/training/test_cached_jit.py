import concurrent.futures
import dataclasses
import functools
import gc
import inspect
import warnings
import weakref
from typing import Any

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


class Scale(eqx.Module):
    weight: jax.Array
    power: int
    name: str = eqx.field(static=True, default="scale")

    def __call__(self, x):
        return (self.weight * x) ** self.power

    @cached_filter_jit
    def jitted(self, x, *, shift=0):
        """Documented."""
        return self(x) + shift


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


@both
def test_numpy_arrays_and_scalars_are_arrays(jit):
    traced = Traced(lambda x: x * 2)
    f = jit(traced.fn)
    f(np.ones(3, np.float32))
    f(jnp.ones(3))
    assert traced.count == 1
    assert isinstance(f(np.float32(3)), jax.Array)


@both
def test_structures_that_alternate_are_both_remembered(jit):
    traced = Traced(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree))
    f = jit(traced.fn)
    for _ in range(3):
        assert f([X, 2])[1] == 4
        assert np.array_equal(f({"a": X})["a"], 2 * X)
        assert f([X, 3])[1] == 6
    assert traced.count == 3


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (1, True), (0.0, -0.0), (0j, complex(0.0, -0.0))], ids=str)
def test_equal_static_leaves_that_differ_in_type_or_sign_compile_apart(first, second):
    f = cached_filter_jit(lambda x, n: (x, repr(n)))
    assert f(X, first)[1] == repr(first)
    assert f(X, second)[1] == repr(second)


def test_all_not_a_numbers_compile_once():
    traced = Traced(lambda x, n: x * n)
    f = cached_filter_jit(traced.fn)
    for text in ("nan", "nan", "-nan"):
        assert np.all(np.isnan(f(X, float(text))))
    assert traced.count == 1


@both
def test_unhashable_static_leaf_is_an_error_every_time(jit):
    f = jit(lambda x, s: x)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"set|hash"):
            f(X, {1, 2})


def test_unhashable_static_leaf_is_named():
    with pytest.raises(ValueError, match=r"a bytearray is neither an array.*bytearray\(b'x'\)"):
        cached_filter_jit(lambda x, s: x)(X, bytearray(b"x"))


@both
def test_static_fields_are_compared_by_value_and_need_not_be_hashable(jit):
    class Holder(eqx.Module):
        x: jax.Array
        extra: Any = eqx.field(static=True)

    class Incomparable:
        def __eq__(self, other):
            raise RuntimeError("mine")

    f = jit(lambda h: (h.x, h.extra))
    for extra in (1, [1, 2], [1, 3], [1, 2]):
        assert f(Holder(X, extra))[1] == extra
    for _ in range(2):
        with pytest.raises(ValueError, match=r"[Ee]quality|comparable"):
            f(Holder(X, Incomparable()))
    assert f(Holder(X, [1, 2]))[1] == [1, 2]


@both
def test_shapes_dtypes_and_weak_types_compile_apart(jit):
    f = jit(lambda x: (x + 1, (x.shape, str(x.dtype), jax.typeof(x).weak_type)))
    for x in (X, X[:2], X.astype(jnp.bfloat16), jnp.asarray(2.0), jnp.float32(2.0), X):
        assert f(x)[1] == (x.shape, str(x.dtype), jax.typeof(x).weak_type)


def test_proxy_that_claims_to_be_an_array_is_asked_each_time():
    class Proxy:
        def __init__(self, claimed):
            self.claimed = claimed

        @property
        def __class__(self):
            return self.claimed

    f = cached_filter_jit(lambda p: 1)
    assert f(Proxy(int)) == 1
    with pytest.raises(TypeError, match="abstract array"):
        f(Proxy(np.ndarray))


# Arguments


@both
def test_one_argument_by_position_and_by_keyword_is_one_program(jit):
    traced = Traced(lambda x, y=2, *, z=3: x * y + z)
    f = jit(traced.fn)
    assert np.array_equal(f(X, 5), f(X, y=5))
    assert np.array_equal(f(x=X, y=5), f(y=5, x=X))
    assert traced.count == 1
    assert np.array_equal(f(X, z=X), X * 2 + X)


@both
def test_variadic_arguments_arrive_as_they_were_given(jit):
    f = jit(lambda *args, **kwargs: (args, kwargs))
    args, kwargs = f(X, 1, None, (X, "a"), b=2, a=X, empty={})
    assert eqx.tree_equal(args, (X, 1, None, (X, "a")))
    assert eqx.tree_equal(kwargs, {"b": 2, "a": X, "empty": {}})


@both
def test_wrong_arguments_are_a_type_error(jit):
    f = jit(lambda x, *, y=1: x)
    for args, kwargs in (((), {}), ((X, X), {}), ((X,), {"z": 1}), ((X,), {"x": X})):
        with pytest.raises(TypeError):
            f(*args, **kwargs)


@both
def test_no_arguments_and_no_leaves(jit):
    class Empty(eqx.Module):
        pass

    assert float(jit(lambda: jnp.ones(()))()) == 1
    assert jit(lambda: None)() is None
    assert isinstance(jit(lambda m, t, d: (m, t, d))(Empty(), (), {})[0], Empty)


@both
def test_one_array_in_two_places_is_traced_twice(jit):
    first, second = jit(lambda a, b: (a + 1, b + 2))(X, X)
    assert np.array_equal(first, X + 1)
    assert np.array_equal(second, X + 2)


# Outputs


@both
def test_outputs_may_be_anything(jit):
    unhashable = {1, 2}
    f = jit(lambda x: {"array": x, "none": None, "text": "a", "fn": jnp.sin, "set": unhashable, "m": Scale(x, 3)})
    for _ in range(2):
        out = f(X)
        assert np.array_equal(out["array"], X)
        assert (out["none"], out["text"], out["fn"], out["set"]) == (None, "a", jnp.sin, unhashable)
        assert eqx.tree_equal(out["m"], Scale(X, 3))


@both
def test_static_outputs_belong_to_the_program_that_ran(jit):
    f = jit(lambda x: (x, x.shape, jax.config.jax_default_matmul_precision))
    for _ in range(2):
        assert f(X)[1:] == ((3,), None)
        with jax.default_matmul_precision("float32"):
            assert f(X)[1:] == ((3,), "float32")
        assert f(X[:2])[1:] == ((2,), None)


@both
def test_numpy_output_becomes_a_jax_array(jit):
    assert isinstance(jit(lambda: np.ones(2, np.float32))(), jax.Array)


@both
def test_output_structure_may_differ_from_the_inputs(jit):
    f = jit(lambda tree: list(reversed(jax.tree.leaves(tree))))
    assert eqx.tree_equal(f({"a": X, "b": 1, "c": X + 1}), [X + 1, 1, X])


# What can be wrapped


def test_decorator_with_and_without_arguments():
    @cached_filter_jit
    def bare(x):
        return x + 1

    @cached_filter_jit(donate="none")
    def configured(x):
        return x + 1

    assert np.array_equal(bare(X), configured(X))


@both
def test_wrapper_looks_like_the_function(jit):
    def f(x, y: int = 2) -> str:
        """Documented."""

    wrapped = jit(f)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__qualname__) == (f.__name__, f.__doc__, f.__qualname__)
    assert wrapped.__wrapped__ is f
    assert inspect.signature(wrapped) == inspect.signature(f)


def test_repr_shows_the_function():
    assert repr(cached_filter_jit(len)) == "cached_filter_jit(<built-in function len>)"


def test_methods_of_modules_and_of_plain_classes():
    class Plain:
        @cached_filter_jit
        def method(self, x):
            return x + 1

    assert np.array_equal(Plain().method(X), X + 1)
    scale = Scale(jnp.array(2.0), 2)
    assert np.array_equal(scale.jitted(X, shift=1), 4 * X**2 + 1)
    assert Scale.jitted.__doc__ == "Documented."
    assert np.array_equal(Scale.jitted(scale, X), 4 * X**2)


@both
def test_callables_of_every_kind(jit):
    scale = Scale(jnp.array(2.0), 2)

    class Unhashable:
        def __call__(self, x):
            return 4 * x**2

    for callable_ in (
        scale,
        scale.__call__,
        functools.partial(Scale.__call__, scale),
        eqx.Partial(scale),
        jax.jit(lambda x: scale(x)),
        Unhashable(),
        Unhashable().__call__,
    ):
        assert np.array_equal(jit(callable_)(X), 4 * X**2)


@both
def test_arrays_of_a_wrapped_module_are_differentiated(jit):
    f = jit(Scale(jnp.array(2.0), 2))
    grads = eqx.filter_grad(lambda f: jnp.sum(f(X)))(f)
    assert [float(leaf) for leaf in jax.tree.leaves(eqx.filter(grads, eqx.is_array))] == [float(jnp.sum(4 * X**2))]


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


def test_what_cannot_be_wrapped_is_an_error():
    with pytest.raises(TypeError, match="needs a callable, got 3"):
        cached_filter_jit(3)
    with pytest.raises(ValueError, match=r"donate must be one of 'all', .*, got 'most'"):
        cached_filter_jit(lambda x: x, donate="most")


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
def test_arrays_of_a_wrapped_module_are_donated_with_the_rest(jit):
    def weight_after(donate):
        scale = Scale(jnp.arange(3.0), 1)
        apply = jit(eqx.Partial(lambda scale, x: (x, scale.weight + 1), scale), donate=donate)
        apply(X + 0)
        return scale.weight

    assert weight_after("all").is_deleted()
    assert not weight_after("none").is_deleted()


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


@both
def test_traced_by_grad_and_called_plainly_by_turns(jit):
    f = jit(lambda x: jnp.sum(x**2))
    for _ in range(2):
        assert np.array_equal(jax.grad(f)(X), 2 * X)
        assert float(f(X)) == 5


@both
def test_typed_random_keys_are_arrays(jit):
    f = jit(lambda key: (jax.random.split(key)[0], jax.random.normal(key)))
    key = jax.random.key(3)
    assert f(key)[0] == jax.random.split(key)[0]
    assert f(f(key)[0])[1].shape == ()


@both
def test_jit_can_be_disabled(jit):
    with jax.disable_jit():
        out = jit(lambda x, n: (x + n if float(x[0]) == 0 else None, "static"))(X, 1)
    assert np.array_equal(out[0], X + 1)
    assert out[1] == "static"


# Waiting, errors, ahead of time


def test_returns_before_the_device_is_done():
    """A loaded machine may have the result ready early once."""
    f = cached_filter_jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: x @ x / 600, x))
    x = jax.block_until_ready(f(jnp.eye(600)))
    assert any(not f(x).is_ready() for _ in range(3))


@pytest.mark.filterwarnings("default")
def test_error_if_raises_where_the_result_is_waited_for():
    f = cached_filter_jit(lambda x: eqx.error_if(x, jnp.any(x > 1), "too large"))
    assert np.array_equal(f(X[:1]), X[:1])
    with pytest.raises(jax.errors.JaxRuntimeError, match="too large"):
        jax.block_until_ready(f(X))


@both
def test_exception_while_tracing_passes_through_and_spoils_nothing(jit):
    fail = [True]

    def f(x):
        if fail:
            raise KeyError("mine")
        return x

    wrapped = jit(f)
    with pytest.raises(KeyError, match="mine"):
        wrapped(X)
    fail.clear()
    assert np.array_equal(wrapped(X), X)


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


def test_what_was_forgotten_compiles_again_and_is_right(monkeypatch):
    monkeypatch.setattr("perfsuite.workloads.training.call_plan.CAPACITY", 2)
    f = cached_filter_jit(lambda x, n: (x + n, n))
    for n in (1, 2, 3, 1, 2, 3):
        out, static = f(X, n)
        assert np.array_equal(out, X + n)
        assert static == n


def test_threads_that_call_at_once_get_their_own_results():
    f = cached_filter_jit(lambda x, n: (x * n, n))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: (i, *f(jnp.full(3, i), i % 4)), range(64)))
    for i, out, static in results:
        assert static == i % 4
        assert np.array_equal(out, np.full(3, i * (i % 4)))


def test_wrapper_passes_through_other_functions_as_a_pytree():
    f = cached_filter_jit(Scale(jnp.array(2.0), 2))
    apply = cached_filter_jit(lambda f, x: f(x))
    assert np.array_equal(apply(f, X), 4 * X**2)
    doubled = jax.tree.map(lambda leaf: leaf * 2 if eqx.is_array(leaf) else leaf, f)
    assert np.array_equal(doubled(X), 16 * X**2)


def test_dataclass_instances_are_static_by_value():
    @dataclasses.dataclass(frozen=True)
    class Options:
        factor: float

    traced = Traced(lambda x, options: x * options.factor)
    f = cached_filter_jit(traced.fn)
    for factor in (2.0, 2.0, 3.0):
        assert np.array_equal(f(X, Options(factor)), X * factor)
    assert traced.count == 2
