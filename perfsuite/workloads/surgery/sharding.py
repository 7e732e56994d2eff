"""Models and their train steps over a mesh of devices: which array lies where, and steps that leave it there.

    module, optimizer = make_module_opt(lambda key: BertForMaskedLM(config, key=key), tx, mesh, plan, key=key)
    state = TrainState.of(module, optimizer.opt_state)
    step = keep_shardings(make_flat_train_step(masked_lm_loss, tx), module_shardings(state, mesh))
    state, (loss, aux) = step(state, shard(batch, batch_shardings(batch, mesh)), key)

All of it works on `jax.ShapeDtypeStruct`s too: then nothing is allocated and the step can be lowered, not run.
"""

import fnmatch
import inspect
from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from perfsuite.workloads.structure import is_array_or_struct, path_name
from perfsuite.workloads.surgery.tensor_parallel import Split, splits_of
from perfsuite.workloads.training.train_state import TrainState


def module_shardings(tree: Any, mesh: Mesh, *, plan: Iterable[str] = ()) -> Any:
    """`tree` with a `NamedSharding` in place of every array and `None` in place of every other leaf.

    `tree` is a model with `Partitioned` layers, its optimizer's state, a tuple of both, or a `TrainState`. Arrays
    outside of such layers are on all devices. Arrays may be `jax.ShapeDtypeStruct`s. Errors name the pattern of `plan`
    that chose the layer.

    Raises `ValueError` if the mesh lacks an axis or has it of another type than Auto, or if it does not divide a
    dimension or its groups.
    """
    if isinstance(tree, TrainState):
        shardings = module_shardings((tree.model, tree.opt_state), mesh, plan=plan)
        return TrainState(jax.tree.leaves(shardings), tree.structure)
    splits = splits_of(tree)

    def sharding(path: Any, leaf: Any) -> NamedSharding | None:
        if not is_array_or_struct(leaf):
            return None
        if path not in splits:
            return NamedSharding(mesh, PartitionSpec())
        try:
            check_split(splits[path], mesh)
        except ValueError as error:
            raise ValueError(f"{_culprit(path, plan)}: {error}") from None
        return NamedSharding(mesh, splits[path].spec)

    return jax.tree.map_with_path(sharding, tree)


def batch_shardings(batch: Any, mesh: Mesh, *, data: str = "data") -> Any:
    """`batch` with a `NamedSharding` in place of every array: its first dimension split over the mesh axis `data`.

    Raises `ValueError` if an array's first dimension cannot be divided.
    """
    check_axis(mesh, data)
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

    A leaf whose sharding is `None` does not change. A `jax.ShapeDtypeStruct` gets the sharding. In a trace arrays are
    constrained to their shardings. Otherwise the result takes over the arrays of `tree`: an array that is in place is
    not copied (nor does `jax.device_put` with `may_alias=False`, jax 0.10.2), so a step that donates the result deletes
    the original too.
    """

    def place(leaf: Any, sharding: Any) -> Any:
        if sharding is None:
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        if isinstance(leaf, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(leaf, sharding)
        return jax.device_put(leaf, sharding)

    if isinstance(shardings, jax.sharding.Sharding):
        return jax.tree.map(lambda leaf: place(leaf, shardings), tree)
    return jax.tree.map(place, tree, shardings)


def keep_shardings(step: Any, *carried: Any) -> Any:
    """The jitted train step `step`, which donates what it carries and returns it in the same shardings.

    `carried` are the shardings of the first arguments, which are the first outputs too: of the state for
    `make_flat_train_step`, of parameters and optimizer state for `make_train_step_with_partition`. Without them XLA may
    place an output unlike its argument: then it cannot reuse the argument's memory, and the next call compiles again.
    The remaining output, loss and counts, is on all devices. Arguments in other places are an error. `step` itself does
    not change.
    """
    mesh = jax.tree.leaves(carried)[0].mesh
    return jax.jit(
        inspect.unwrap(step),
        donate_argnums=tuple(range(len(carried))),
        in_shardings=(*carried, None, None),
        out_shardings=(*carried, NamedSharding(mesh, PartitionSpec())),
    )


def check_split(split: Split, mesh: Mesh) -> None:
    """Raise `ValueError` unless the mesh has the axes of the split and divides the array and its groups."""
    used: set[str] = set()
    for dimension, names in enumerate(split.spec):
        if names is None:
            continue
        if names is PartitionSpec.UNCONSTRAINED:
            raise ValueError(f"{split.spec} leaves dimension {dimension} open; say how it lies")
        size = 1
        for name in (names,) if isinstance(names, str) else names:
            check_axis(mesh, name)
            if name in used:
                raise ValueError(f"{split.spec} has mesh axis {name!r} twice")
            used.add(name)
            size *= mesh.shape[name]
        where = f"over {size} devices (mesh axis {names!r})"
        if split.groups is not None and split.groups % size:
            raise ValueError(f"{split.groups} heads or other groups of features cannot be divided {where}")
        if split.shape[dimension] % size:
            raise ValueError(f"an array of shape {split.shape} cannot be divided {where} in dimension {dimension}")


def check_axis(mesh: Mesh, name: str) -> None:
    """Raise `ValueError` unless the mesh has the axis, of type Auto: XLA places the models' activations."""
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if name not in types:
        raise ValueError(f"the mesh has no axis {name!r}, only {mesh.axis_names}")
    if types[name] is not AxisType.Auto:
        raise ValueError(
            f"mesh axis {name!r} is of type {types[name].name}, and must be Auto: "
            f"jax.make_mesh(..., axis_types=(AxisType.Auto, ...))"
        )


def _culprit(path: Any, plan: Iterable[str]) -> str:
    """The name of the array at `path`, with the pattern that chose the sub-module around it."""
    steps = range(len(path) + 1)
    # In an optimizer's state the model's names have something before them.
    parts = {path_name(path[i:j]) for i in steps for j in steps if i <= j}
    name = path_name(path)
    for pattern in plan:
        if any(fnmatch.fnmatchcase(part, pattern) for part in parts):
            return f"{name} (chosen by pattern {pattern!r})"
    return name
