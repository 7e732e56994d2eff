"""Train steps that compute the same in different ways, to compare what they cost the host.

| factory | call | carry | the host takes apart |
|---|---|---|---|
| `make_filter_train_step` | `model, opt_state, out = step(model, opt_state, batch, key)` | 2 | all, `filter_jit` |
| `make_train_step` | `model, optimizer, out = step(model, optimizer, batch, key)` | 2 | all, `filter_jit` |
| `make_train_step_with_partition` | `params, opt_state, out = step(params, opt_state, batch, key)` | 2 | modules |
| `make_flat_train_step` | `state, out = step(state, batch, key)` | 1 | one node |
| `make_list_train_step` | `arrays, out = step(arrays, batch, key)` | 1 | a list: the floor |

`out` is `(loss, aux)` as `loss_fn(model, batch, key)` returned it: `loss` a real scalar, `aux` any tree of arrays
(through `filter_jit`, of anything). The first `carry` outputs are the first arguments of the next call. These are
donated: the step deletes the arrays passed in, and no array may be in there twice; `donate=False` keeps them. Batch and
key are never donated. All but `filter_jit` return before the device is done. All have `.lower`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import optax
from jax import Array

from perfsuite.workloads.structure import Structure
from perfsuite.workloads.training.mlm import mlm_batches
from perfsuite.workloads.training.train_state import Optimizer, TrainState, apply_gradients

__all__ = [
    "ListTraining",
    "Optimizer",
    "PartitionedTraining",
    "TrainState",
    "make_filter_train_step",
    "make_flat_train_step",
    "make_list_train_step",
    "make_train_step",
    "make_train_step_with_partition",
    "mlm_batches",
]

LossFn = Callable[[Any, Any, Any], tuple[Array, Any]]
"""`loss_fn(model, batch, key) -> (loss, aux)`."""


@dataclasses.dataclass(frozen=True)
class ModelStep:
    """A step over a model and an optimizer of some kind.

    `jitted((batch, key), model, optimizer)`: Equinox can donate all arguments, or all but the first.
    """

    jitted: Any

    def __call__(self, model: Any, optimizer: Any, batch: Any, key: Any) -> tuple[Any, Any, tuple[Array, Any]]:
        """The next model, the next optimizer, and `(loss, aux)`."""
        return self.jitted((batch, key), model, optimizer)

    def lower(self, model: Any, optimizer: Any, batch: Any, key: Any) -> Any:
        """Lowers the step for these arguments without running it."""
        return self.jitted.lower((batch, key), model, optimizer)


def make_filter_train_step(
    loss_fn: LossFn,
    tx: optax.GradientTransformation,
    *,
    wrt: Any = eqx.is_inexact_array,
    donate: bool = True,
    jit: Callable[..., Any] = eqx.filter_jit,
) -> ModelStep:
    """`model, opt_state, (loss, aux) = step(model, opt_state, batch, key)`, all through `jit`.

    `jit` is `equinox.filter_jit` or a drop-in for it. The first state is `tx.init` of what the filter `wrt` selects.
    """

    def train_step(batch_and_key: Any, model: Any, opt_state: Any) -> Any:
        return _update(loss_fn, tx, wrt, model, opt_state, *batch_and_key)

    return ModelStep(jit(train_step, donate=_donation(donate)))


def make_train_step(loss_fn: LossFn, *, donate: bool = True, jit: Callable[..., Any] = eqx.filter_jit) -> ModelStep:
    """`model, optimizer, (loss, aux) = step(model, optimizer, batch, key)`, with an `Optimizer`, through `jit`.

    `jit` is `equinox.filter_jit` or a drop-in for it.
    """

    def train_step(batch_and_key: Any, model: Any, optimizer: Optimizer) -> Any:
        out, grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, *batch_and_key)
        return *optimizer(grads, model), out

    return ModelStep(jit(train_step, donate=_donation(donate)))


class PartitionedTraining(NamedTuple):
    """A step over the arrays of a model and of its optimizer's state.

    `params` and `opt_state` are the first arguments, trees with `None` in place of everything static; `static` is the
    model with `None` in place of arrays. `equinox.combine(params, static)` is the model again.
    """

    step: Any
    params: Any
    opt_state: Any
    static: Any


def make_train_step_with_partition(
    loss_fn: LossFn,
    tx: optax.GradientTransformation,
    model: Any,
    *,
    wrt: Any = eqx.is_inexact_array,
    donate: bool = True,
) -> PartitionedTraining:
    """`params, opt_state, (loss, aux) = step(params, opt_state, batch, key)`, partitioned once, here.

    The static part is a constant of the compiled step: a model of another structure needs another step.
    """
    start = TrainState.create(tx, model, wrt)
    params, static = eqx.partition(start.model, eqx.is_array)
    opt_params, opt_static = eqx.partition(start.opt_state, eqx.is_array)

    def train_step(params: Any, opt_params: Any, batch: Any, key: Any) -> Any:
        model, opt_state = eqx.combine(params, static), eqx.combine(opt_params, opt_static)
        model, opt_state, out = _update(loss_fn, tx, wrt, model, opt_state, batch, key)
        return eqx.filter(model, eqx.is_array), eqx.filter(opt_state, eqx.is_array), out

    step = jax.jit(train_step, donate_argnums=(0, 1) if donate else ())
    return PartitionedTraining(step, params, opt_params, static)


def make_flat_train_step(
    loss_fn: LossFn, tx: optax.GradientTransformation, *, wrt: Any = eqx.is_inexact_array, donate: bool = True
) -> Any:
    """`state, (loss, aux) = step(state, batch, key)`, from `TrainState.create(tx, model, wrt)`.

    Raises `TypeError` while tracing if the update changes the state's structure.
    """

    def train_step(state: TrainState, batch: Any, key: Any) -> Any:
        model, opt_state, out = _update(loss_fn, tx, wrt, state.model, state.opt_state, batch, key)
        return state.updated(model, opt_state), out

    return jax.jit(train_step, donate_argnums=0 if donate else ())


class ListTraining(NamedTuple):
    """A step over a plain list of arrays, and its first list. `TrainState(arrays, structure)` has the trees."""

    step: Any
    arrays: list[Array]
    structure: Structure


def make_list_train_step(
    loss_fn: LossFn,
    tx: optax.GradientTransformation,
    model: Any,
    *,
    wrt: Any = eqx.is_inexact_array,
    donate: bool = True,
) -> ListTraining:
    """`arrays, (loss, aux) = step(arrays, batch, key)`: `jax.jit` over a plain list, the least a step can cost."""
    start = TrainState.create(tx, model, wrt)
    structure = start.structure

    def train_step(arrays: list[Array], batch: Any, key: Any) -> Any:
        model, opt_state = structure.join(arrays)
        model, opt_state, out = _update(loss_fn, tx, wrt, model, opt_state, batch, key)
        return structure.arrays_of((model, opt_state)), out

    return ListTraining(jax.jit(train_step, donate_argnums=0 if donate else ()), list(start.arrays), structure)


def _update(
    loss_fn: LossFn, tx: optax.GradientTransformation, wrt: Any, model: Any, opt_state: Any, batch: Any, key: Any
) -> tuple[Any, Any, tuple[Array, Any]]:
    out, grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, batch, key)
    return *apply_gradients(tx, wrt, grads, opt_state, model), out


def _donation(donate: bool) -> str:
    # "warn" and not "all": a buffer that cannot be used is worth knowing, and silence costs time on every call.
    return "warn-except-first" if donate else "none"
