"""One model, one train step, in the ways in which Equinox and Flax users write it: what the host pays for each.

| variant | state that `step` takes | carry |
|---|---|---|
| `list` | the arrays in a list: the floor | 1 |
| `dict` | nested dicts of parameters and Optax's state | 1 |
| `eqx.Module` | an `equinox.Module`, through `jax.jit` | 1 |
| `filter_jit` | the same module, through `equinox.filter_jit` | 1 |
| `cached_filter_jit` | the same module, through `cached_filter_jit` | 1 |
| `flat state` | the same module in a `TrainState`: one flat node | 1 |
| `linen TrainState` | `flax.training.train_state.TrainState`, through `jax.jit` | 1 |
| `nnx.jit` | an `nnx.Module` and an `nnx.Optimizer`, which it updates in place | 0 |
| `nnx.cached_partial` | nothing: both are bound beforehand, and updated in place | 0 |
| `nnx split once` | the `nnx.State` of both, split outside of the loop, through `jax.jit` | 1 |

All hold the same arrays, donate them, and give them and the loss the same numbers. The layers are the libraries' own
(`equinox.nn.Linear`, `flax.nnx.Linear`, and parameters named as `flax.linen.Dense` names them), because a framework
takes apart on every call what a layer holds beside its arrays. The computation is next to nothing: the layers lie side
by side, not one behind the other, and the optimizer has AdamW's state with a simpler rule.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
from flax import nnx
from flax.training import train_state as linen
from jax import Array

from perfsuite.workloads.training.cached_jit import cached_filter_jit
from perfsuite.workloads.training.taxed import (
    TX,
    WIDTH,
    Taxed,
    Weights,
    batch,
    leaves_of,
    loss_of,
    no_steps,
    random_weights,
    updated,
)
from perfsuite.workloads.training.train_state import TrainState

__all__ = ["FLOOR", "VARIANTS", "WIDTH", "leaves_of", "random_weights"]

FLOOR = "list"


def _named(weights: Weights) -> dict[str, dict[str, Array]]:
    """Parameters as Flax names those of a `flax.linen.Dense`."""
    return {f"Dense_{number}": {"kernel": weight, "bias": bias} for number, (weight, bias) in enumerate(weights)}


def _named_pairs(params: dict[str, dict[str, Array]]) -> Weights:
    """The way back from `_named`."""
    layers = (params[f"Dense_{number}"] for number in range(len(params)))
    return [(layer["kernel"], layer["bias"]) for layer in layers]


_jitted = functools.partial(jax.jit, donate_argnums=0)


def _paired(arrays: Sequence[Array]) -> Weights:
    return list(zip(arrays[::2], arrays[1::2], strict=True))


@_jitted
def _list_step(arrays: list[Array], x: Array) -> tuple[list[Array], Array]:
    *trees, count, steps = arrays
    third = len(trees) // 3
    params, mu, nu = trees[:third], trees[third : 2 * third], trees[2 * third :]
    adam, *rest = TX.init([])
    (params, opt_state, steps), loss = updated(
        _paired, params, (adam._replace(count=count, mu=mu, nu=nu), *rest), steps, x
    )
    return _listed(params, opt_state, steps), loss


def _listed(params: list[Array], opt_state: Any, steps: Array) -> list[Array]:
    """Weights and biases, their first and their second moments, the optimizer's count, the steps."""
    return [*params, *opt_state[0].mu, *opt_state[0].nu, opt_state[0].count, steps]


def _in_list(weights: Weights) -> Taxed:
    params = [array for pair in weights for array in pair]
    return Taxed(_list_step, (_listed(params, TX.init(params), no_steps()), batch()))


@_jitted
def _dict_step(state: dict[str, Any], x: Array) -> tuple[dict[str, Any], Array]:
    after, loss = updated(_named_pairs, state["params"], state["opt_state"], state["steps"], x)
    return _in_one_dict(*after), loss


def _in_one_dict(params: Any, opt_state: Any, steps: Array) -> dict[str, Any]:
    return {"params": params, "opt_state": opt_state, "steps": steps}


def _in_dict(weights: Weights) -> Taxed:
    params = _named(weights)
    return Taxed(_dict_step, (_in_one_dict(params, TX.init(params), no_steps()), batch()))


class Stack(eqx.Module):
    """Linear layers, side by side."""

    layers: list[eqx.nn.Linear]

    def pairs(self) -> Weights:
        """Weight and bias of each layer."""
        return [(layer.weight, layer.bias) for layer in self.layers]  # type: ignore[misc]  # all have a bias


class Training(eqx.Module):
    """A model with its optimizer's state."""

    model: Stack
    opt_state: Any
    steps: Array

    @classmethod
    def create(cls, weights: Weights) -> "Training":
        """The state before the first step."""
        empty = eqx.filter_eval_shape(eqx.nn.Linear, WIDTH, WIDTH, key=jax.random.key(0))
        model = Stack([eqx.tree_at(lambda layer: (layer.weight, layer.bias), empty, pair) for pair in weights])
        return cls(model, TX.init(model), no_steps())

    def updated(self, x: Array) -> "tuple[Training, Array]":
        """The state after one more step, and the loss."""
        after, loss = updated(Stack.pairs, self.model, self.opt_state, self.steps, x)
        return Training(*after), loss


_module_step = _jitted(Training.updated)


def _state_first(jit: Callable[..., Any]) -> Callable[..., Any]:
    """A step through `jit`. Equinox can donate all arguments, or all but the first: so the batch goes first."""
    jitted = jit(lambda x, state: state.updated(x), donate="all-except-first")
    return lambda state, x: jitted(x, state)


_filter_jit_step, _cached_filter_jit_step = _state_first(eqx.filter_jit), _state_first(cached_filter_jit)


def _module(step: Callable[..., Any], weights: Weights) -> Taxed:
    return Taxed(step, (Training.create(weights), batch()))


@_jitted
def _flat_step(state: TrainState, x: Array) -> tuple[TrainState, Array]:
    opt_state, steps = state.opt_state
    after, loss = Training(state.model, opt_state, steps).updated(x)
    return state.updated(after.model, (after.opt_state, after.steps)), loss


def _in_flat_state(weights: Weights) -> Taxed:
    start = Training.create(weights)
    state = TrainState.of(start.model, (start.opt_state, start.steps))
    return Taxed(_flat_step, (state, batch()))


def _linen_apply(params: Any, x: Array) -> Array:
    """A train state holds this beside its arrays. The steps here need only the parameters of the model."""
    return loss_of(_named_pairs(params), x)


@_jitted
def _linen_step(state: linen.TrainState, x: Array) -> tuple[linen.TrainState, Array]:
    loss, grads = jax.value_and_grad(state.apply_fn)(state.params, x)
    return state.apply_gradients(grads=grads), loss


def _in_train_state(weights: Weights) -> Taxed:
    start = linen.TrainState.create(apply_fn=_linen_apply, params=_named(weights), tx=TX)
    start = start.replace(step=no_steps())  # its int would come back from the first step as an array
    return Taxed(_linen_step, (start, batch()))


class NnxStack(nnx.Module):
    """Linear layers, side by side."""

    def __init__(self, weights: Weights):
        rngs, zeros = nnx.Rngs(0), jax.nn.initializers.zeros
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, kernel_init=zeros, rngs=rngs) for _ in weights])
        for layer, (weight, bias) in zip(self.layers, weights, strict=True):
            layer.kernel[...], layer.bias[...] = weight, bias  # type: ignore[index]  # all have a bias


def _nnx_pairs(model: NnxStack) -> Weights:
    return [(layer.kernel[...], layer.bias[...]) for layer in model.layers]  # type: ignore[index]


def _nnx_objects(weights: Weights) -> tuple[NnxStack, nnx.Optimizer]:
    model = NnxStack(weights)
    return model, nnx.Optimizer(model, TX, wrt=nnx.Param)


def _nnx_update(model: NnxStack, optimizer: nnx.Optimizer, x: Array) -> Array:
    loss, grads = nnx.value_and_grad(lambda model: loss_of(_nnx_pairs(model), x))(model)
    optimizer.update(model, grads)
    return loss


_nnx_jitted = nnx.jit(_nnx_update, donate_argnums=(0, 1))


def _through_nnx_jit(weights: Weights) -> Taxed:
    return Taxed(_nnx_jitted, (*_nnx_objects(weights), batch()), carry=0)


def _through_cached_partial(weights: Weights) -> Taxed:
    objects = _nnx_objects(weights)
    # A `jit` of its own. Where two models share one, the second also compares its graph with the first's on every
    # call: 30,537 host calls for 602 arrays, where the first makes 26,684 (flax 0.12.8). The docstring of
    # `cached_partial` asks for this mode.
    jitted = nnx.jit(_nnx_update, donate_argnums=(0, 1), graph=True, graph_updates=True)
    with nnx.set_graph_mode(True), nnx.set_graph_updates(True):
        step = nnx.cached_partial(jitted, *objects)
    return Taxed(step, (batch(),), carry=0, bound=objects)


@functools.cache
def _nnx_split_step(graphdef: Any) -> Callable[..., Any]:
    @_jitted
    def step(state: nnx.State, x: Array) -> tuple[nnx.State, Array]:
        model, optimizer = nnx.merge(graphdef, state)
        loss = _nnx_update(model, optimizer, x)
        return nnx.state((model, optimizer)), loss

    return step


def _split_once(weights: Weights) -> Taxed:
    graphdef, state = nnx.split(_nnx_objects(weights))
    return Taxed(_nnx_split_step(graphdef), (state, batch()))


VARIANTS: dict[str, Callable[[Weights], Taxed]] = {
    FLOOR: _in_list,
    "dict": _in_dict,
    "eqx.Module": functools.partial(_module, _module_step),
    "filter_jit": functools.partial(_module, _filter_jit_step),
    "cached_filter_jit": functools.partial(_module, _cached_filter_jit_step),
    "flat state": _in_flat_state,
    "linen TrainState": _in_train_state,
    "nnx.jit": _through_nnx_jit,
    "nnx.cached_partial": _through_cached_partial,
    "nnx split once": _split_once,
}
"""The function that makes each. It takes over the weights, whose arrays the first step deletes. All but
`nnx.cached_partial` compile once for a number of layers, however many are made."""
