"""State dicts, weights by name: reading them from files, checking them, and their places in a model's tree."""

import functools
import importlib
import operator
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array


class Weight(NamedTuple):
    """A weight's place in the model's tree, its shape in the state dict, and whether the model has its transpose."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    transposed: bool = False


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


def check_weights(
    weights: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    repeats: Mapping[str, str] | None = None,
    because: str = "",
) -> None:
    """Compare `weights`, arrays by name, with the names and `shapes` that a model has.

    `weights` may also have the names in `repeats`, each equal to the weight that `repeats` gives for it; `because` is
    the reason, for the message.

    Raises one `ValueError` that names every weight that is missing, not known, misshapen (with both shapes), not of
    floating-point numbers, or different from the weight that it must equal; of a long list, the first eight.
    """
    repeats = repeats or {}
    problems = [f"{name} is missing, shape {shape}" for name, shape in shapes.items() if name not in weights]
    for name, array in weights.items():
        source = repeats.get(name)
        if name in shapes:
            if np.shape(array) != shapes[name]:
                problems.append(f"{name} has shape {np.shape(array)}, not {shapes[name]}")
            if not jnp.issubdtype(array.dtype, jnp.floating):
                problems.append(f"{name} is {array.dtype}, not floating-point")
        elif source is None:
            problems.append(f"{name} is not known, shape {np.shape(array)}")
        elif source in weights and not np.array_equal(array, weights[source], equal_nan=True):
            problems.append(f"{name} differs from {source}, but {because}")
    if problems:
        more = [f"and {len(problems) - 8} more"] if len(problems) > 8 else []
        raise ValueError("weights do not fit the configuration: " + "; ".join(sorted(problems)[:8] + more))


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


def nested(by_path: Mapping[tuple[Any, ...], Any]) -> dict[Any, Any]:
    """A tree of dicts from the leaves by their paths."""
    tree: dict[Any, Any] = {}
    for (*parents, last), leaf in by_path.items():
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def state_dict_of(table: Mapping[str, Weight], tree: Any) -> dict[str, np.ndarray]:
    """The state dict of a `tree` of dicts and lists: the way back from `arrays_by_path`."""
    state = {}
    for name, weight in table.items():
        array = np.array(functools.reduce(operator.getitem, weight.path, tree))
        state[name] = np.ascontiguousarray(array.T) if weight.transposed else array
    return state
