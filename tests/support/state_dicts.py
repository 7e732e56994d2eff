"""Published weights, read into a model's tree."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from perfsuite.workloads.state_dicts import Weight, check_weights


def arrays_by_path(
    table: Mapping[str, Weight],
    weights: Mapping[str, np.ndarray],
    repeats: Mapping[str, str],
    because: str,
    dtype: str = "float32",
) -> dict[tuple[Any, ...], Array]:
    """The model's arrays, by their paths in its tree, of a state dict that must fit `table`: see `check_weights`."""
    check_weights(weights, {name: weight.shape for name, weight in table.items()}, repeats, because)
    # Copies: on a CPU `jnp.asarray` may share memory with an array that its owner then changes.
    return {
        weight.path: jnp.array(weights[name].T if weight.transposed else weights[name], dtype)
        for name, weight in table.items()
    }
