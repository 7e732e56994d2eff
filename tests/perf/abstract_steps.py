"""BERT train steps to be compiled and not run: their arguments have shapes and shardings, and no numbers."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType

from perfsuite import call
from perfsuite.measure.call import Call
from perfsuite.workloads.bert import BertConfig, BertForMaskedLM, masked_lm_loss
from perfsuite.workloads.surgery import apply_transforms, bert_tensor_parallel_plan
from perfsuite.workloads.surgery.sharding import batch_shardings, keep_shardings, module_shardings, shard
from perfsuite.workloads.training import TrainState, make_flat_train_step

TARGET = "tpu-v5e"
GPUS = ("gpu-a100", "gpu-h100")
ADAMW = optax.adamw(1e-4)


@dataclasses.dataclass(frozen=True)
class Shapes:
    """A configuration with the shape of its batches."""

    config: BertConfig
    batch_size: int
    sequence: int

    def changed(self, **changes: Any) -> "Shapes":
        """The same with other choices in the configuration."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **changes))


def shapes(size: str, **changes: Any) -> Shapes:
    """The main configuration at full size, BERT-base at 64 x 512 in bfloat16; a small one with the same kernels.

    Two layers, 128 wide: narrower, and a TPU's compiler fuses otherwise, because arrays no longer fill its tiles.
    """
    if size == "full":
        return Shapes(BertConfig.base(activation_dtype="bfloat16", **changes), 64, 512)
    small = BertConfig.tiny(vocab_size=1024, max_positions=64, num_heads=4, activation_dtype="bfloat16")
    return Shapes(dataclasses.replace(small, **changes), 8, 64)


def zeros(config: BertConfig) -> BertForMaskedLM:
    """A model with arrays and no initialisation to wait for: `filter_jit` takes no shapes in place of arrays."""
    shapes = eqx.filter_eval_shape(BertForMaskedLM, config, key=jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), shapes)


@functools.cache
def flat_step(made: Shapes, mesh: tuple[int, int] | None = None) -> Call:
    """The flat train step; over a mesh of (data, model) devices of this machine, whose shape a target takes over.

    The same for the same shapes, so that it is traced once for all targets. `flat_step.__wrapped__` is always a new one.
    """
    step = make_flat_train_step(masked_lm_loss, ADAMW)
    plan = {} if mesh is None else bert_tensor_parallel_plan(made.config)

    def start():
        model = apply_transforms(BertForMaskedLM(made.config, key=jax.random.key(0)), plan, strict=True)
        return TrainState.create(ADAMW, model)

    state = eqx.filter_eval_shape(start)
    ids = jax.ShapeDtypeStruct((made.batch_size, made.sequence), jnp.int32)
    batch = {"input_ids": ids, "attention_mask": ids, "labels": ids}
    key = jax.eval_shape(lambda: jax.random.key(1))
    if mesh is not None:
        devices = jax.make_mesh(mesh, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        shardings = module_shardings(state, devices)
        step = keep_shardings(step, shardings)
        state, batch = shard(state, shardings), shard(batch, batch_shardings(batch, devices))
    return call(step, state, batch, key, carry=1)
