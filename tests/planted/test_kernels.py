"""Regressions planted in a Pallas kernel for a TPU: larger blocks, and blocks that do not fit on the chip."""

import pytest
from support.libtpu_needed import needs_libtpu

pytestmark = needs_libtpu

MODEL = """
import jax
from jax.experimental import pallas

ROWS = 512


def doubling(x, out):
    out[...] = x[...] * 2


def doubled(x):
    block = pallas.BlockSpec((ROWS, 512), lambda i: (i, 0))
    cost = pallas.CostEstimate(flops=x.size, transcendentals=0, bytes_accessed=8 * x.size)
    call = pallas.pallas_call(doubling, out_shape=x, grid=(x.shape[0] // ROWS,), in_specs=[block], out_specs=block, cost_estimate=cost, name="doubled")
    return call(x)
"""

TESTS = """
import jax
import jax.numpy as jnp
import model
from perfsuite import call


def test_kernel(perf):
    perf.program(call(jax.jit(model.doubled), jax.ShapeDtypeStruct((8192, 512), jnp.float32)), "tpu-v5e")
"""

PLACE = f"model.py:{MODEL.strip().splitlines().index('    return call(x)') + 1} in doubled"


@pytest.fixture
def saved(pytester):
    """A project with a baseline of its kernel."""
    pytester.makepyfile(model=MODEL, test_model=TESTS)
    pytester.makeini("[pytest]\npythonpath = .\n")
    assert pytester.runpytest_inprocess("--perf-save").ret == pytest.ExitCode.OK
    return pytester


def with_rows(project, rows) -> str:
    (project.path / "model.py").write_text(MODEL.strip().replace("ROWS = 512", f"ROWS = {rows}"))
    result = project.runpytest_inprocess("--perf")
    assert result.ret == (pytest.ExitCode.OK if rows == 512 else pytest.ExitCode.TESTS_FAILED)
    return str(result.stdout)


def test_the_same_blocks_pass(saved):
    assert "vmem" not in with_rows(saved, 512)


def test_larger_blocks_take_more_of_the_memory_on_the_chip(saved):
    printed = with_rows(saved, 1024)
    assert "doubled vmem bytes @ tpu-v5e is 8,388,608 bytes, +100 % over the baseline 4,194,304 bytes" in printed
    assert f"grew: doubled in doubled (model.py) (+4,194,304) at {PLACE}" in printed


def test_blocks_that_do_not_fit_are_refused_with_the_whole_message_and_the_line(saved):
    printed = with_rows(saved, 4096)
    assert f"the compiler for tpu-v5e refused the program at {PLACE}: " in printed
    assert "Ran out of memory in memory space vmem while allocating on stack for %doubled" in printed
    assert "size 32.00M and limit 16.00M" in printed
