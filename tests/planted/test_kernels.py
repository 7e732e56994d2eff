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

PLACE = f"model.py:{MODEL.splitlines().index('    return call(x)') + 1} in doubled"


@pytest.fixture
def with_rows(saved_project):
    """What a run prints with so many rows in a block; the baseline has 512."""
    gated = saved_project(MODEL, TESTS)
    return lambda rows: gated(MODEL.replace("ROWS = 512", f"ROWS = {rows}"))


def test_the_same_blocks_pass(with_rows):
    assert "vmem" not in with_rows(512)


def test_larger_blocks_take_more_of_the_memory_on_the_chip(with_rows):
    printed = with_rows(1024)
    assert "doubled vmem bytes @ tpu-v5e is 8,388,608 bytes, +100 % over the baseline 4,194,304 bytes" in printed
    assert f"grew: doubled in doubled (model.py) (+4,194,304) at {PLACE}" in printed


def test_blocks_that_do_not_fit_are_refused_with_the_whole_message_and_the_line(with_rows):
    printed = with_rows(4096)
    assert f"the compiler for tpu-v5e refused the program at {PLACE}: " in printed
    assert "Ran out of memory in memory space vmem while allocating on stack for %doubled" in printed
    assert "size 32.00M and limit 16.00M" in printed
