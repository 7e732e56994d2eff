"""A bad argument ends an instrument before it measures anything, with an error that names the argument."""

import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite import Budget, call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Interval

STEP = call(jax.jit(lambda x: x + 1), jnp.ones(3))


def plain(x, state=None):
    return x


@jax.tree_util.register_pytree_node_class
class Closed:
    """A pytree that shows its leaves only while something else runs it."""

    def tree_flatten(self):
        raise RuntimeError("not running")

    @classmethod
    def tree_unflatten(cls, aux, children):
        raise NotImplementedError


def sized(size):
    return STEP, size


REFUSED = [
    *(
        (lambda perf, module=module: perf.imports(module), TypeError, f"perf.imports(module=...): {(module,)!r} are no modules")
        for module in ("", "a.", "a-b", "model.py/x", None)
    ),
    *(
        (
            lambda perf, argument=argument, value=value: perf.imports("app", **{argument: value}),
            TypeError,
            f"perf.imports({argument}=...): {value!r} are no modules",
        )
        for argument in ("without", "after")
        for value in ("jax", ("jax", 1), ("jax,numpy",), None)
    ),
    *(
        (lambda perf, count=count: perf.cache_key(STEP, count), ValueError, f"perf.cache_key(processes={count!r}): compare 2")
        for count in (1, 0, 2.0, True, "2")
    ),
    (lambda perf: perf.cache_key(plain), TypeError, "perf.cache_key takes call(fn, *args), got function"),
    (lambda perf: perf.cache_key(call(plain, 1)), MeasurementError, "perf.cache_key needs a function with .lower: "),
    (lambda perf: perf.first_call(plain), TypeError, "perf.first_call takes call(fn, *args)"),
    (lambda perf: perf.compare(STEP, STEP, until="redy"), ValueError, "perf.compare(until=...) must be one of 'return', 'ready'"),
    (lambda perf: perf.scaling(sized, [1, 2], metric="calls"), ValueError, "perf.scaling(metric=...) must be one of 'return', "),
    (
        lambda perf: perf.scaling(sized, [1, 2, 3], metric="flops", budget=Budget(us_per_leaf=1)),
        ValueError,
        "perf.scaling of a count does not check Budget(us_per_leaf=...), perf.scaling does; it checks exponent",
    ),
    (
        lambda perf: perf.record("loss", 1.0, unit="1", kind="ratio", interval=(2, 3)),
        ValueError,
        "perf.record('loss'): the interval (2, 3) must hold the value, 1.0",
    ),
    (
        lambda perf: perf.record("loss", 1.0, unit="1", kind="ratio", interval=100),
        TypeError,
        "perf.record('loss'): interval must be (low, high), two numbers, got 100",
    ),
    (
        lambda perf: perf.record("loss", 3.0, unit="1", kind="ratio", interval=(5, 2)),
        ValueError,
        "perf.record('loss'): interval must be (low, high), got (5, 2)",
    ),
    (lambda perf: perf.record("calls", -1, unit="calls", kind="count"), ValueError, "perf.record('calls'): a count is 0 or more"),
    (lambda perf: perf.record("calls", np.True_, unit="calls", kind="count"), TypeError, "calls: value must be an int or a float"),
    (lambda perf: perf.host_calls(plain, 1), TypeError, "perf.host_calls() takes 2 positional arguments but 3 were given"),
    (lambda perf: perf.hostcalls(STEP), AttributeError, "no attribute 'hostcalls': did you mean perf.host_calls?"),
    *(
        (lambda perf, method=method: getattr(perf, method)(call(plain, 1, state=Closed())), MeasurementError, f"perf.{method}: state, of type Closed, ")
        for method in ("host_calls", "memory", "time", "program")
    ),
    (lambda perf: perf.host_calls(call(Closed)), MeasurementError, "what Closed returns, of type Closed, is a pytree that cannot be "),
]  # fmt: skip


@pytest.mark.parametrize(("use", "error", "message"), REFUSED)
def test_a_bad_argument_is_refused_and_named(bare_perf, use, error, message):
    with pytest.raises(error, match=re.escape(message)):
        use(bare_perf)


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (np.int64(3), 3),
        (jnp.int32(3), 3),
        (np.array(3), 3),
        (np.float32(2), 2.0),
        (jnp.bfloat16(2), 2.0),
        (Fraction(4, 2), 2.0),
    ],
)
def test_any_real_scalar_is_recorded(bare_perf, value, recorded):
    bare_perf.record("calls", value, unit="calls", kind="count")
    bare_perf.record("ratio", value, unit="x", kind="ratio", interval=(value, value))
    calls, ratio = bare_perf._state.recorder.metrics.values()
    assert (calls.value, type(calls.value)) == (recorded, type(recorded))
    assert ratio.interval == Interval(recorded, recorded)
