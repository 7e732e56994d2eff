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
PLACE = f"model.py:{MODEL.strip().splitlines().index(MEAN) + 1} in normalised"


@pytest.fixture
def saved(pytester):
    """A project with a baseline of its step, which stays inside the slices."""
    pytester.makepyfile(model=MODEL, test_model=TESTS)
    pytester.makeini("[pytest]\npythonpath = .\n")
    assert pytester.runpytest_inprocess("--perf-save").ret == pytest.ExitCode.OK
    return pytester


def with_mean(project, line) -> str:
    source = MODEL.strip()
    assert source.count(MEAN) == 1
    (project.path / "model.py").write_text(source.replace(MEAN, line))
    result = project.runpytest_inprocess("--perf")
    assert result.ret == (pytest.ExitCode.OK if line == MEAN else pytest.ExitCode.TESTS_FAILED)
    return str(result.stdout)


def test_a_mean_inside_the_slice_passes(saved):
    assert "cross-slice" not in with_mean(saved, MEAN)


def test_a_mean_over_both_slices_leaves_them(saved):
    printed = with_mean(saved, MEAN.replace('"chip"', '("slice", "chip")'))
    said = "step cross-slice collectives @ tpu-v5e is 1 collective, +1 over the baseline 0 collectives"
    assert f"{said}; grew: all-reduce in normalised (model.py) (+1) at {PLACE}" in printed
    assert f"+ 1 x cross-slice all-reduce in normalised (model.py): {PLACE}" in printed
