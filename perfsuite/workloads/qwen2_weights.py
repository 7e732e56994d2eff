"""Qwen2 parameters from and to Hugging Face's names and layouts.

Every weight has one line in an explicit table; nothing is guessed from names. Hugging Face keeps a product's weight
`[out, in]`, Flax its kernel `[in, out]`.
"""

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from perfsuite.workloads.qwen2_config import Qwen2Config

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

    Raises one `ValueError` that names every weight that is missing, not known, misshapen (with both shapes) or not of
    floating-point numbers.
    """
    table = weight_table(config)
    problems = [f"{name} is missing, shape {weight.shape}" for name, weight in table.items() if name not in weights]
    problems += _unknown(config, weights, table)
    for name in table.keys() & weights.keys():
        array = weights[name]
        if array.shape != table[name].shape:
            problems.append(f"{name} has shape {array.shape}, not {table[name].shape}")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            problems.append(f"{name} is {array.dtype}, not floating-point")
    if problems:
        raise ValueError(_listed(sorted(problems)))
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

    Needs the package `safetensors`, and raises `ImportError` where it is not installed. Raises `ValueError` as
    `from_state_dict` does, without a file, and for a weight that two files have.
    """
    try:
        safe_open = importlib.import_module("safetensors").safe_open
    except ImportError as error:
        raise ImportError("load_safetensors needs the package safetensors: pip install safetensors") from error
    if not files:
        raise ValueError("load_safetensors needs at least one file")
    weights: dict[str, np.ndarray] = {}
    origin: dict[str, str | os.PathLike[str]] = {}
    for file in files:
        # "flax", because "numpy" knows no bfloat16 in older releases, and that is how Qwen2 is published.
        with safe_open(file, framework="flax") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                if name in weights:
                    raise ValueError(f"{name} is both in {origin[name]} and in {file}")
                weights[name], origin[name] = np.asarray(opened.get_tensor(name)), file
    return from_state_dict(config, weights)


def _unknown(config: Qwen2Config, weights: Mapping[str, np.ndarray], table: Mapping[str, Weight]) -> Iterator[str]:
    for name in weights.keys() - table.keys():
        if not (config.tied_head and name == HEAD):
            yield f"{name} is not known, shape {weights[name].shape}"
        elif EMBEDDING in weights and not np.array_equal(weights[HEAD], weights[EMBEDDING]):
            yield f"{HEAD} differs from {EMBEDDING}, but Qwen2Config.tied_head is true"


def _listed(problems: list[str], shown: int = 8) -> str:
    more = [f"and {len(problems) - shown} more"] if len(problems) > shown else []
    return "weights do not fit the configuration: " + "; ".join(problems[:shown] + more)
