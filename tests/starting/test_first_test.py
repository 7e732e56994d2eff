"""The text of a first file of perf tests."""

from pathlib import Path

import pytest

from perfsuite.starting.first_test import first_test
from perfsuite.starting.target import Parameter, Target

X = Parameter("x", "jnp.zeros((8,))", "Float[Array, '8']")
UNSEEN = Parameter("model", "", "Model")


def target(*parameters, name="step", jitted=True, carry=0):
    return Target("steps", name, parameters, jitted, carry, "", Path("steps.py"), None)


def write(project, name="step", **arguments):
    text = first_test(target(*arguments.pop("parameters", (X,)), name=name, **arguments), "test_it.py")
    project.makepyfile(test_it=text, steps=f"import jax\n\n@jax.jit\ndef {name}(*args):\n    return args\n")
    return text


@pytest.mark.parametrize("name", ["step", "call", "arguments", "test_step", "again"])
def test_the_tests_run_whatever_the_function_is_called(project, name):
    write(project, name, carry=1)
    project.runpytest_inprocess("--perf").assert_outcomes(passed=3)


def test_a_function_without_parameters_is_called_without_arguments(project):
    write(project, parameters=())
    project.runpytest_inprocess("--perf").assert_outcomes(passed=3)


def test_an_argument_that_was_not_seen_fails_with_what_to_write(project):
    text = write(project, parameters=(X, UNSEEN))
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*NotImplementedError: test_it.py: write the argument `model` of step in the place*"])
    project.makepyfile(test_it=text.replace('fill_in("model")', "jnp.ones(3)"))
    project.runpytest_inprocess("--perf").assert_outcomes(passed=3)


def test_what_is_not_jitted_has_no_test_of_its_program():
    assert "perf.program" in first_test(target(X), "test_it.py")
    assert "perf.program" not in first_test(target(X, jitted=False), "test_it.py")
