"""Published weights: reading them from files into a model's tree, and back."""

import functools
import importlib
import operator
import os
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from perfsuite.workloads.state_dicts import Weight, check_weights


def read_safetensors(*files: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The weights in `files`, all parts of one checkpoint, as they are.

    Raises `ImportError` without the package `safetensors`; `ValueError` without a file, for a weight that two files
    have, and for a file that is damaged or holds a dtype that NumPy lacks; `OSError` for a file that cannot be opened.
    Each names its file.
    """
    try:
        safetensors = importlib.import_module("safetensors")
    except ImportError as error:
        raise ImportError("reading weights needs the package safetensors: pip install safetensors") from error
    if not files:
        raise ValueError("reading weights needs at least one file")
    weights: dict[str, np.ndarray] = {}
    origin: dict[str, str | os.PathLike[str]] = {}
    for file in files:
        # For Python's own error: safetensors 0.8 reports a folder as "No such device" and an unreadable file as
        # "No such file", without a name.
        with open(file, "rb"):
            pass
        try:
            # "flax", because "numpy" lacks bfloat16 in older releases, and checkpoints are published in it.
            with safetensors.safe_open(file, framework="flax") as opened:
                read = {name: np.asarray(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118 - no mapping
        except (safetensors.SafetensorError, AttributeError) as error:  # the latter for float8, which NumPy lacks
            raise ValueError(f"{file} cannot be read as safetensors: {error}") from error
        for name in read:
            if name in weights:
                raise ValueError(f"{name} is both in {origin[name]} and in {file}")
            origin[name] = file
        weights |= read
    return weights


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


def state_dict_of(table: Mapping[str, Weight], tree: Any) -> dict[str, np.ndarray]:
    """The state dict of a `tree` of dicts and lists: the way back from `arrays_by_path`."""
    state = {}
    for name, weight in table.items():
        array = np.array(functools.reduce(operator.getitem, weight.path, tree))
        state[name] = np.ascontiguousarray(array.T) if weight.transposed else array
    return state
