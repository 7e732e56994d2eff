"""BERT models for surgery, and their start-up over all devices there are."""

import collections
import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jax.sharding import AxisType, Mesh

from perfsuite.workloads.bert import BertConfig, BertForMaskedLM
from perfsuite.workloads.structure import is_array_or_struct
from perfsuite.workloads.surgery import StartUp, apply_transforms, bert_tensor_parallel_plan, module_shardings
from perfsuite.workloads.surgery.sharding import shard
from perfsuite.workloads.training import Optimizer

ADAMW = optax.adamw(1e-4)
KEY = jax.random.key(0)
LADDER = {4: 768, 12: 1024, 24: 2048, 36: 2048, 48: 2048, 60: 2048}
"""Layers and width of the six models of the lab note: 24 to 360 transforms, 0.1 to 3.1 billion parameters."""


def rung(layers: int, size: str) -> BertConfig:
    """One model of the ladder. The small size keeps a quarter of its depth, but two layers: 2 to 15, still six models.

    A compiler's work is what grows with the depth there, and as linearly over a quarter of it.
    """
    return bert(layers if size == "full" else max(2, layers // 4), size, LADDER[layers])


def bert(layers: int, size: str, width: int = 768) -> BertConfig:
    """A BERT with so many layers. The small size keeps its tree and narrows its arrays."""
    config = BertConfig.base(
        num_layers=layers, hidden_size=width, num_heads=width // 64, intermediate_size=4 * width, dropout=0.0
    )
    return config.narrowed(num_heads=4) if size == "small" else config


def mesh_of_all_devices() -> Mesh:
    """All devices, up to four of them to a layer."""
    count = jax.device_count()
    model = math.gcd(count, 4)
    return jax.make_mesh((count // model, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@dataclasses.dataclass(frozen=True)
class ModuleFn:
    """`BertForMaskedLM` of one configuration. Equal ones are one function to a compiler."""

    config: BertConfig

    def __call__(self, key: jax.Array) -> BertForMaskedLM:
        """The model that is initialised from `key`."""
        return BertForMaskedLM(self.config, key=key)


def start_up(config: BertConfig, apply: Any = apply_transforms) -> StartUp:
    """The start-up of a tensor-parallel BERT and AdamW over all devices."""
    plan = tuple(bert_tensor_parallel_plan(config).items())
    return StartUp(ModuleFn(config), ADAMW, mesh_of_all_devices(), plan, strict=True, apply=apply)


@functools.cache
def first_run(config: BertConfig) -> tuple[StartUp, float]:
    """A start-up that has run once, and the seconds that this took. At the small size equal depths are one model."""
    made, clock = start_up(config), Clock()
    clock("run", made, KEY)
    return made, clock.ms["run"][0] / 1e3


@functools.cache
def shard_bytes(config: BertConfig) -> int:
    """What one device holds of model and optimizer."""

    def start() -> Any:
        module = apply_transforms(BertForMaskedLM(config, key=KEY), bert_tensor_parallel_plan(config), strict=True)
        return module, Optimizer.create(ADAMW, module)

    made = eqx.filter(eqx.filter_eval_shape(start), is_array_or_struct)
    shardings = module_shardings(made, mesh_of_all_devices())
    parts = jax.tree.map(lambda leaf, at: np.prod(at.shard_shape(leaf.shape)) * leaf.dtype.itemsize, made, shardings)
    return int(sum(jax.tree.leaves(parts)))


class Clock:
    """Runs a phase, waits for its arrays, and keeps the milliseconds."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = collections.defaultdict(list)

    def __call__(self, phase: str, fn: Callable[..., Any], *args: Any) -> Any:
        """What `fn` returns."""
        began = time.perf_counter()
        made = fn(*args)
        arrays = [leaf for leaf in jax.tree.leaves(made) if isinstance(leaf, jax.Array)]
        jax.block_until_ready([leaf for leaf in arrays if not isinstance(leaf, jax.core.Tracer)])
        self.ms[phase].append(1e3 * (time.perf_counter() - began))
        return made


def start_by_hand(config: BertConfig, clock: Clock) -> tuple[Any, Optimizer]:
    """What a `StartUp` does, a phase at a time: model and optimizer over all devices."""
    mesh = mesh_of_all_devices()
    module = clock("init", ModuleFn(config), KEY)
    module = clock("apply", apply_transforms, module, bert_tensor_parallel_plan(config))
    shardings = clock("spec", module_shardings, module, mesh)
    module = clock("shard", shard, module, shardings)

    def create() -> Optimizer:
        optimizer = Optimizer.create(ADAMW, module)
        return shard(optimizer, module_shardings(optimizer, mesh))

    return module, clock("optimizer", create)
