"""Layers that hold how their arrays are split over a mesh of devices, and the plan that makes BERT of such layers.

A transformer layer is split as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053): query, key, value and the wide
feed-forward product by output features, so that each device has whole heads (`column_parallel`); the products that end
both residual branches by input features, so that one all-reduce adds up what the devices computed (`row_parallel`).
Every other array is on all devices: norms and row-parallel biases because they work on the sum; the head's dense
product because it is small; and the embeddings, which Megatron splits by vocabulary, because BERT's 30 522 rows are no
multiple of four.

`sharding.module_shardings` brings layers and mesh together.
"""

import dataclasses
from functools import partial
from typing import Any

import equinox as eqx
import jax
from jax.sharding import PartitionSpec

from perfsuite.workloads.bert.config import BertConfig
from perfsuite.workloads.structure import is_array_or_struct
from perfsuite.workloads.surgery.transforms import Transform


@dataclasses.dataclass(frozen=True)
class Split:
    """How one array of a layer is split over mesh axes.

    An array of another shape is not the layer's own, for example a factored second moment that an optimizer keeps in
    its place, and is not split. `groups` is the number of equal parts of the split dimension, such as attention heads,
    that must each stay on one device.
    """

    array: str
    shape: tuple[int, ...]
    spec: PartitionSpec
    groups: int | None = None


class Partitioned(eqx.Module):
    """A layer with how its arrays are split. It is called like the layer and has its attributes.

    Make one with `partitioned`, `column_parallel` or `row_parallel`.
    """

    layer: Any
    splits: tuple[Split, ...] = eqx.field(static=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever the layer gives."""
        return self.layer(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Python calls this for names that are not found otherwise, and before `layer` is set.
        if name == "layer" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.layer, name)


def partitioned(layer: Any, *, groups: int | None = None, **specs: PartitionSpec) -> Partitioned:
    """`layer` with specs for arrays of its own: `partitioned(embedding, weight=PartitionSpec("model"))`.

    The others are on all devices. `groups`: see `Split`. Split a stack of layers after the `equinox.filter_vmap` that
    makes it: inside, its arrays have other shapes. Raises `TypeError` for a name that is no array of the layer and for
    a layer that is split already, `ValueError` for a spec with more dimensions than its array.
    """
    if isinstance(layer, Partitioned):
        raise TypeError(f"this {type(layer.layer).__name__} is split already")
    splits = []
    for name, spec in specs.items():
        shape = getattr(getattr(layer, name, None), "shape", None)
        if shape is None:
            raise TypeError(f"{type(layer).__name__}.{name} is no array, so it cannot be split")
        if len(spec) > len(shape):
            raise ValueError(f"{type(layer).__name__}.{name} has shape {shape}, too few dimensions for {spec}")
        splits.append(Split(name, tuple(shape), spec, groups))
    return Partitioned(layer, tuple(splits))


def column_parallel(linear: eqx.nn.Linear, *, axis: str = "model", groups: int | None = None) -> Partitioned:
    """`linear` split by output features over the mesh axis `axis`, the bias with them.

    `weight` is `[..., out, in]`, with the dimensions of a stack of layers in front. `groups`: see `Split`.
    """
    weight, bias = _arrays(linear, "column_parallel")
    specs = {"weight": _split_at(weight.ndim - 2, axis)}
    if bias is not None:
        specs["bias"] = _split_at(bias.ndim - 1, axis)
    return partitioned(linear, groups=groups, **specs)


def row_parallel(linear: eqx.nn.Linear, *, axis: str = "model") -> Partitioned:
    """`linear` split by input features over the mesh axis `axis`; the bias, added to the sum, is on all devices.

    `weight` is `[..., out, in]`, with the dimensions of a stack of layers in front.
    """
    weight, _ = _arrays(linear, "row_parallel")
    return partitioned(linear, weight=_split_at(weight.ndim - 1, axis))


def bert_tensor_parallel_plan(config: BertConfig, *, axis: str = "model") -> dict[str, Transform]:
    """The tensor-parallel plan of a `BertForMaskedLM`: six patterns, each for one sub-module of every layer."""
    heads = partial(column_parallel, axis=axis, groups=config.num_heads)
    columns, rows = partial(column_parallel, axis=axis), partial(row_parallel, axis=axis)
    return {
        "*.attention.query": heads,
        "*.attention.key": heads,
        "*.attention.value": heads,
        "*.attention.output.dense": rows,
        "*.intermediate.dense": columns,
        "*[0-9].output.dense": rows,
    }


def partition_specs(tree: Any) -> Any:
    """`tree` with a `PartitionSpec` in place of every array and `None` in place of every other leaf."""
    splits = splits_of(tree)

    def spec(path: Any, leaf: Any) -> PartitionSpec | None:
        if not is_array_or_struct(leaf):
            return None
        return splits[path].spec if path in splits else PartitionSpec()

    return jax.tree.map_with_path(spec, tree)


def splits_of(tree: Any) -> dict[jax.tree_util.KeyPath, Split]:
    """The splits of the arrays of `tree` that are split, by path. Arrays may be `jax.ShapeDtypeStruct`s."""
    found: dict[jax.tree_util.KeyPath, Split] = {}
    waiting: list[tuple[jax.tree_util.KeyPath, Any]] = [((), tree)]
    while waiting:
        prefix, part = waiting.pop()
        for path, node in jax.tree.leaves_with_path(part, is_leaf=lambda node: isinstance(node, Partitioned)):
            if not isinstance(node, Partitioned):
                continue
            inside = (*prefix, *path, jax.tree_util.GetAttrKey("layer"))
            waiting.append((inside, node.layer))
            for split in node.splits:
                if getattr(getattr(node.layer, split.array), "shape", None) == split.shape:
                    found[*inside, jax.tree_util.GetAttrKey(split.array)] = split
    return found


def _arrays(linear: Any, transform: str) -> tuple[Any, Any]:
    if not isinstance(linear, eqx.nn.Linear):
        raise TypeError(
            f"{transform} takes an equinox.nn.Linear, got {type(linear).__name__}; say how another layer is split with "
            f"partitioned(layer, weight=PartitionSpec(...))"
        )
    return linear.weight, linear.bias


def _split_at(dimension: int, axis: str) -> PartitionSpec:
    return PartitionSpec(*[None] * dimension, axis)
