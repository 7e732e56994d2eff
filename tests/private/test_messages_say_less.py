"""Where JAX has moved what explains a compile, it is counted and refused all the same, with the cause unknown."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.private.capabilities import (
    CALLBACKS,
    PROGRAM_RUNS,
    REPAIRS,
    STACK,
    TRACES,
    CapabilityLost,
    fallbacks,
)
from perfsuite.measure.runtime.host_calls import host_calls
from perfsuite.measure.timing.block import waiting_for
from tests.support.private_names import without

X = np.ones(3, np.float32)


def counted(run):
    with compiles.count() as seen:
        run()
    return seen.lowerings, seen.compiles


@pytest.mark.parametrize("lost", [TRACES, STACK, REPAIRS], ids=lambda each: each.name)
def test_a_recompilation_is_counted_and_refused(lost):
    step = jax.jit(lambda x: x * 2)
    with without(lost):
        assert counted(lambda: step(X)) == (1, 1)
        assert counted(lambda: step(X)) == (0, 0)
        with (
            pytest.raises(
                RecompilationError, match=r"was (traced|lowered|compiled)( again)? at .*test_messages_say_less\.py:"
            ),
            compiles.forbid(),
        ):
            step(X[:2])


def test_without_the_stack_the_cause_is_unknown():
    with without(STACK), pytest.raises(RecompilationError, match=r"cause unknown with this jax"), compiles.forbid():
        jax.jit(lambda x: x * 3)(X)


def test_a_call_is_timed_until_all_its_outputs_are_ready_where_programs_are_not_seen():
    with without(PROGRAM_RUNS):
        assert waiting_for(lambda: jnp.asarray(X)) is jax.block_until_ready
        with pytest.raises(CapabilityLost, match="timing the call, which returns no array, does not work"):
            waiting_for(lambda: None)
        assert [line for line in fallbacks() if "times include waiting for every output" in line]
    assert not fallbacks()


def test_what_goes_on_in_another_way_is_said_once():
    step = jax.jit(lambda x: x * 11)
    with without(TRACES), without(CALLBACKS):
        for _ in range(2):
            with contextlib.suppress(RecompilationError), compiles.forbid():
                step(X)
            host_calls(call(step, X))
        assert [line.partition(":")[0].partition(f"{jax.__version__} ")[2] for line in fallbacks()] == [
            "no trace is refused, only what it leads to, and a cached one counts too",
            "host calls have those of callbacks among them",
        ]
