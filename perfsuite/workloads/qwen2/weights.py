"""Qwen2 parameters from and to Hugging Face's names and layouts.

Every weight has one line in an explicit table; nothing is guessed from names. Hugging Face keeps a product's weight
`[out, in]`, Flax its kernel `[in, out]`.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from perfsuite.workloads.qwen2.config import Qwen2Config
from perfsuite.workloads.state_dicts import check_weights, read_safetensors

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Weight(NamedTuple):
    """Where a weight goes in the tree below `params`, and its shape in the state dict."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    transposed: bool = False


def weight_table(config: Qwen2Config) -> dict[str, Weight]:
    """Every weight of the model by its Hugging Face name."""
    hidden, wide = config.hidden_size, config.intermediate_size
    memory = config.num_key_value_heads * config.head_size
    table = {EMBEDDING: Weight(("embed_tokens", "embedding"), (config.vocab_size, hidden))}
    for i in range(config.num_layers):
        source, target = f"model.layers.{i}", f"layers_{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            table[f"{source}.{norm}.weight"] = Weight((target, norm, "scale"), (hidden,))
        for name, size in (("q_proj", hidden), ("k_proj", memory), ("v_proj", memory)):
            path = target, "self_attn", name
            table[f"{source}.self_attn.{name}.weight"] = Weight((*path, "kernel"), (size, hidden), True)
            table[f"{source}.self_attn.{name}.bias"] = Weight((*path, "bias"), (size,))
        for block, name, shape in (
            ("self_attn", "o_proj", (hidden, hidden)),
            ("mlp", "gate_proj", (wide, hidden)),
            ("mlp", "up_proj", (wide, hidden)),
            ("mlp", "down_proj", (hidden, wide)),
        ):
            table[f"{source}.{block}.{name}.weight"] = Weight((target, block, name, "kernel"), shape, True)
    table["model.norm.weight"] = Weight(("norm", "scale"), (hidden,))
    if not config.tied_head:
        table[HEAD] = Weight(("lm_head", "kernel"), (config.vocab_size, hidden), True)
    return table


def from_state_dict(config: Qwen2Config, weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """`{"params": ...}` for `Qwen2(config).apply`, in `config.parameter_dtype`, on the default device.

    A model with a tied head may come with a `lm_head.weight` that equals its embedding, as PyTorch saves it.

    Raises `ValueError` as `check_weights` does.
    """
    table = weight_table(config)
    shapes = {name: weight.shape for name, weight in table.items()}
    repeats = {HEAD: EMBEDDING} if config.tied_head else {}
    check_weights(weights, shapes, repeats, because="Qwen2Config.tied_head is true")
    params: dict[str, Any] = {}
    for name, weight in table.items():
        array = weights[name].T if weight.transposed else weights[name]
        *parents, leaf = weight.path
        node = params
        for parent in parents:
            node = node.setdefault(parent, {})
        # A copy: on a CPU `jnp.asarray` may share memory with an array that its owner goes on to change.
        node[leaf] = jnp.array(array, config.parameter_dtype)
    return {"params": params}


def to_state_dict(config: Qwen2Config, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Hugging Face's state dict of `{"params": ...}`, in NumPy arrays of the parameters' dtype. The way back."""
    weights = {}
    for name, weight in weight_table(config).items():
        node: Any = params["params"]
        for part in weight.path:
            node = node[part]
        # A whole array and no view of a transposed one: safetensors writes memory as it lies.
        weights[name] = np.ascontiguousarray(np.asarray(node).T if weight.transposed else np.asarray(node))
    return weights


def load_safetensors(config: Qwen2Config, *files: str | os.PathLike[str]) -> dict[str, Any]:
    """`from_state_dict` of the weights in `files`, all parts of one checkpoint.

    Raises as `from_state_dict` and `read_safetensors` do.
    """
    return from_state_dict(config, read_safetensors(*files))
