"""The line of the project that a failed test points at, in the report of a real session."""

import json

import pytest

MODEL = """
import jax
import jax.numpy as jnp

def widths(x):
    return [len(x) for _ in range(3)]

def looked_up(x):
    return widths(x)

@jax.jit
def step(x):
    return x * 2
"""
TESTS = """
import jax.numpy as jnp
from models.model import looked_up, step
from perfsuite import call

def check(perf):
    with perf.no_compiles():
        step(jnp.ones(5))

def test_calls(perf):
    perf.host_calls(call(looked_up, [1]))

def test_calls_over_a_budget(perf):
    from perfsuite import Budget
    perf.host_calls(
        call(looked_up, [1]), budget=Budget(host_calls=1))

def test_compiles(perf):
    check(perf)

def test_assertion(perf):
    assert len("a") == 2

def test_passes(perf):
    perf.record("fusions", 3, unit="fusions", kind="count")
"""


def line_of(text, wanted):
    return next(n for n, line in enumerate(text.split("\n"), 1) if wanted in line)


@pytest.fixture
def blamed(pytester):
    """Runs the tests after a slowdown in the model, and gives the lines by test."""
    pytester.mkpydir("models").joinpath("model.py").write_text(MODEL)
    pytester.makepyfile(test_it=TESTS)
    pytester.runpytest_subprocess("--perf-save", "-k", "test_calls or test_passes")
    slower = MODEL.replace("range(3)", "range(9)")
    (pytester.path / "models" / "model.py").write_text(slower)
    pytester.runpytest_subprocess("--perf", "--perf-report=out")
    report = json.loads((pytester.path / "out" / "report.json").read_text())
    return {test["test"].partition("::")[2]: test["blamed"] for test in report["tests"]}


def test_the_line_is_where_a_metric_grew_or_else_where_the_test_failed(blamed):
    tests = TESTS.strip("\n") + "\n"
    assert blamed["test_calls"] == ["models/model.py", line_of(MODEL, "range(3)")]
    assert blamed["test_calls_over_a_budget"] == ["test_it.py", line_of(tests, "perf.host_calls(\n"[:-1]) + 4]
    assert blamed["test_compiles"] == ["test_it.py", line_of(tests, "step(jnp.ones(5))")]
    assert blamed["test_assertion"] == ["test_it.py", line_of(tests, "assert len")]
    assert blamed["test_passes"] is None
