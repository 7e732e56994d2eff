"""BERT's parameters from Hugging Face's names. Every weight has one line in an explicit table.

Both sides hold a product's weight as `[out, in]`.
"""

from collections.abc import Iterator, Mapping

import equinox as eqx
import jax
import numpy as np

from perfsuite.workloads.bert import BertForMaskedLM
from perfsuite.workloads.bert.config import BertConfig
from perfsuite.workloads.state_dicts import Weight
from perfsuite.workloads.structure import path_name
from support.state_dicts import arrays_by_path

EMBEDDING, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
# Weights that checkpoints hold twice, because the head shares them.
_SHARED = {"cls.predictions.decoder.weight": EMBEDDING, "cls.predictions.decoder.bias": BIAS}
# Published checkpoints also hold the head of next-sentence prediction, and position numbers.
_LEFT_OUT = ("bert.pooler.", "cls.seq_relationship.", "bert.embeddings.position_ids", "bert.embeddings.token_type_ids")

# Hugging Face's name of each part, and ours.
_EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_LAYER = {
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.output.dense",
    "attention.output.LayerNorm": "attention.output.norm",
    "intermediate.dense": "intermediate.dense",
    "output.dense": "output.dense",
    "output.LayerNorm": "output.norm",
}
_HEAD = {"dense": "dense", "LayerNorm": "norm"}


def weight_table(config: BertConfig) -> dict[str, Weight]:
    """Every weight of the model by its Hugging Face name."""
    ours = {path_name(path): Weight(path, leaf.shape) for path, leaf in jax.tree.leaves_with_path(_shapes(config))}
    return {theirs: ours[name] for theirs, name in _names(config.num_layers)}


def from_state_dict(config: BertConfig, weights: Mapping[str, np.ndarray]) -> BertForMaskedLM:
    """The model of a state dict of `BertForMaskedLM` or `BertForPreTraining`, in float32, on the default device.

    The pooler and the next-sentence head are left out, and so is the decoder, whose weight must equal the word
    embedding.

    Raises `ValueError` as `check_weights` does.
    """
    weights = {name: array for name, array in weights.items() if not name.startswith(_LEFT_OUT)}
    because = "BertForMaskedLM's decoder has no weights of its own"
    arrays = arrays_by_path(weight_table(config), weights, _SHARED, because)
    return jax.tree.map_with_path(lambda path, _: arrays[path], _shapes(config))


def _names(num_layers: int) -> Iterator[tuple[str, str]]:
    """Hugging Face's name and ours of every weight."""
    for name in _EMBEDDINGS:
        yield f"bert.embeddings.{name}.weight", f"embeddings.{name}.weight"
    parts = {"bert.embeddings.LayerNorm": "embeddings.norm"}
    for i in range(num_layers):
        parts |= {f"bert.encoder.layer.{i}.{theirs}": f"layers.{i}.{ours}" for theirs, ours in _LAYER.items()}
    parts |= {f"cls.predictions.transform.{theirs}": f"head.{ours}" for theirs, ours in _HEAD.items()}
    for theirs, ours in parts.items():
        for leaf in ("weight", "bias"):
            yield f"{theirs}.{leaf}", f"{ours}.{leaf}"
    yield BIAS, "head.bias"


def _shapes(config: BertConfig) -> BertForMaskedLM:
    """The model with shapes for arrays."""
    return eqx.filter_eval_shape(BertForMaskedLM, config, key=jax.random.key(0))
