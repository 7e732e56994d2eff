"""`settle` and `agreed_run`: a call made ready, and which of several runs counts."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from support.compiling import SHORT

from perfsuite.measure.call import call
from perfsuite.measure.compiles.settle import FEWEST_RUNS, agreed_run, settle
from perfsuite.measure.errors import MeasurementError, SignatureWarning


def taken(*runs, exact=True):
    """What is taken of runs with these counts, and after how many of them."""
    made = iter(runs)
    found = agreed_run(
        lambda: next(made), lambda run: run if isinstance(run, tuple) else (run,), "they differ", exact=exact
    )
    return found, len(runs) - len(list(made))


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ((4, 4, 4), (4, 3)),
        ((9, 4, 4), (4, 3)),  # the first filled a cache
        ((1, 4, 4), (4, 3)),
        ((4, 9, 4, 4), (4, 4)),  # by chance, in any of the runs
        ((4, 4, 9, 4, 4), (4, 5)),
        ((4, 4, 9, 9), (9, 4)),  # from then on
        ((4, 9, 4, 9), (9, 4)),  # every second run
        ((9, 4, 9, 4), (9, 4)),
        ((4, 4, 9, 4, 9), (9, 5)),
        (((1, 0), (0, 1), (1, 0), (0, 1)), ((1, 0), 4)),  # as many, of two kinds
        (((0, 1), (1, 0), (0, 1), (1, 0)), ((1, 0), 4)),
    ],
)
def test_two_runs_in_a_row_agree_or_the_larger_of_two_that_alternate_is_taken(runs, found):
    assert taken(*runs) == found


@pytest.mark.parametrize("runs", [(1, 2, 3), (3, 2, 1), (1, 2, 1, 3), (1, 1, 2, 3), (1, 1, 2, 1, 3)])
def test_runs_that_all_differ_are_an_error_or_the_least_counts(runs):
    with pytest.raises(MeasurementError, match=r"they differ from run to run \(" + ", ".join(map(str, runs))):
        taken(*runs)
    assert taken(*runs, exact=False) == (1, len(runs))


@pytest.mark.parametrize("runs", list(itertools.product((1, 2), repeat=5)))
def test_runs_of_two_counts_are_decided_after_five_at_most(runs):
    found, after = taken(*runs)
    assert found in runs
    assert FEWEST_RUNS <= after <= 5


@pytest.mark.parametrize("returned", [lambda x: x.sum(), lambda x: x.astype(int)], ids=["shape", "dtype"])
def test_a_carry_that_replaces_an_argument_by_something_else_is_warned_of(returned):
    """`carry=2` where one output is the next state, so that the batch became a scalar, and another step was measured."""
    step = jax.jit(lambda state, x: (state + x.sum(), returned(x)))
    with pytest.warns(SignatureWarning, match=r"call\(lambda, ..., carry=2\)(.|\n)*args\[1\] was float32\[3\], is "):
        settle(call(step, jnp.zeros(3), SHORT, carry=2))


def test_what_the_call_puts_into_its_arguments_is_waited_for():
    long = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda i, y: y @ y * 1e-3, x))
    state = {"x": jnp.ones((900, 900))}

    def step(state):
        state["x"] = long(state["x"])

    settle(call(step, state))
    assert state["x"].is_ready()
