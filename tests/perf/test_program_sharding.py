"""BERT's train step over four chips of a v5e and eight GPUs: the collectives that it needs, and no others."""

import collections

import equinox as eqx
import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.libtpu_needed import needs_libtpu
from support.programs import program_of

from perfsuite.workloads.bert import layers as bert_layers

from .abstract_steps import TARGET, flat_step, shapes, zeros
from .conftest import DROPOUT

pytestmark = pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices to make a mesh of")

MESHES = {"data": (4, 1), "model": (1, 4), "data and model": (2, 2)}
OVER_DATA = 3, 4
"""All-reduces, at least and at most: the counts of the loss, and gradients in the groups that the compiler combines."""
OVER_MODEL = 4, 5
"""The same in each layer: after attention and after the feed-forward block, forward and backward (Megatron-LM). The
backward one of attention adds up the gradients through query, key and value, which the compiler combines, or not all."""


@pytest.mark.parametrize("parallel", MESHES)
def test_collectives_of_a_parallel_step(perf, parallel):
    data, model = MESHES[parallel]
    made = shapes(perf.size, **DROPOUT["no-dropout"])
    program = perf.program(flat_step(made, MESHES[parallel]), TARGET, name=f"{parallel} parallel step")
    assert program.partitions == 4
    least, most = (
        over_data * (data > 1) + over_model * made.config.num_layers * (model > 1)
        for over_data, over_model in zip(OVER_DATA, OVER_MODEL, strict=True)
    )
    counts = collections.Counter(made.what for made in program.collectives)
    assert set(counts) == {"all-reduce"}
    assert least <= counts["all-reduce"] <= most
    assert not program.resharding
    assert not program.lost_donations


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices to make a mesh of")
def test_collectives_of_a_step_on_eight_gpus(perf):
    made = shapes(perf.size, **DROPOUT["no-dropout"])
    program = perf.program(flat_step(made, (8, 1)), "gpu-h100", name="data parallel step")
    assert program.partitions == 8
    assert {made.what for made in program.collectives} == {"all-reduce"}
    assert not program.resharding
    assert not program.lost_donations
    # Every gradient once, in float32 or bfloat16: the embeddings' too, which are as large as their table.
    weights = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(zeros(made.config), eqx.is_inexact_array)))
    assert 2 * weights <= program.collective_bytes < 1.01 * 4 * weights


@needs_libtpu
def test_a_replicated_activation_is_resharding_that_nobody_asked_for(perf, monkeypatch, program_cache):
    """The control: hold one activation whole on every chip, and weights and activations begin to travel."""
    call_of = bert_layers.Intermediate.__call__
    step = flat_step.__wrapped__(shapes(perf.size, **DROPOUT["no-dropout"]), MESHES["model"])
    mesh = step.args[1]["labels"].sharding.mesh

    def whole(self, x):
        return jax.lax.with_sharding_constraint(call_of(self, x), NamedSharding(mesh, PartitionSpec()))

    monkeypatch.setattr(bert_layers.Intermediate, "__call__", whole)
    planted = program_of(step, TARGET, cache=program_cache)
    gathers = [made for made in planted.resharding if made.what == "all-gather"]
    assert any(made.source and made.source.function == "Intermediate.__call__" for made in gathers)
