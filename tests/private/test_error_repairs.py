"""What a refused compile leaves in JAX's cache of calls is removed. A test that fails here names what JAX has moved."""

import jax
import numpy as np
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.private.capabilities import REPAIRS
from perfsuite.measure.runtime.host_calls import host_calls
from tests.support.private_names import without

X = np.ones(3, np.float32)


def calls_after_a_refusal(transform=lambda fn: fn):
    """Host calls and compiles of a call whose compile was refused before, and of one whose was not."""
    counts = []
    transform(jax.jit(lambda x: (x * 2).sum()))(X)  # operations that run by themselves compile once a process
    for refuse in (True, False):
        step = transform(jax.jit(lambda x: (x * 2).sum()))
        if refuse:
            with pytest.raises(RecompilationError), compiles.forbid():
                step(X)
        with compiles.count() as counted:
            step(X)
        counts.append((host_calls(call(step, X)).total, counted.compiles))
    return counts


@pytest.mark.parametrize("transform", [lambda fn: fn, jax.grad], ids=["alone", "grad"])
def test_a_call_whose_compile_was_refused_is_as_quick_as_another(transform):
    (refused, _), (quick, _) = calls_after_a_refusal(transform)
    assert abs(refused - quick) < 100, "the slow path takes 140 Python calls more"


def test_a_signature_that_was_warm_stays_warm():
    step = jax.jit(lambda x: x * 2)
    step(X)
    with pytest.raises(RecompilationError), compiles.forbid():
        step(np.ones(4, np.float32))
    with compiles.forbid():
        step(X)


def test_where_jax_has_moved_what_it_needs_the_call_is_slow_and_right():
    with without(REPAIRS):
        (refused, compiled), (quick, _) = calls_after_a_refusal()
    assert compiled == 1
    assert refused > quick
