"""The leaves of a call's arguments with their paths, such as `args[0]['kernel']`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax


def leaves_with_paths(
    args: tuple, kwargs: Mapping[str, Any] | None = None, is_leaf: Callable[[Any], bool] | None = None
) -> Iterator[tuple[str, Any]]:
    for base, value in (("args", args), ("kwargs", kwargs or {})):
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=is_leaf):
            yield f"{base}{jax.tree_util.keystr(path)}", leaf


def text_of_array(value: Any) -> str:
    """Shape and dtype of an array or of its description: "float32[8,128]"."""
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"
