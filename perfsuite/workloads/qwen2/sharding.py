"""Which of Qwen2's parameters lies where on a mesh of devices.

A layer is split as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053): queries, keys, values and the two wide
products of the MLP by output features, so that each device has whole heads; the products that end both residual
branches by input features, so that one all-reduce adds up what the devices computed. Embedding and head are split by
vocabulary: one more all-reduce for the embedding, whose rows are a quarter of Qwen2-0.5B. Norms are on all devices.

Heads of keys and values are never shared by devices: the mesh axis must divide their number, which bounds it at 2 for
the two small published sizes and at 4 for Qwen2-7B. More devices belong on the axis that the batch is split over.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from perfsuite.workloads.qwen2.config import Qwen2Config
from perfsuite.workloads.qwen2.weights import weight_table
from perfsuite.workloads.surgery.sharding import check_axis

_SPLIT_DIMENSION: dict[tuple[str, str], int | None] = {
    ("embed_tokens", "embedding"): 0,
    ("input_layernorm", "scale"): None,
    ("q_proj", "kernel"): 1,
    ("q_proj", "bias"): 0,
    ("k_proj", "kernel"): 1,
    ("k_proj", "bias"): 0,
    ("v_proj", "kernel"): 1,
    ("v_proj", "bias"): 0,
    ("o_proj", "kernel"): 0,
    ("post_attention_layernorm", "scale"): None,
    ("gate_proj", "kernel"): 1,
    ("up_proj", "kernel"): 1,
    ("down_proj", "kernel"): 0,
    ("norm", "scale"): None,
    ("lm_head", "kernel"): 1,
}
"""By the end of a parameter's path: the dimension that is split. Flax keeps a kernel `[in, out]`."""


def qwen2_shardings(config: Qwen2Config, mesh: Mesh, *, axis: str = "model") -> dict[str, Any]:
    """`{"params": ...}` of `Qwen2(config)` with a `NamedSharding` in place of every array, split over `axis`.

    Raises `ValueError` if the mesh lacks the axis or has it of another type than Auto, and, with the parameter's path,
    if it does not divide a dimension or the heads in it.
    """
    check_axis(mesh, axis)
    size = mesh.shape[axis]
    heads = {"q_proj": config.num_heads, "k_proj": config.num_key_value_heads, "v_proj": config.num_key_value_heads}
    shardings: dict[str, Any] = {}
    for path, shape in _shapes(config).items():
        *parents, module, array = path
        dimension = _SPLIT_DIMENSION[module, array]
        where = f"over {size} devices (mesh axis {axis!r})"
        if module in heads and heads[module] % size:
            kind = "heads" if module == "q_proj" else "heads of keys and values"
            raise ValueError(f"{'.'.join(path)}: {heads[module]} {kind} cannot be divided {where}")
        if dimension is not None and shape[dimension] % size:
            raise ValueError(
                f"{'.'.join(path)}: an array of shape {shape} cannot be divided {where} in dimension {dimension}"
            )
        node = shardings
        for name in (*parents, module):
            node = node.setdefault(name, {})
        spec = PartitionSpec() if dimension is None else PartitionSpec(*[None] * dimension, axis)
        node[array] = NamedSharding(mesh, spec)
    return shardings


def check_parameters(given: Mapping[str, Any], config: Qwen2Config) -> None:
    """Raise one `ValueError` that names every array of `given`, by `path_name`, that is not as the model has it."""
    shapes = {".".join(path): shape for path, shape in _shapes(config).items()}
    problems = [f"{name} is missing, shape {shapes[name]}" for name in shapes.keys() - given.keys()]
    problems += [f"{name} is not known" for name in given.keys() - shapes.keys()]
    for name in shapes.keys() & given.keys():
        if np.shape(given[name]) != shapes[name]:
            problems.append(f"{name} has shape {np.shape(given[name])}, not {shapes[name]}")
    if problems:
        more = [f"and {len(problems) - 8} more"] if len(problems) > 8 else []
        raise ValueError("params do not fit the model: " + "; ".join(sorted(problems)[:8] + more))


def path_name(path: jax.tree_util.KeyPath) -> str:
    """A parameter's path as errors show it: `params.layers_0.mlp.up_proj.kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _shapes(config: Qwen2Config) -> dict[tuple[str, ...], tuple[int, ...]]:
    return {
        ("params", *weight.path): weight.shape[::-1] if weight.transposed else weight.shape
        for weight in weight_table(config).values()
    }
