"""State dicts, weights by name: reading them from files, and checking them against a model's names and shapes."""

import importlib
import os
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np


def read_safetensors(*files: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The weights in `files`, all parts of one checkpoint, as they are.

    Needs the package `safetensors`, and raises `ImportError` where it is not installed. Raises `ValueError` without a
    file, for a weight that two files have and for a file that is damaged or holds a dtype that NumPy has not, and
    `OSError` for one that cannot be opened; each names its file.
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
        # Python's own error first: safetensors 0.8 says of a folder "No such device" with no name, and "No such file"
        # of a file that may not be read.
        with open(file, "rb"):
            pass
        try:
            # "flax", because "numpy" knows no bfloat16 in older releases, and checkpoints are published in it.
            with safetensors.safe_open(file, framework="flax") as opened:
                read = {name: np.asarray(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118 - no mapping
        except (safetensors.SafetensorError, AttributeError) as error:  # the latter for float8, which NumPy has not
            raise ValueError(f"{file} cannot be read as safetensors: {error}") from error
        for name in read:
            if name in weights:
                raise ValueError(f"{name} is both in {origin[name]} and in {file}")
            origin[name] = file
        weights |= read
    return weights


def check_weights(
    weights: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], repeats: Mapping[str, str], because: str
) -> None:
    """Compare `weights` with the names and `shapes` that a model has.

    Args:
        weights: the arrays to check, by name.
        shapes: the shape of each weight of the model, by name.
        repeats: names that `weights` may have besides, each with the name of the weight that it must equal.
        because: why it must, for the message.

    Raises one `ValueError` that names every weight that is missing, not known, misshapen (with both shapes), not of
    floating-point numbers, or no repeat of the weight that it should equal; of a long list, the first eight.
    """
    problems = [f"{name} is missing, shape {shape}" for name, shape in shapes.items() if name not in weights]
    for name in weights:
        array, source = np.asarray(weights[name]), repeats.get(name)
        if name in shapes:
            if array.shape != shapes[name]:
                problems.append(f"{name} has shape {array.shape}, not {shapes[name]}")
            if not jnp.issubdtype(array.dtype, jnp.floating):
                problems.append(f"{name} is {array.dtype}, not floating-point")
        elif source is None:
            problems.append(f"{name} is not known, shape {array.shape}")
        elif source in weights and not np.array_equal(array, weights[source], equal_nan=True):
            problems.append(f"{name} differs from {source}, but {because}")
    if problems:
        more = [f"and {len(problems) - 8} more"] if len(problems) > 8 else []
        raise ValueError("weights do not fit the configuration: " + "; ".join(sorted(problems)[:8] + more))
