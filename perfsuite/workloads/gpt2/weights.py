"""GPT-2's parameters from and to the published checkpoints, under Hugging Face's names.

There the weights of products in layers are `[in, out]` (`Conv1D`), here `[out, in]`; all else is the same.
"""

import os
from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import numpy as np

from perfsuite.workloads.gpt2 import Params
from perfsuite.workloads.gpt2.config import GPT2Config
from perfsuite.workloads.state_dicts import check_weights, read_safetensors

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

    Raises `ValueError` as `check_weights` does.
    """
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in state) else ""
    wanted = {prefix + name: (path, shape) for name, path, shape in _weights(config)}
    masks = {f"{prefix}h.{i}.{mask}" for i in range(config.num_layers) for mask in _MASKS}
    state = {name: array for name, array in state.items() if name not in masks}
    shapes = {name: shape for name, (_, shape) in wanted.items()}
    check_weights(state, shapes, {_HEAD: f"{prefix}wte.weight"}, because="GPT-2's LM head is its embedding")
    params: Params = {"h": [{} for _ in range(config.num_layers)]}
    for name, (path, _) in wanted.items():
        array = np.asarray(state[name])
        node = params["h"][int(path[1])] if path[0] == "h" else params
        for step in path[2:-1] if path[0] == "h" else path[:-1]:
            node = node.setdefault(step, {})
        # A copy: on a CPU `jnp.asarray` may share memory with an array that its owner goes on to change.
        node[path[-1]] = jnp.array(array.T if _is_transposed(path) else array, jnp.float32)
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
    """`from_state_dict` of the weights in the `.safetensors` file at `path`.

    Raises as `from_state_dict` and `read_safetensors` do.
    """
    return from_state_dict(read_safetensors(path), config)


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
