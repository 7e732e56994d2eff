"""`perf.first_call`: what it records, what its budgets say, and what it refuses."""

import jax
import pytest

from perfsuite import call
from perfsuite.instruments import instructions
from perfsuite.measure.instructions import Instructions

MODEL = """
import itertools

import jax
import jax.numpy as jnp

NUMBERS = itertools.count(1)
TABLE = jnp.ones((100, 3))

@jax.jit
def step(x):
    return jnp.tanh(x) * 2

@jax.jit
def look_up(x):
    return x @ TABLE.T

@jax.jit
def unlike(x):
    for _ in range(next(NUMBERS)):
        x = x + 1
    return x
"""

RECORDED = """
import jax.numpy as jnp
from model import step, unlike
from perfsuite import call

X = jnp.ones(3)

def test_step(perf):
    perf.first_call(call(step, X))
    perf.first_call(call(step, X), compiles=False)

def test_unlike(perf):
    perf.first_call(call(unlike, X), compiles=False, name="step")
"""

CHECKED = """
import jax.numpy as jnp
import pytest
from model import look_up, step
from perfsuite import Budget, BudgetExceeded, call

X = jnp.ones(3)
STEP = call(step, X)

@pytest.mark.parametrize("field", ["trace_calls", "lowering_calls", "equations", "stablehlo_bytes"])
def test_a_budget_names_the_lines(perf, field):
    with pytest.raises(BudgetExceeded, match=r"over the budget of 1 .*\\nlikely cause: most of it: model.py:step .* at .*model.py:11"):
        perf.first_call(STEP, compiles=False, budget=Budget(**{field: 1}))

def test_a_budget_of_constants_says_what_to_do(perf):
    with pytest.raises(BudgetExceeded) as caught:
        perf.first_call(call(look_up, X), compiles=False, budget=Budget(constant_bytes=1000))
    first, cause, advice = str(caught.value).splitlines()
    assert first == "look_up constant bytes is 1,200 bytes, +20 % over the budget of 1,000 bytes"
    assert cause.startswith("likely cause: most of it: float32[100,3] (1,200 bytes) at ")
    assert cause.endswith("model.py:15")
    assert advice.endswith("pass it as an argument")

def test_a_budget_that_is_kept_passes(perf):
    perf.first_call(STEP, budget=Budget(equations=2, traces=9, constants=0), compiles=False)

def test_what_is_warm_stays_warm(perf):
    warm = perf.warm(step, over=[STEP])
    perf.first_call(STEP)
    with perf.no_compiles():
        warm(X)

def test_a_power_takes_three_sizes(perf):
    with pytest.raises(ValueError, match=r"Budget\\(exponent=\\) needs three different sizes above 0, got \\[1.0, 2.0\\]"):
        perf.scaling(lambda n: (STEP, n), [1, 2], metric="equations", budget=Budget(exponent=1))
"""


def test_budgets_and_refusals(project: pytest.Pytester):
    project.makepyfile(model=MODEL, test_checked=CHECKED)
    project.runpytest_inprocess("--perf").assert_outcomes(passed=8)


def test_every_count_is_recorded_and_compared_with_its_baseline(project: pytest.Pytester):
    project.makepyfile(model=MODEL, test_recorded=RECORDED)
    saved = project.runpytest_inprocess("--perf-save", "-v")
    saved.assert_outcomes(passed=2)
    printed = str(saved.stdout)
    for what in ("trace calls", "lowering calls", "traces", "equations", "StableHLO bytes", "constants"):
        assert f"step {what}" in printed
        assert f"step #2 {what}" in printed
    assert printed.count("compile seconds") == 1

    project.makepyfile(model=MODEL.replace("* 2", "* 2 + 1").replace("count(1)", "count(2)"))
    gated = project.runpytest_inprocess("--perf")
    gated.assert_outcomes(failed=2)
    gated.stdout.fnmatch_lines(
        [
            "step * over the baseline * at model.py:11*",
            "also worse: *; step equations 2 -> 3 equations (+50 %, model.py:11 (add, mul, tanh)); *",
        ]
    )
    # Of code that does something else each time no gate fails, because no change of it need be to blame.
    gated.stdout.fnmatch_lines(["*MeasurementError: unlike: * differ from run to run*"])


def test_instructions_of_each_stage_are_recorded_and_those_of_lowering_gate_nothing(bare_perf, monkeypatch):
    stages = {stage: Instructions(f"step {stage}", 100, {}) for stage in ("trace", "lower", "compile")}
    monkeypatch.setattr(instructions, "counted_under_valgrind", lambda test, metric, kind, count: stages)
    counted = bare_perf.first_call(call(jax.jit(lambda x: x + 1), 1.0), name="step", compiles=False, instructions=True)
    assert counted.instructions == {"trace": 100, "lower": 100, "compile": 100}
    kinds = {title: metric.kind for title, metric in bare_perf._state.recorder.metrics.items()}
    assert {title: kind for title, kind in kinds.items() if title.endswith(" instructions")} == {
        "step trace instructions": "size",
        "step lower instructions": "info",
        "step compile instructions": "size",
    }
