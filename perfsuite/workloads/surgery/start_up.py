"""The start of a training over a mesh: one compiled program makes, transforms and splits model and optimizer."""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from perfsuite.workloads.structure import Structure
from perfsuite.workloads.surgery.sharding import module_shardings, shard
from perfsuite.workloads.surgery.transforms import Plan, Transform, apply_transforms
from perfsuite.workloads.training.train_state import Optimizer, TrainState


@dataclasses.dataclass(frozen=True)
class StartUp:
    """`module, optimizer = start_up(key)`, compiled; `make_module_opt` calls it, and one can `.lower` it.

    Equal ones compile once: all of it is hashed, so `plan` is a tuple of (pattern, transform). `apply` is
    `apply_transforms` or one of its variants.
    """

    module_fn: Callable[[Array], Any]
    tx: optax.GradientTransformation
    mesh: Mesh
    plan: tuple[tuple[str, Transform], ...]
    wrt: Any = eqx.is_inexact_array
    strict: bool = False
    apply: Callable[..., Any] = apply_transforms

    def __call__(self, key: Array) -> tuple[Any, Optimizer]:
        """The model and its optimizer, over the mesh."""
        made = self._compiled(self, self._everywhere(key))
        return made.structure.join(made.arrays)

    def lower(self, key: Array) -> Any:
        """Lowers the program without running it."""
        return self._compiled.lower(self, self._everywhere(key))

    @property
    def _compiled(self) -> Any:
        return _jitted(self.mesh.devices.flat[0].platform)

    def _everywhere(self, key: Array) -> Array:
        return shard(key, NamedSharding(self.mesh, PartitionSpec()))


_MEMORY_FIRST = {"cpu": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}}
"""XLA's options by platform. Without them its scheduler for CPUs begins all arrays before it ends one: for BERT-base
over eight devices, four to a layer, that is 343 MB a device beside the 549 MB of the result, and 7 kB with them (jax
0.10.2). A TPU needs no scratch memory for them."""


@cache
def _jitted(platform: str) -> Any:
    return jax.jit(_start_up, static_argnums=0, compiler_options=_MEMORY_FIRST.get(platform))


def _start_up(how: StartUp, key: Array) -> TrainState:
    plan = dict(how.plan)
    module = how.apply(how.module_fn(key), plan, strict=how.strict)
    module = shard(module, module_shardings(module, how.mesh, plan=plan))
    optimizer = Optimizer.create(how.tx, module, how.wrt)
    optimizer = shard(optimizer, module_shardings(optimizer, how.mesh, plan=plan))
    # Their static parts leave the trace in the structure.
    return TrainState(*Structure.split((module, optimizer)))


def make_module_opt(
    module_fn: Callable[[Array], Any],
    tx: optax.GradientTransformation,
    mesh: Mesh,
    plan: Plan,
    *,
    key: Array,
    wrt: Any = eqx.is_inexact_array,
    strict: bool = False,
) -> tuple[Any, Optimizer]:
    """A model over a mesh, and its optimizer: `module_fn(key)`, transformed and split, in one compiled program.

    Every device computes its own part of the arrays, so that none ever holds the whole model. Arrays that `Partitioned`
    layers do not split are on all devices; the optimizer's state is split like its parameters. The numbers are those of
    `jax.jit(module_fn)(key)` on one device, where `jax_threefry_partitionable` is on (the default).

    Called again with equal functions, `tx`, mesh and transforms, it does not compile again; a new lambda or partial is
    not equal. `wrt` selects the floating-point arrays that are trained, `strict` is that of `apply_transforms`.

    Raises what `apply_transforms` and `module_shardings` raise, with pattern and path.
    """
    return StartUp(module_fn, tx, mesh, tuple(plan.items()), wrt, strict)(key)
