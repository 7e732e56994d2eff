"""BERT's parameters from and to Hugging Face's names.

Every weight has one line in an explicit table. Layouts are the same on both sides: a product's weight is `[out, in]`.
"""

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey, KeyPath, SequenceKey

from perfsuite.workloads.bert import BertForMaskedLM
from perfsuite.workloads.bert.config import BertConfig
from perfsuite.workloads.state_dicts import check_weights, read_safetensors
from perfsuite.workloads.surgery.module_paths import at_path
from perfsuite.workloads.surgery.replacing import replace_on_paths

EMBEDDING, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
# What checkpoints hold twice, because the head shares it, with where it is read from.
_SHARED = {"cls.predictions.decoder.weight": EMBEDDING, "cls.predictions.decoder.bias": BIAS}
# What published checkpoints hold beside a masked-LM: the head of next-sentence prediction, and positions counted up.
_LEFT_OUT = ("bert.pooler.", "cls.seq_relationship.", "bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
# TensorFlow's names of a norm's weight and bias, which the first published checkpoints have.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

# Hugging Face's name of each part, and ours.
_EMBEDDINGS = {name: name for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")}
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


class Weight(NamedTuple):
    """Where a weight is in the model, and its shape, the same on both sides."""

    path: KeyPath
    shape: tuple[int, ...]


def weight_table(config: BertConfig) -> dict[str, Weight]:
    """Every weight of the model by its Hugging Face name."""
    model = _shapes(config)
    paths = {name: _path(ours) for name, ours in _names(config.num_layers)}
    return {name: Weight(path, at_path(model, path).shape) for name, path in paths.items()}


def from_state_dict(config: BertConfig, weights: Mapping[str, np.ndarray]) -> BertForMaskedLM:
    """The model of a state dict of `BertForMaskedLM` or `BertForPreTraining`, in float32, on the default device.

    The pooler and the next-sentence head are left out, and so is the decoder, whose weight must equal the word
    embedding. Norms may have `gamma` and `beta`, as in the first published checkpoints.

    Raises `ValueError` as `check_weights` does.
    """
    weights = {_present_name(name): array for name, array in weights.items() if not name.startswith(_LEFT_OUT)}
    table = weight_table(config)
    shapes = {name: weight.shape for name, weight in table.items()}
    check_weights(weights, shapes, _SHARED, because="BertForMaskedLM's decoder has no weights of its own")
    # Copies: on a CPU `jnp.asarray` may share memory with an array that its owner goes on to change.
    arrays = {weight.path: jnp.array(weights[name], jnp.float32) for name, weight in table.items()}
    return replace_on_paths(_shapes(config), arrays)


def to_state_dict(model: BertForMaskedLM) -> dict[str, np.ndarray]:
    """The state dict that `from_state_dict` reads, without the decoder, which is the word embedding. The way back."""
    return {name: np.array(at_path(model, _path(ours))) for name, ours in _names(len(model.layers))}


def load_safetensors(config: BertConfig, *files: str | os.PathLike[str]) -> BertForMaskedLM:
    """`from_state_dict` of the weights in `files`, all parts of one checkpoint.

    Raises as `from_state_dict` and `read_safetensors` do.
    """
    return from_state_dict(config, read_safetensors(*files))


def _names(num_layers: int) -> Iterator[tuple[str, str]]:
    """Hugging Face's name and ours of every weight."""
    for theirs, ours in _EMBEDDINGS.items():
        yield f"bert.embeddings.{theirs}.weight", f"embeddings.{ours}.weight"
    parts = {"bert.embeddings.LayerNorm": "embeddings.norm"}
    for i in range(num_layers):
        parts |= {f"bert.encoder.layer.{i}.{theirs}": f"layers.{i}.{ours}" for theirs, ours in _LAYER.items()}
    parts |= {f"cls.predictions.transform.{theirs}": f"head.{ours}" for theirs, ours in _HEAD.items()}
    for theirs, ours in parts.items():
        for leaf in ("weight", "bias"):
            yield f"{theirs}.{leaf}", f"{ours}.{leaf}"
    yield BIAS, "head.bias"


def _path(name: str) -> KeyPath:
    return tuple(SequenceKey(int(part)) if part.isdigit() else GetAttrKey(part) for part in name.split("."))


def _shapes(config: BertConfig) -> BertForMaskedLM:
    """The model with shapes for arrays."""
    return eqx.filter_eval_shape(BertForMaskedLM, config, key=jax.random.key(0))


def _present_name(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
