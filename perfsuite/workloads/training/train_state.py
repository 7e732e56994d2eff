"""The state that training carries from step to step: `Optimizer`, a tree of modules; `TrainState`, one flat node."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from perfsuite.workloads.structure import Structure


def trainable(tree: Any, wrt: Any) -> Any:
    """`tree` with `None` in place of all but the floating-point arrays that the filter `wrt` selects."""
    # As JAX arrays, which they are in a trace: to Equinox NumPy's bfloat16 is no float, and JAX's is one.
    tree = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else None, tree)
    return eqx.filter(eqx.filter(tree, eqx.is_inexact_array), wrt)


def apply_gradients(
    tx: optax.GradientTransformation, wrt: Any, grads: Any, opt_state: Any, model: Any
) -> tuple[Any, Any]:
    """One optimizer update: the new model and the new optimizer state. Parameters keep their dtypes."""
    params = trainable(model, wrt)
    updates, opt_state = tx.update(trainable(grads, wrt), opt_state, params)
    return eqx.combine(optax.apply_updates(params, updates), model), opt_state


class Optimizer(eqx.Module):
    """An Optax transformation with its state, as a module: the state is dynamic, everything else static.

    On a TPU v5e it lowered `filter_jit`'s overhead from 47 to 30 ms a step (baselines/tpu-v5e.json).
    """

    opt_state: Any
    tx: optax.GradientTransformation = eqx.field(static=True)
    wrt: Any = eqx.field(static=True)

    @classmethod
    def create(cls, tx: optax.GradientTransformation, model: Any, wrt: Any = eqx.is_inexact_array) -> Self:
        """An optimizer for `model`. The filter `wrt` selects the floating-point arrays that are trained."""
        return cls(tx.init(trainable(model, wrt)), tx, wrt)

    def __call__(self, grads: Any, model: Any) -> tuple[Any, Self]:
        """The updated model and the updated optimizer. `grads` is shaped like `model`, `None` where not trained."""
        model, opt_state = apply_gradients(self.tx, self.wrt, grads, self.opt_state, model)
        return model, eqx.tree_at(lambda optimizer: optimizer.opt_state, self, opt_state)


@dataclasses.dataclass(frozen=True, eq=False)
class TrainState:
    """A model and its optimizer's state as one pytree node over a flat list of arrays.

    Passing it to `jax.jit` costs as much as passing the list, because no module is taken apart or built: `model` and
    `opt_state` are built when asked for. Equal structures compile once.
    """

    arrays: Sequence[Array]
    structure: Structure

    @classmethod
    def create(cls, tx: optax.GradientTransformation, model: Any, wrt: Any = eqx.is_inexact_array) -> Self:
        """A state for `model`. The filter `wrt` selects the floating-point arrays that are trained.

        The state takes over the arrays of `model`: a step that donates its state deletes them. An array that is in the
        model twice is copied, because a buffer can only be donated once; weakly typed arrays become strongly typed and
        NumPy's become JAX's, because a step returns such arrays and would compile again for them.
        """
        return cls.of(model, tx.init(trainable(model, wrt)))

    @classmethod
    def of(cls, model: Any, opt_state: Any) -> Self:
        """The state of a model and an optimizer's state. It takes over their arrays, too."""
        arrays, structure = Structure.split((model, opt_state))
        return cls(_donatable(arrays), structure)

    @property
    def model(self) -> Any:
        """The model, built on each access. Its arrays are deleted when a step donates the state."""
        return self.structure.join(self.arrays)[0]

    @property
    def opt_state(self) -> Any:
        """The optimizer's state, as `model`."""
        return self.structure.join(self.arrays)[1]

    def updated(self, model: Any, opt_state: Any) -> Self:
        """The same state with other arrays.

        Raises `TypeError` if the trees differ in anything but their arrays: a step that changes its state's structure
        has no fixed program.
        """
        # The structure stays the same object, so that comparing it on the next call is cheap.
        return dataclasses.replace(self, arrays=self.structure.arrays_of((model, opt_state)))


jax.tree_util.register_dataclass(TrainState, data_fields=["arrays"], meta_fields=["structure"])


def _donatable(arrays: Sequence[Any]) -> list[Array]:
    seen: set[int] = set()
    owned = []
    for leaf in arrays:
        array = jnp.asarray(leaf)
        if jax.typeof(array).weak_type:
            array = jax.lax.convert_element_type(array, array.dtype)
        if id(array) in seen:
            array = jnp.copy(array)
        seen.add(id(array))
        owned.append(array)
    return owned
