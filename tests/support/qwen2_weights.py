"""Qwen2's parameters from Hugging Face's names."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfsuite.workloads.qwen2.config import Qwen2Config
from perfsuite.workloads.qwen2.weights import EMBEDDING, HEAD, weight_table
from perfsuite.workloads.state_dicts import nested
from support.state_dicts import arrays_by_path


def from_state_dict(config: Qwen2Config, weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """`{"params": ...}` for `Qwen2(config).apply`, in `config.parameter_dtype`, on the default device.

    A model with a tied head may come with a `lm_head.weight` that equals its embedding, as PyTorch saves it.

    Raises `ValueError` as `check_weights` does.
    """
    repeats = {HEAD: EMBEDDING} if config.tied_head else {}
    because = "Qwen2Config.tied_head is true"
    arrays = arrays_by_path(weight_table(config), weights, repeats, because, config.parameter_dtype)
    return {"params": nested(arrays)}
