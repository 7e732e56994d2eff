"""Slow first calls, planted in a user's project with a saved baseline: each is caught, and its line is named."""

import re

MODEL = """
import jax
import jax.numpy as jnp
from perfsuite import call

def layer(x, kernel):
    return jax.nn.gelu(x @ kernel)

@jax.jit
def scanned(kernels, x):
    return jax.lax.scan(lambda y, kernel: (layer(y, kernel), None), x, kernels)[0]

@jax.jit
def looked_up(table, x):
    return x @ table[:3]

def first_call():
    return call(scanned, jnp.ones((12, 3, 3)), jnp.ones((2, 3)))

def lookup():
    return call(looked_up, jnp.ones((1000, 10_000)), jnp.ones((2, 3)))

def sized(layers):
    @jax.jit
    def step(kernels, x):
        for kernel in kernels:
            x = layer(x, kernel)
        return x
    return call(step, [jnp.ones((3, 3))] * layers, jnp.ones((2, 3))), layers

WINDOWS = 100.0

@jax.jit
def smoothed(x):
    weights = jax.lax.reduce_window(jnp.arange(WINDOWS), 0.0, jax.lax.add, (64,), (1,), "VALID")
    return x * weights.sum()
"""

TESTS = """
import model
from perfsuite import Budget, call

def test_scanned(perf):
    perf.first_call(model.first_call(), compiles=False)

def test_lookup(perf):
    perf.first_call(model.lookup(), compiles=False)

def test_smoothed(perf):
    perf.first_call(call(model.smoothed, 1.0), compiles=False)

def test_layers(perf):
    perf.scaling(model.sized, [2, 4, 8], metric="trace_calls", name="layers")
"""

UNROLLED = MODEL.replace(
    "    return jax.lax.scan(lambda y, kernel: (layer(y, kernel), None), x, kernels)[0]",
    "    for n in range(12):\n        x = layer(x, kernels[n])\n    return x",
)
CLOSED_OVER = MODEL.replace(
    "@jax.jit\ndef looked_up(table, x):\n    return x @ table[:3]",
    "TABLE = jnp.arange(1e7).reshape(1000, 10_000)\n@jax.jit\ndef looked_up(x):\n    y = x + 1\n    return y @ TABLE[:3]",
).replace("call(looked_up, jnp.ones((1000, 10_000)), ", "call(looked_up, ")
QUADRATIC = MODEL.replace(
    "        for kernel in kernels:\n            x = layer(x, kernel)\n        return x\n",
    "        parts = []\n        for kernel in kernels:\n"
    "            parts = [*(layer(part, kernel) for part in parts), x]\n        return sum(parts)\n",
)
SLOW_TO_COMPILE = MODEL.replace("WINDOWS = 100.0", "WINDOWS = 1000.0")
MOVED = MODEL.replace("def layer(", "\n\n# A comment.\ndef layer(")


def unrolled_layers_are_named(printed):
    assert "scanned equations is " in printed
    assert "grew: model.py:layer (+" in printed
    assert " at model.py:7 (" in printed
    assert "model.py:scanned (+" in printed
    assert " at model.py:12 (" in printed


def constant_of_40_megabytes_is_named(printed):
    assert "looked_up constants is 1 constant, +1 over the baseline 0 constants" in printed
    assert "grew: float32[1000,10000] (+1) at model.py:17" in printed
    assert "pass it as an argument" in printed
    assert "looked_up constant bytes 0 -> 40,000,000 bytes" in printed


def quadratic_tracing_is_named_with_its_power(printed):
    assert "layers trace calls at 8 is " in printed
    power = re.search(r"likely cause: it grows with the power (\S+) of the size", printed)
    assert power is not None
    assert 1.7 < float(power[1]) < 2.3
    assert "model.py:sized.step (+" in printed


def what_the_compiler_computes_is_named(printed):
    # 64 for each of 1000 - 63 windows, whose 937 sums are added.
    assert "smoothed folded FLOP is 60,905 FLOP, " in printed
    assert "grew: model.py:smoothed (+" in printed
    assert " at model.py:35 (reduce_window_sum) and 1 more line" in printed
    assert "compute it once, and pass it" in printed


def test_slow_first_calls_are_caught_and_their_lines_named(saved_project, pytester):
    gated = saved_project(MODEL, TESTS)
    plants = {
        UNROLLED: unrolled_layers_are_named,
        CLOSED_OVER: constant_of_40_megabytes_is_named,
        QUADRATIC: quadratic_tracing_is_named_with_its_power,
        SLOW_TO_COMPILE: what_the_compiler_computes_is_named,
    }
    for source, check in plants.items():
        printed = gated(source)
        check(printed)
        assert "1 failed, 3 passed" in printed
    # And the controls: the model as it was, and lines that only move.
    gated(MODEL)
    (pytester.path / "model.py").write_text(MOVED)
    pytester.runpytest_inprocess("--perf").assert_outcomes(passed=4)


def test_a_budget_limits_the_power_of_equations(pytester):
    pytester.makepyfile(model=QUADRATIC.lstrip())
    pytester.makepyfile(
        test_model="""
        import model
        from perfsuite import Budget

        def test_layers(perf):
            perf.scaling(model.sized, [2, 4, 8], metric="equations", name="layers", budget=Budget(exponent=1.1))
        """
    )
    result = pytester.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*BudgetExceeded: layers equations exponent is 2.1* (1 is linear), +* % over the budget of 1.1 (1 is linear)*"]
    )
