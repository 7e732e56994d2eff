"""`measure.runtime.origins`: which call in the user's code makes the host calls, and at which line."""

import contextlib
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from perfsuite.measure.call import call
from perfsuite.measure.runtime.hostcalls import host_calls
from perfsuite.measure.runtime.origins import CallOrigin

HERE = "test_origins.py"
TREE = {"a": 1, "b": 2}


def leaf(value=None):
    return value


def line_of(function, offset=1):
    return function.__code__.co_firstlineno + offset


def origins(function):
    return {str(origin): calls for origin, calls in host_calls(call(function)).by_origin.items()}


def test_all_that_a_library_does_is_of_the_call_that_the_user_made():
    def body():
        jax.tree.map(leaf, TREE)

    counted = host_calls(call(body))
    called = CallOrigin("jax._src.tree:map", f"{HERE}:{line_of(body)} in body")
    assert counted.by_origin == {called: counted.total - 1, CallOrigin(f"{__name__}:{body.__qualname__}"): 1}
    assert counted.origins_of[f"{__name__}:leaf"] == (called,)
    assert counted.metrics("step")[0].places[f"{__name__}:leaf"] == str(called)


def test_every_call_has_one_origin():
    counted = host_calls(call(eqx.filter_jit(lambda x: x + 1), jnp.ones(2)))
    assert sum(counted.by_origin.values()) == sum(counted.by_function.values()) == counted.total
    assert sum(counted.by_responsible.values()) == counted.total
    assert set(counted.origins_of) == set(counted.by_responsible)


def test_the_function_that_calls_into_c_is_responsible_and_not_the_c_function():
    def _check_value(value):
        return isinstance(value, int) and not isinstance(value, bool)

    def body():
        return [_check_value(value) for value in range(3)]

    counted = host_calls(call(body))
    check, own = (f"{__name__}:{each.__qualname__}" for each in (_check_value, body))
    assert counted.by_function["builtins:isinstance"] == 6
    assert (counted.by_function[check], counted.by_responsible[check]) == (3, 9)
    assert (*counted.metrics("step")[0].detail,)[:1] == (check,)
    assert "builtins:isinstance" not in counted.by_responsible
    origin = counted.origins_of[check][0]
    assert str(origin).startswith("builtins:isinstance at ")
    assert own in counted.by_responsible


def test_the_users_own_calls_are_each_an_origin_at_the_line_that_makes_them():
    def body():
        leaf()
        leaf()
        len("abc")

    assert origins(body) == {
        f"{__name__}:{body.__qualname__}": 1,
        f"{__name__}:leaf at {HERE}:{line_of(body)} in body": 1,
        f"{__name__}:leaf at {HERE}:{line_of(body, 2)} in body": 1,
        f"builtins:len at {HERE}:{line_of(body, 3)} in body": 1,
    }


def test_the_innermost_line_of_the_user_is_named():
    def helper():
        return jax.tree.leaves(TREE)

    def body():
        return len(helper())

    assert f"jax._src.tree:leaves at {HERE}:{line_of(helper)} in helper" in origins(body)


def test_after_an_exception_in_a_library_the_next_call_has_its_own_origin():
    def failing(value):
        raise KeyError(value)

    def body():
        with contextlib.suppress(KeyError):
            jax.tree.map(failing, TREE)
        leaf()

    assert f"{__name__}:leaf at {HERE}:{line_of(body, 3)} in body" in origins(body)


def test_what_only_shortens_tracebacks_is_not_named():
    jitted = functools.partial(jax.jit, leaf)

    def body():
        jitted()

    assert any(name.startswith("jax._src.api:jit") for name in origins(body))


def test_functools_and_contextlib_pass_the_users_line_on():
    @contextlib.contextmanager
    def context():
        leaf()
        yield

    def body():
        with context():
            pass

    assert f"{__name__}:leaf at {HERE}:{line_of(context.__wrapped__, 2)} in context" in origins(body)


def test_what_a_function_calls_in_c_has_its_lines_and_not_the_functions_own_call():
    """`numpy:asarray` comes after the name of the function, and `builtins:len` before it."""

    def body(x):
        len("abc")
        return np.asarray(x)

    counted = host_calls(call(body, np.ones(3)))
    (own,) = counted.by_responsible
    assert [str(origin).partition(" at ")[0] for origin in counted.origins_of[own]] == ["builtins:len", "numpy:asarray"]
    assert f"numpy:asarray at {HERE}:" in counted.metrics("step")[0].places[own]
