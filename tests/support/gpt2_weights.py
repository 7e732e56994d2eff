"""GPT-2's parameters from the published checkpoints, under Hugging Face's names.

There the weights of products in layers are `[in, out]` (`Conv1D`), here `[out, in]`; all else is the same.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfsuite.workloads.gpt2 import Params
from perfsuite.workloads.gpt2.config import GPT2Config
from perfsuite.workloads.state_dicts import Weight, nested
from support.state_dicts import arrays_by_path

# Some checkpoints hold the LM head, which is the embedding once more.
_HEAD = "lm_head.weight"
_PREFIX = "transformer."


def from_state_dict(state: Mapping[str, np.ndarray], config: GPT2Config) -> Params:
    """Float32 parameters from a state dict of `GPT2Model` or `GPT2LMHeadModel` (names begin with `transformer.`).

    `lm_head.weight` is left out; it must equal the embedding.

    Raises `ValueError` as `check_weights` does.
    """
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in state) else ""
    table = _table(config.vocab_size, config.max_positions, config.hidden_size, config.num_layers, prefix)
    repeats = {_HEAD: f"{prefix}wte.weight"}
    params = nested(arrays_by_path(table, state, repeats, because="GPT-2's LM head is its embedding"))
    return {**params, "h": list(params.get("h", {}).values())}


def _table(vocab_size: int, max_positions: int, hidden: int, num_layers: int, prefix: str) -> dict[str, Weight]:
    """Every weight by its Hugging Face name."""
    norm: dict[str, tuple[int, ...]] = {"weight": (hidden,), "bias": (hidden,)}

    def product(inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
        return {"weight": (inputs, outputs), "bias": (outputs,)}

    layer: dict[tuple[str, ...], dict[str, tuple[int, ...]]] = {
        ("ln_1",): norm,
        ("attn", "c_attn"): product(hidden, 3 * hidden),
        ("attn", "c_proj"): product(hidden, hidden),
        ("ln_2",): norm,
        ("mlp", "c_fc"): product(hidden, 4 * hidden),
        ("mlp", "c_proj"): product(4 * hidden, hidden),
    }
    parts: dict[tuple[Any, ...], dict[str, tuple[int, ...]]] = {
        ("wte",): {"weight": (vocab_size, hidden)},
        ("wpe",): {"weight": (max_positions, hidden)},
        ("ln_f",): norm,
    }
    parts |= {("h", i, *path): arrays for i in range(num_layers) for path, arrays in layer.items()}
    return {
        prefix + ".".join(map(str, (*path, leaf))): Weight((*path, leaf), shape, path[0] == "h" and len(shape) == 2)
        for path, arrays in parts.items()
        for leaf, shape in arrays.items()
    }
