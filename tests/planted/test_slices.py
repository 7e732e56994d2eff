"""Regressions planted in a step over two slices: a collective that leaves its slice is caught, and named with its line."""

import pytest
from support.libtpu_needed import needs_libtpu

pytestmark = needs_libtpu

MODEL = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

MESH = AbstractMesh((2, 4), ("slice", "chip"))
ROWS = PartitionSpec(("slice", "chip"))


def normalised(x):
    mean = lax.pmean(x, "chip")
    return x - mean


def step(x):
    y = jax.shard_map(normalised, mesh=MESH, in_specs=ROWS, out_specs=ROWS, check_vma=False)(jnp.sin(x))
    return y * 2


X = jax.ShapeDtypeStruct((1024, 512), jnp.float32, sharding=NamedSharding(MESH, ROWS))
"""

TESTS = """
import jax
import model
from perfsuite import call


def test_step(perf):
    perf.program(call(jax.jit(model.step), model.X), "tpu-v5e", chips=8, slices=2)
"""

MEAN = '    mean = lax.pmean(x, "chip")'
PLACE = f"model.py:{MODEL.splitlines().index(MEAN) + 1} in normalised"


@pytest.fixture
def with_mean(saved_project):
    """What a run prints with this line in the step, whose baseline stays inside the slices."""
    gated = saved_project(MODEL, TESTS)
    return lambda line: gated(MODEL.replace(MEAN, line))


def test_a_mean_inside_the_slice_passes(with_mean):
    assert "cross-slice" not in with_mean(MEAN)


def test_a_mean_over_both_slices_leaves_them(with_mean):
    printed = with_mean(MEAN.replace('"chip"', '("slice", "chip")'))
    said = "step cross-slice collectives @ tpu-v5e is 1 collective, +1 over the baseline 0 collectives"
    assert f"{said}; grew: all-reduce in normalised (model.py) (+1) at {PLACE}" in printed
    assert f"+ 1 x cross-slice all-reduce in normalised (model.py): {PLACE}" in printed
