"""GPT-2's parameters from and to the published checkpoints, under Hugging Face's names.

There the weights of products in layers are `[in, out]` (`Conv1D`), here `[out, in]`; all else is the same.
"""

import importlib
import os
from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import numpy as np

from perfsuite.workloads.gpt2 import Params
from perfsuite.workloads.gpt2_config import GPT2Config

_TOP = (("wte", "weight"), ("wpe", "weight"), ("ln_f", "weight"), ("ln_f", "bias"))
_LAYER = tuple(
    (*path, leaf)
    for path in (("ln_1",), ("attn", "c_attn"), ("attn", "c_proj"), ("ln_2",), ("mlp", "c_fc"), ("mlp", "c_proj"))
    for leaf in ("weight", "bias")
)
# Older checkpoints hold the causal mask of every layer, and some the LM head, which is the embedding once more.
_MASKS = ("attn.bias", "attn.masked_bias")
_HEAD = "lm_head.weight"
_PREFIX = "transformer."


def from_state_dict(state: Mapping[str, np.ndarray], config: GPT2Config) -> Params:
    """Float32 parameters from a state dict of `GPT2Model` or `GPT2LMHeadModel` (names begin with `transformer.`).

    Causal masks in it are left out, and so is `lm_head.weight`, which must equal the embedding.

    Raises `ValueError` that names weights which are missing, not known, or of another shape, with both shapes.
    """
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in state) else ""
    wanted = {prefix + name: (path, shape) for name, path, shape in _weights(config)}
    ignored = {f"{prefix}h.{i}.{mask}" for i in range(config.num_layers) for mask in _MASKS} | {_HEAD}
    if missing := [name for name in wanted if name not in state]:
        raise ValueError(f"state lacks {len(missing)} weights: {_listed(missing)}")
    if extra := sorted(state.keys() - wanted.keys() - ignored):
        raise ValueError(f"state has {len(extra)} weights that GPT2Config has no place for: {_listed(extra)}")
    params: Params = {"h": [{} for _ in range(config.num_layers)]}
    for name, (path, shape) in wanted.items():
        array = np.asarray(state[name])
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, GPT2Config asks for {shape}")
        node = params["h"][int(path[1])] if path[0] == "h" else params
        for step in path[2:-1] if path[0] == "h" else path[:-1]:
            node = node.setdefault(step, {})
        node[path[-1]] = jnp.asarray(array.T if _is_transposed(path) else array, jnp.float32)
    if _HEAD in state and not np.array_equal(state[_HEAD], state[f"{prefix}wte.weight"]):
        raise ValueError(f"{_HEAD} differs from {prefix}wte.weight; GPT-2's LM head is its embedding")
    return params


def to_state_dict(params: Params, prefix: str = "") -> dict[str, np.ndarray]:
    """The state dict that `from_state_dict` reads, its names behind `prefix`.

    Raises `ValueError` for quantised parameters, which checkpoints have no names for.
    """
    if "scale" in params["wte"]:
        raise ValueError("params are quantised: a state dict holds float weights alone")
    paths = [*_TOP, *(("h", str(i), *path) for i in range(len(params["h"])) for path in _LAYER)]
    state = {}
    for path in paths:
        node = params["h"][int(path[1])] if path[0] == "h" else params
        for step in path[2:] if path[0] == "h" else path:
            node = node[step]
        array = np.asarray(node)
        state[prefix + ".".join(path)] = np.ascontiguousarray(array.T) if _is_transposed(path) else array
    return state


def load_safetensors(path: str | os.PathLike[str], config: GPT2Config) -> Params:
    """Parameters from a `.safetensors` file, as `from_state_dict`.

    Raises `ImportError` where the package safetensors is missing.
    """
    try:
        load_file = importlib.import_module("safetensors.numpy").load_file
    except ImportError as error:
        raise ImportError("load_safetensors needs the package safetensors: pip install safetensors") from error
    return from_state_dict(load_file(path), config)


def _weights(config: GPT2Config) -> Iterator[tuple[str, tuple[str, ...], tuple[int, ...]]]:
    """Name, path and published shape of every weight."""
    hidden, wide = config.hidden_size, config.intermediate_size
    shapes: dict[tuple[str, ...], tuple[int, ...]] = {
        ("wte", "weight"): (config.vocab_size, hidden),
        ("wpe", "weight"): (config.max_positions, hidden),
        ("attn", "c_attn", "weight"): (hidden, 3 * hidden),
        ("attn", "c_attn", "bias"): (3 * hidden,),
        ("attn", "c_proj", "weight"): (hidden, hidden),
        ("mlp", "c_fc", "weight"): (hidden, wide),
        ("mlp", "c_fc", "bias"): (wide,),
        ("mlp", "c_proj", "weight"): (wide, hidden),
    }
    for path in _TOP:
        yield ".".join(path), path, shapes.get(path, (hidden,))
    for i in range(config.num_layers):
        for path in _LAYER:
            whole = ("h", str(i), *path)
            yield ".".join(whole), whole, shapes.get(path, (hidden,))


def _is_transposed(path: tuple[str, ...]) -> bool:
    return path[0] == "h" and path[2] in ("attn", "mlp") and path[-1] == "weight"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
