"""Which of Qwen2's parameters lies where on a mesh of devices.

A layer is split as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053): queries, keys, values and the two wide
products of the MLP by output features, so that each device has whole heads; the products that end both residual
branches by input features, so that one all-reduce adds up what the devices computed. Embedding and head are split by
vocabulary: one more all-reduce for the embedding, whose rows are a quarter of Qwen2-0.5B. Norms are on all devices.

Devices never share heads of keys and values: the mesh axis must divide their number, at most 2 for the two small
published sizes and 4 for Qwen2-7B. More devices belong on the axis that splits the batch.
"""

from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from perfsuite.workloads.qwen2.config import Qwen2Config
from perfsuite.workloads.qwen2.weights import weight_table
from perfsuite.workloads.state_dicts import nested
from perfsuite.workloads.surgery.sharding import check_axis, check_split
from perfsuite.workloads.surgery.tensor_parallel import Split

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
    groups = {"q_proj": config.num_heads, "k_proj": config.num_key_value_heads, "v_proj": config.num_key_value_heads}
    shardings = {}
    for path, shape in parameter_shapes(config).items():
        module, array = path[-2:]
        dimension = _SPLIT_DIMENSION[module, array]
        spec = PartitionSpec() if dimension is None else PartitionSpec(*[None] * dimension, axis)
        try:
            check_split(Split(array, shape, spec, groups.get(module)), mesh)
        except ValueError as error:
            raise ValueError(f"{'.'.join(path)}: {error}") from None
        shardings[path] = NamedSharding(mesh, spec)
    return nested(shardings)


def parameter_shapes(config: Qwen2Config) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Every parameter's shape by its path in `{"params": ...}`."""
    return {
        ("params", *weight.path): weight.shape[::-1] if weight.transposed else weight.shape
        for weight in weight_table(config).values()
    }
