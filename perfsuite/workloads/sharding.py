"""BERT train steps over a mesh of devices: parallel over the batch ("data"), each layer's width ("model"), or both.

A layer is split as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053): query, key, value and the wide feed-forward
product by output features, so that each device has whole heads; the products that end both residual branches by input
features, so that one all-reduce adds up what the devices computed. Every other array is on all devices: norms and
row-parallel biases because they work on the sum; the head's dense product for it is small; and the embeddings, which
Megatron splits by vocabulary, because BERT's 30 522 rows are no multiple of four. Optimizer state is placed like the
parameters it belongs to.

    state = TrainState.create(tx, model)
    shardings = bert_shardings(state, mesh)
    step = keep_shardings(make_flat_train_step(masked_lm_loss, tx), shardings)
    state, (loss, aux) = step(shard(state, shardings), shard(batch, batch_shardings(batch, mesh)), key)

All of it works on `jax.ShapeDtypeStruct`s too: then nothing is allocated and the step can be lowered, not run.
"""

import fnmatch
import inspect
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from perfsuite.workloads.bert_layers import Attention
from perfsuite.workloads.train_state import TrainState

_SPLIT_DIMENSIONS = {
    "*attention.query.weight": 0,
    "*attention.query.bias": 0,
    "*attention.key.weight": 0,
    "*attention.key.bias": 0,
    "*attention.value.weight": 0,
    "*attention.value.bias": 0,
    "*intermediate.dense.weight": 0,
    "*intermediate.dense.bias": 0,
    "*output.dense.weight": 1,
}
"""Which dimension of the arrays at these paths is split over "model". Weights are `[out, in]`; the last pattern is the
end of either residual branch."""


def bert_shardings(tree: Any, mesh: Mesh, *, data: str = "data", model: str = "model") -> Any:
    """`tree` with a `NamedSharding` in place of every array.

    `tree` is a `BertForMaskedLM`, or anything with such modules inside and no leaves but arrays: an optimizer's state,
    a tuple of both, a `TrainState`. Its arrays may be `jax.ShapeDtypeStruct`s. `data` and `model` name axes of `mesh`,
    which may have size 1; nothing here is split over `data`.

    Raises `ValueError` if an axis is missing or not of type Auto, or if a layer's width or its heads cannot be divided.
    """
    _check_axes(mesh, data, model)
    if isinstance(tree, TrainState):
        trees = bert_shardings((tree.model, tree.opt_state), mesh, data=data, model=model)
        return TrainState(jax.tree.leaves(trees), tree.structure)
    size = mesh.shape[model]
    for module in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Attention)):
        if isinstance(module, Attention) and module.num_heads % size:
            raise ValueError(f"{module.num_heads} heads cannot be divided over {size} devices (mesh axis {model!r})")

    def sharding(path: Any, leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        for pattern, dimension in _SPLIT_DIMENSIONS.items():
            if fnmatch.fnmatchcase(name, pattern):
                if leaf.shape[dimension] % size:
                    raise ValueError(
                        f"{name}, of shape {leaf.shape}, cannot be divided over {size} devices (mesh axis {model!r}) "
                        f"in dimension {dimension}"
                    )
                return NamedSharding(mesh, PartitionSpec(*[None] * dimension, model))
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree.map_with_path(sharding, tree)


def batch_shardings(batch: Any, mesh: Mesh, *, data: str = "data") -> Any:
    """`batch` with a `NamedSharding` in place of every array: its first dimension split over the mesh axis `data`.

    Raises `ValueError` if an array's first dimension cannot be divided.
    """
    _check_axes(mesh, data)
    size = mesh.shape[data]

    def sharding(leaf: Any) -> NamedSharding:
        if not leaf.shape or leaf.shape[0] % size:
            raise ValueError(
                f"a batch of shape {leaf.shape} cannot be divided over {size} devices (mesh axis {data!r})"
            )
        return NamedSharding(mesh, PartitionSpec(data))

    return jax.tree.map(sharding, batch)


def shard(tree: Any, shardings: Any) -> Any:
    """`tree` with its arrays placed as `shardings` says, a tree of the same structure or a single sharding.

    A `jax.ShapeDtypeStruct` stays one and gets the sharding. The result takes over the arrays of `tree`: what is in
    place already is not copied (`jax.device_put` with `may_alias=False` does not either, jax 0.10.2), so a step that
    donates the result deletes the original too.
    """

    def place(leaf: Any, sharding: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return jax.device_put(leaf, sharding)

    if isinstance(shardings, jax.sharding.Sharding):
        return jax.tree.map(lambda leaf: place(leaf, shardings), tree)
    return jax.tree.map(place, tree, shardings)


def keep_shardings(step: Any, *carried: Any) -> Any:
    """The jitted train step `step`, giving back what it carries in the shardings that it got it in, and donating it.

    `carried` are the shardings of the first arguments, which are the first outputs too: of the state for
    `make_flat_train_step`, of parameters and optimizer state for `make_train_step_with_partition`. Left to choose, XLA
    may place an output unlike its argument, and then the argument's memory cannot be used for it and the next call
    compiles again. The remaining output, loss and counts, is put on all devices. Arguments that are placed otherwise
    are an error. `step` itself is traced anew and left as it is.
    """
    mesh = jax.tree.leaves(carried)[0].mesh
    return jax.jit(
        inspect.unwrap(step),
        donate_argnums=tuple(range(len(carried))),
        in_shardings=(*carried, None, None),
        out_shardings=(*carried, NamedSharding(mesh, PartitionSpec())),
    )


def _check_axes(mesh: Mesh, *names: str) -> None:
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    for name in names:
        if name not in types:
            raise ValueError(f"the mesh has no axis {name!r}, only {mesh.axis_names}")
        if types[name] is not AxisType.Auto:
            raise ValueError(
                f"mesh axis {name!r} is of type {types[name].name}, but the model leaves activations to XLA, which "
                f"takes Auto: jax.make_mesh(..., axis_types=(AxisType.Auto, ...))"
            )
