"""Fusion analysis with the v5e's own compiler: which operations of BERT's attention and dropout share a kernel.

Each has a control: an `optimization_barrier` where the kernel is to hold together, and the same question answers no.
"""

import math

import jax
import jax.numpy as jnp
import pytest
from support.libtpu_needed import needs_libtpu
from support.programs import program_of

from perfsuite.workloads.bert import layers as bert_layers

from .abstract_steps import TARGET, flat_step, shapes
from .conftest import DROPOUT

QK = "bqnd,bknd->bnqk"
PV = "bnqk,bknd->bqnd"

DROPOUT_KERNEL = ("_bernoulli", "xor", "lt", "div", "select_n")
"""Random bits, their comparison with the rate, the scale, and the choice."""
MASK_KERNEL = (QK, "div", "select_n")
"""QK^T, its scale, and minus infinity where the mask says so."""
ATTENTION_DROPOUT_KERNEL = ("divide", "_bernoulli", "lt", "select_n", PV)
"""The end of softmax, attention dropout, and the product with V. The opcode `divide` is softmax's: dropout's own `div`,
by a constant, has become a multiplication."""

KERNELS = {"dropout": DROPOUT_KERNEL, "mask": MASK_KERNEL, "attention dropout": ATTENTION_DROPOUT_KERNEL}


def barrier_in_dropout(x, rate, key):
    """`bert_layers._dropout` with a barrier between comparison and choice."""
    if key is None or rate == 0:
        return x
    kept = jax.lax.optimization_barrier(jax.random.bernoulli(key, 1 - rate, x.shape))
    return jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype))


def eager_with(*, after_scores=lambda x: x, after_softmax=lambda x: x):
    """`bert_layers.Attention._eager` with something in between."""

    def eager(self, query, key, value, visible, dropout_key):
        scores = after_scores(jnp.einsum(QK, query, key, preferred_element_type=jnp.float32))
        scores = jnp.where(visible, scores / math.sqrt(query.shape[-1]), -jnp.inf)
        weights = after_softmax(jax.nn.softmax(scores, axis=-1).astype(value.dtype))
        return jnp.einsum(PV, bert_layers._dropout(weights, self.dropout, dropout_key), value)

    return eager


PLANTS = {
    "dropout": (bert_layers, "_dropout", barrier_in_dropout),
    "mask": (bert_layers.Attention, "_eager", eager_with(after_scores=jax.lax.optimization_barrier)),
    "attention dropout": (bert_layers.Attention, "_eager", eager_with(after_softmax=jax.lax.optimization_barrier)),
}


def step(size):
    return flat_step.__wrapped__(shapes(size, **DROPOUT["dropout"]))


def test_operations_share_a_kernel(perf):
    program = perf.program(step(perf.size), TARGET)
    for kernel, names in KERNELS.items():
        found = program.fuses(*names)
        assert len(found) >= shapes(perf.size).config.num_layers, f"{kernel}: forward, in every layer"
        perf.record(f"kernels with {kernel}", len(found), unit="kernels", kind="count", better="higher", target=TARGET)


def lowered(made):
    """What is compiled for any target, as text, without the lines that it comes from."""
    return made.fn.lower(*made.args).as_text()


@needs_libtpu
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_barrier_tears_the_kernel_apart_and_is_seen(perf, kernel, monkeypatch, program_cache):
    monkeypatch.setattr(*PLANTS[kernel])
    planted = program_of(step(perf.size), TARGET, cache=program_cache)
    assert not planted.fuses(*KERNELS[kernel])


def test_the_layers_with_nothing_in_between_are_those_of_bert(perf, monkeypatch):
    """So that the barriers above are the only change that they plant."""
    whole = lowered(step(perf.size))
    monkeypatch.setattr(bert_layers.Attention, "_eager", eager_with())
    assert lowered(step(perf.size)) == whole
    monkeypatch.setattr(*PLANTS["mask"])
    assert lowered(step(perf.size)) != whole
