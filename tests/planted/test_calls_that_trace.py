"""A user's benchmarks of tracing: refused, with what to say, until they say that they trace on purpose."""

import pytest

STEPS = """
import functools
import flax.linen as nn
import jax
import jax.numpy as jnp
from perfsuite import call

X = jnp.ones(4)
MODEL = nn.Dense(2)
PARAMS = MODEL.init(jax.random.key(0), X)

def jaxpr(x):
    return jax.make_jaxpr(lambda x: jnp.sin(x).sum())(x)

def lowering(x):
    return jax.jit(lambda x: jnp.sin(x).sum()).lower(x)

def apply(x):
    return MODEL.apply(PARAMS, x)

def compiling(x):
    return jax.jit(lambda x: jnp.sin(x).sum())(x)

@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, x):
    return state + x

@jax.jit
def eval_step(state, x):
    return state @ x
"""


@pytest.fixture
def steps(project: pytest.Pytester) -> pytest.Pytester:
    project.makepyfile(steps=STEPS)
    return project


@pytest.mark.parametrize("function", ["jaxpr", "lowering", "apply"])
@pytest.mark.parametrize("method", ["time", "dispatches", "host_calls", "compare"])
def test_a_call_that_traces_is_measured_where_the_test_says_so(steps, function, method):
    calls = f"call({function}, X)" + (f", call({function}, X)" if method == "compare" else "")
    steps.makepyfile(
        test_steps=f"""
        from steps import *

        def test_said(perf):
            perf.{method}({calls}, traces=True)

        def test_not_said(perf):
            perf.{method}({calls})
        """
    )
    result = steps.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*RecompilationError: `*` was traced*", "*If the call is meant to trace in every run*"]
    )


def test_a_call_that_compiles_is_refused_all_the_same(steps):
    steps.makepyfile(
        test_steps="""
        from steps import *

        def test_said(perf):
            perf.time(call(compiling, X), traces=True)
        """
    )
    result = steps.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*RecompilationError: `*lambda*` was compiled*"])


@pytest.mark.parametrize("order", ["evaluate, train", "train, evaluate"])
def test_two_calls_over_one_state_that_one_donates_are_refused_by_both_names(steps, order):
    steps.makepyfile(
        test_steps=f"""
        from steps import *

        def test_shared(perf):
            state = jnp.zeros(4)
            train, evaluate = call(train_step, state, X, carry=1), call(eval_step, state, X)
            perf.compare({order})

        def test_made_anew(perf):
            train, evaluate = call(train_step, jnp.zeros(4), X, carry=1), call(eval_step, jnp.zeros(4), X)
            perf.compare({order})
        """
    )
    result = steps.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*call(eval_step, ...) cannot run: args[[]0[]] was deleted, because an earlier call donated it*"]
    )
