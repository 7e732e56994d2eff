"""BERT masked-language modelling in Equinox (Devlin et al. 2018, arXiv:1810.04805): configuration, model and loss."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from perfsuite.workloads.bert.config import BertConfig
from perfsuite.workloads.bert.layers import Embeddings, Layer, MaskedLMHead
from perfsuite.workloads.training.mlm import IGNORED_LABEL

__all__ = ["IGNORED_LABEL", "BertConfig", "BertForMaskedLM", "masked_lm_loss", "parameter_count"]


class BertForMaskedLM(eqx.Module):
    """BERT with a masked-LM head.

    `BertForMaskedLM(config, key=key)` initialises as the paper does: normal(0.02) weights, zero biases.
    """

    embeddings: Embeddings
    layers: tuple[Layer, ...]
    head: MaskedLMHead
    config: BertConfig = eqx.field(static=True)

    def __init__(self, config: BertConfig, *, key: Array) -> None:
        embeddings, head, *layers = jax.random.split(key, config.num_layers + 2)
        self.embeddings = Embeddings(config, key=embeddings)
        self.layers = tuple(Layer(config, key=layer) for layer in layers)
        self.head = MaskedLMHead(config, key=head)
        self.config = config

    def __call__(
        self,
        input_ids: Array,
        attention_mask: Array,
        token_type_ids: Array | None = None,
        *,
        key: Array | None = None,
        inference: bool = False,
    ) -> Array:
        """Logits `[batch, sequence, vocabulary]` in the activation dtype.

        `input_ids` and `token_type_ids` are integers `[batch, sequence]`; `attention_mask` has their shape and is
        nonzero on real tokens. Every row must have one: eager attention over none is not a number.

        Raises `ValueError` for sequences beyond `config.max_positions`, and where dropout is on without a `key`.
        """
        keys: list[Array | None] = [None] * (1 + 3 * len(self.layers))
        if self.config.dropout > 0 and not inference:
            if key is None:
                raise ValueError("BertForMaskedLM with dropout needs a key; pass one, or inference=True")
            # One split for the whole model: every further split is another threefry to compile.
            keys = list(jax.random.split(key, len(keys)))
        mask = attention_mask.astype(bool)
        x = self.embeddings(input_ids, token_type_ids, keys[0])
        for i, layer in enumerate(self.layers):
            apply = eqx.filter_checkpoint(layer) if self.config.remat else layer
            x = apply(x, mask, tuple(keys[1 + 3 * i : 4 + 3 * i]))
        return self.head(x, self.embeddings.word_embeddings.weight).reshape(*mask.shape, -1)


def masked_lm_loss(
    model: BertForMaskedLM, batch: Mapping[str, Array], key: Array | None
) -> tuple[Array, dict[str, Array]]:
    """Mean cross-entropy in nats over the selected positions, and counts.

    `batch` has `input_ids`, `attention_mask` and `labels`, integers `[batch, sequence]`, and maybe `token_type_ids`;
    a label of `IGNORED_LABEL` is not selected. Without a `key` the model runs without dropout.

    Returns the loss (float32 scalar; zero if nothing is selected) and `{"selected", "correct"}`, int32 scalars.
    """
    logits = model(
        batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids"), key=key, inference=key is None
    )
    labels = batch["labels"]
    selected = labels != IGNORED_LABEL
    targets = jnp.where(selected, labels, 0)
    # logsumexp minus one logit, not log_softmax, so that the backward pass keeps one array of logits, not two. A gather
    # of that logit would make XLA write out all logits in float32: 4 GB for BERT-base at batch 64 and sequence 512,
    # with which the step does not fit a TPU v5e.
    wide = logits.astype(jnp.float32)
    is_target = targets[..., None] == jnp.arange(logits.shape[-1])
    target_logits = jnp.sum(jnp.where(is_target, wide, 0.0), axis=-1)
    losses = jnp.where(selected, jax.nn.logsumexp(wide, axis=-1) - target_logits, 0.0)
    count = jnp.sum(selected, dtype=jnp.int32)
    correct = jnp.sum(selected & (jnp.argmax(logits, axis=-1) == targets), dtype=jnp.int32)
    loss = jnp.sum(losses) / jnp.maximum(count, 1).astype(jnp.float32)
    return loss, {"selected": count, "correct": correct}


def parameter_count(model: Any) -> int:
    """The number of trained parameters: the sizes of all floating-point arrays of `model`, added up."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
