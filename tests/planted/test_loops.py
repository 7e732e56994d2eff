"""Regressions planted in loops: more iterations fail, and what is not known of a loop, a branch or a kernel is said."""

import pytest
from support.libtpu_needed import needs_libtpu

pytestmark = needs_libtpu

MODEL = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas

STEPS = 10


def leapfrog(x, matrix):
    return x + 0.1 * (x @ matrix)


def hmc_step(x, matrix):
    return lax.fori_loop(0, STEPS, lambda _, x: leapfrog(x, matrix), x)


def until_small(x, matrix):
    y = x @ matrix
    return lax.while_loop(lambda y: jnp.sum(y) > 1, lambda y: leapfrog(y, matrix), y)


def solve(x, matrix):
    state = 0, x
    return lax.while_loop(lambda s: (s[0] < STEPS) & (jnp.sum(s[1]) > 1), lambda s: (s[0] + 1, leapfrog(s[1], matrix)), state)


def doubling(x, out):
    out[...] = x[...] * 2


def with_kernel(x, matrix):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas.pallas_call(doubling, out_shape=shape, name="doubled")(x @ matrix)
"""

TESTS = """
import jax
import jax.numpy as jnp
import model
import pytest
from perfsuite import call


@pytest.mark.parametrize("name", ["hmc_step", "until_small", "solve", "with_kernel"])
def test_program(perf, perf_target, name):
    square = jnp.ones((128, 128))
    perf.program(call(jax.jit(getattr(model, name)), square, square), perf_target, name=name)
"""


@pytest.fixture
def project(pytester):
    pytester.makepyfile(model=MODEL, test_model=TESTS)
    pytester.makeini("[pytest]\npythonpath = .\n")
    return pytester


def run(project, *arguments):
    return project.runpytest_inprocess("--perf-target=tpu-v5e", *arguments)


def plant(project, old, new):
    path = project.path / "model.py"
    source = path.read_text()
    assert source.count(old) == 1
    path.write_text(source.replace(old, new))


def line_of(text):
    return MODEL.strip().splitlines().index(text) + 1


def test_an_eleventh_leapfrog_fails_and_its_line_is_named(project):
    assert run(project, "--perf-save", "-k", "hmc_step").ret == pytest.ExitCode.OK
    control = run(project, "--perf", "-k", "hmc_step")
    assert control.ret == pytest.ExitCode.OK
    plant(project, "STEPS = 10", "STEPS = 11")
    result = run(project, "--perf", "-k", "hmc_step")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = str(result.stdout)
    assert "hmc_step flops @ tpu-v5e is " in text
    place = f"model.py:{line_of('    return x + 0.1 * (x @ matrix)')} in leapfrog"
    assert f"(+{2 * 128**3:,}) at {place}" in text


def test_a_loop_that_depends_on_data_is_a_lower_bound_in_the_message(project):
    assert run(project, "--perf-save", "-k", "until_small").ret == pytest.ExitCode.OK
    plant(project, "    y = x @ matrix\n", "    y = x @ matrix @ matrix\n")
    result = run(project, "--perf", "-k", "until_small")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    loop = next(line for line in MODEL.splitlines() if "while_loop" in line)
    text = str(result.stdout)
    assert "until_small flops @ tpu-v5e is at least " in text
    said = "counts once, for its iterations depend on data: the loop at"
    assert f"{said} model.py:{line_of(loop)} in until_small" in text


def test_a_higher_limit_of_steps_is_an_upper_bound_in_the_message(project):
    assert run(project, "--perf-save", "-k", "solve").ret == pytest.ExitCode.OK
    plant(project, "jnp.sum(s[1]) > 1", "jnp.sum(s[1]) > 2")
    control = run(project, "--perf", "-k", "solve")
    assert control.ret == pytest.ExitCode.OK
    plant(project, "STEPS = 10", "STEPS = 11")
    result = run(project, "--perf", "-k", "solve")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    loop = next(line for line in (project.path / "model.py").read_text().splitlines() if "s[0] < STEPS" in line)
    text = str(result.stdout)
    assert "solve flops @ tpu-v5e is at most " in text
    place = f"model.py:{line_of(loop.replace('> 2', '> 1'))} in solve"
    assert f"counts the most that may run: the while at {place}" in text


def test_a_kernel_without_an_estimate_is_named_and_has_no_flops(project):
    result = run(project, "--perf-save", "-k", "with_kernel")
    assert result.ret == pytest.ExitCode.OK
    kernel = next(line for line in MODEL.splitlines() if "pallas_call" in line)
    place = f"model.py:{line_of(kernel)} in with_kernel"
    result.stdout.fnmatch_lines(
        ["unknown FLOP and bytes: no estimate (in Pallas: cost_estimate=) for the kernel", f"  doubled at {place}"]
    )
    assert "flops" not in (project.path / "baselines" / "tpu-v5e.json").read_text()
