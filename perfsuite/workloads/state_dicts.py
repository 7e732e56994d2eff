"""State dicts, weights by name: checking them, and their places in a model's tree."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class Weight(NamedTuple):
    """A weight's place in the model's tree, its shape in the state dict, and whether the model has its transpose."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    transposed: bool = False


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


def nested(by_path: Mapping[tuple[Any, ...], Any]) -> dict[Any, Any]:
    """A tree of dicts from the leaves by their paths."""
    tree: dict[Any, Any] = {}
    for (*parents, last), leaf in by_path.items():
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree
