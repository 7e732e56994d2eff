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
(`equinox.nn.Linear`, `flax.nnx.Linear`, and parameters named as `flax.linen.Dense` names them), because what a layer
holds beside its arrays is what a framework takes apart on every call. What is computed is next to nothing: the layers
lie side by side, not one behind the other, and the optimizer has AdamW's state with a simpler rule.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training import train_state as linen
from jax import Array

from perfsuite.workloads.training.cached_jit import cached_filter_jit
from perfsuite.workloads.training.train_state import TrainState

FLOOR = "list"
WIDTH = 4
RATE = 0.1

Weights = Sequence[tuple[Array, Array]]
"""Of each layer its weight and its bias, float32 `[WIDTH, WIDTH]` and `[WIDTH]`."""


@dataclasses.dataclass(frozen=True)
class Taxed:
    """A train step with what it starts from: `call(step, *args, carry=carry)` runs it again and again.

    `step(*args)` returns `(state, loss)` where `carry` is 1, and `loss` alone where it updates its state in place. The
    last of `args` is the batch, float32 `[WIDTH]`, which is not donated. `arrays(args)` gives the state's arrays in one
    order for all variants: weight and bias of each layer, their first and their second moments, the optimizer's count,
    the number of steps. `args` are those of the next run.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...]
    carry: int
    arrays: Callable[[Sequence[Any]], list[Array]]


def leaves_of(layers: int) -> int:
    """The arrays of a state of so many layers."""
    return 6 * layers + 2


def random_weights(layers: int) -> Weights:
    """The same for the same number of layers."""
    random = np.random.default_rng(layers)
    shapes = (WIDTH, WIDTH), (WIDTH,)
    made = [[random.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(layers)]
    return [(jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in made]


def _update(grads: Any, state: Any, params: Any = None, **_: Any) -> tuple[Any, Any]:
    adam, *rest = state
    mu = jax.tree.map(lambda moment, grad: moment - RATE * grad, adam.mu, grads)
    nu = jax.tree.map(lambda moment, grad: moment + grad * grad, adam.nu, grads)
    return mu, (adam._replace(count=adam.count + 1, mu=mu, nu=nu), *rest)


TX = optax.GradientTransformationExtraArgs(optax.adamw(RATE).init, _update)
"""AdamW's state with a rule that compiles in less time: both moments are sums, and the first is the update."""


def loss_of(layers: Iterable[tuple[Array, Array]], x: Array) -> Array:
    """Half the squares of `x * weight + bias` over all layers, in order: float32 `[]`."""
    total = jnp.zeros(())
    for weight, bias in layers:
        total += jnp.sum(jnp.square(x * weight + bias)) / 2
    return total


def _batch() -> Array:
    return jnp.linspace(0.5, 1.5, WIDTH)


def _no_steps() -> Array:
    return jnp.zeros((), jnp.uint32)


def _in_order(pairs: Callable[[Any], Weights], params: Any, opt_state: Any, steps: Any) -> list[Array]:
    """The arrays of a state, whose moments are trees like `params`."""
    adam = opt_state[0]
    trees = params, adam.mu, adam.nu
    return [*(array for tree in trees for pair in pairs(tree) for array in pair), adam.count, steps]


def _paired(arrays: Sequence[Array]) -> Weights:
    return list(zip(arrays[::2], arrays[1::2], strict=True))


@functools.partial(jax.jit, donate_argnums=0)
def _list_step(arrays: list[Array], x: Array) -> tuple[list[Array], Array]:
    *trees, count, steps = arrays
    third = len(trees) // 3
    params, mu, nu = trees[:third], trees[third : 2 * third], trees[2 * third :]
    loss, grads = jax.value_and_grad(lambda params: loss_of(_paired(params), x))(params)
    adam, *rest = TX.init([])
    updates, opt_state = TX.update(grads, (adam._replace(count=count, mu=mu, nu=nu), *rest), params)
    return _in_order(_paired, optax.apply_updates(params, updates), opt_state, steps + 1), loss


def _list(weights: Weights) -> Taxed:
    params = [array for pair in weights for array in pair]
    start = _in_order(_paired, params, TX.init(params), _no_steps())
    return Taxed(_list_step, (start, _batch()), 1, lambda args: args[0])


def _named(weights: Weights) -> dict[str, dict[str, Array]]:
    return {f"Dense_{number}": {"kernel": weight, "bias": bias} for number, (weight, bias) in enumerate(weights)}


def _named_pairs(params: dict[str, dict[str, Array]]) -> Weights:
    made = (params[f"Dense_{number}"] for number in range(len(params)))
    return [(layer["kernel"], layer["bias"]) for layer in made]


@functools.partial(jax.jit, donate_argnums=0)
def _dict_step(state: dict[str, Any], x: Array) -> tuple[dict[str, Any], Array]:
    params = state["params"]
    loss, grads = jax.value_and_grad(lambda params: loss_of(_named_pairs(params), x))(params)
    updates, opt_state = TX.update(grads, state["opt_state"], params)
    params = optax.apply_updates(params, updates)
    return {"params": params, "opt_state": opt_state, "steps": state["steps"] + 1}, loss


def _dict(weights: Weights) -> Taxed:
    params = _named(weights)
    start = {"params": params, "opt_state": TX.init(params), "steps": _no_steps()}

    def arrays(args: Sequence[Any]) -> list[Array]:
        return _in_order(_named_pairs, *(args[0][name] for name in ("params", "opt_state", "steps")))

    return Taxed(_dict_step, (start, _batch()), 1, arrays)


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
        return cls(model, TX.init(model), _no_steps())

    def updated(self, x: Array) -> "tuple[Training, Array]":
        """The state after one more step, and the loss."""
        loss, grads = jax.value_and_grad(lambda model: loss_of(model.pairs(), x))(self.model)
        updates, opt_state = TX.update(grads, self.opt_state, self.model)
        return Training(eqx.apply_updates(self.model, updates), opt_state, self.steps + 1), loss

    def arrays(self) -> list[Array]:
        """In the order of all variants."""
        return _in_order(Stack.pairs, self.model, self.opt_state, self.steps)


@functools.partial(jax.jit, donate_argnums=0)
def _module_step(state: Training, x: Array) -> tuple[Training, Array]:
    return state.updated(x)


def _batch_first(x: Array, state: Training) -> tuple[Training, Array]:
    return state.updated(x)


# Equinox can donate all arguments, or all but the first.
_filter_jitted = eqx.filter_jit(_batch_first, donate="all-except-first")
_cached_filter_jitted = cached_filter_jit(_batch_first, donate="all-except-first")


def _filter_jit_step(state: Training, x: Array) -> tuple[Training, Array]:
    return _filter_jitted(x, state)


def _cached_filter_jit_step(state: Training, x: Array) -> tuple[Training, Array]:
    return _cached_filter_jitted(x, state)


def _module(step: Callable[..., Any], weights: Weights) -> Taxed:
    return Taxed(step, (Training.create(weights), _batch()), 1, lambda args: args[0].arrays())


def _training_of(state: TrainState) -> Training:
    opt_state, steps = state.opt_state
    return Training(state.model, opt_state, steps)


@functools.partial(jax.jit, donate_argnums=0)
def _flat_step(state: TrainState, x: Array) -> tuple[TrainState, Array]:
    after, loss = _training_of(state).updated(x)
    return state.updated(after.model, (after.opt_state, after.steps)), loss


def _flat(weights: Weights) -> Taxed:
    start = Training.create(weights)
    state = TrainState.of(start.model, (start.opt_state, start.steps))
    return Taxed(_flat_step, (state, _batch()), 1, lambda args: _training_of(args[0]).arrays())


def _linen_apply(params: Any, x: Array) -> Array:
    """What a train state keeps beside its arrays. The steps here need no more of the model than its parameters."""
    return loss_of(_named_pairs(params), x)


@functools.partial(jax.jit, donate_argnums=0)
def _linen_step(state: linen.TrainState, x: Array) -> tuple[linen.TrainState, Array]:
    loss, grads = jax.value_and_grad(state.apply_fn)(state.params, x)
    return state.apply_gradients(grads=grads), loss


def _linen(weights: Weights) -> Taxed:
    start = linen.TrainState.create(apply_fn=_linen_apply, params=_named(weights), tx=TX)
    start = start.replace(step=_no_steps())  # the int that it is would come back from the first step as an array

    def arrays(args: Sequence[Any]) -> list[Array]:
        return _in_order(_named_pairs, args[0].params, args[0].opt_state, args[0].step)

    return Taxed(_linen_step, (start, _batch()), 1, arrays)


class NnxStack(nnx.Module):
    """Linear layers, side by side."""

    def __init__(self, weights: Weights):
        rngs, zeros = nnx.Rngs(0), jax.nn.initializers.zeros
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, kernel_init=zeros, rngs=rngs) for _ in weights])
        for layer, (weight, bias) in zip(self.layers, weights, strict=True):
            layer.kernel[...], layer.bias[...] = weight, bias  # type: ignore[index]  # all have a bias


def _nnx_pairs(model: NnxStack) -> Weights:
    return [(layer.kernel[...], layer.bias[...]) for layer in model.layers]  # type: ignore[index]


def _nnx_moments(tree: Any) -> Weights:
    layers = tree["layers"]
    return [(layers[number]["kernel"][...], layers[number]["bias"][...]) for number in range(len(layers))]


def _nnx_objects(weights: Weights) -> tuple[NnxStack, nnx.Optimizer]:
    model = NnxStack(weights)
    return model, nnx.Optimizer(model, TX, wrt=nnx.Param)


def _nnx_arrays(model: NnxStack, optimizer: nnx.Optimizer) -> list[Array]:
    adam = optimizer.opt_state[0]
    pairs = *_nnx_pairs(model), *_nnx_moments(adam.mu), *_nnx_moments(adam.nu)
    return [*(array for pair in pairs for array in pair), adam.count[...], optimizer.step[...]]


def _nnx_update(model: NnxStack, optimizer: nnx.Optimizer, x: Array) -> Array:
    loss, grads = nnx.value_and_grad(lambda model: loss_of(_nnx_pairs(model), x))(model)
    optimizer.update(model, grads)
    return loss


_nnx_jitted = nnx.jit(_nnx_update, donate_argnums=(0, 1))


def _nnx_jit(weights: Weights) -> Taxed:
    return Taxed(_nnx_jitted, (*_nnx_objects(weights), _batch()), 0, lambda args: _nnx_arrays(*args[:2]))


def _nnx_cached_partial(weights: Weights) -> Taxed:
    objects = _nnx_objects(weights)
    # A `jit` of its own. Where two models share one, the second pays for comparing its graph with the first's on every
    # call: 30,537 host calls for 602 arrays, where the first makes 26,684 (flax 0.12.8). The mode is the one that the
    # docstring of `cached_partial` asks for.
    jitted = nnx.jit(_nnx_update, donate_argnums=(0, 1), graph=True, graph_updates=True)
    with nnx.set_graph_mode(True), nnx.set_graph_updates(True):
        step = nnx.cached_partial(jitted, *objects)
    return Taxed(step, (_batch(),), 0, lambda _: _nnx_arrays(*objects))


@functools.cache
def _nnx_split_step(graphdef: Any) -> Callable[..., Any]:
    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: nnx.State, x: Array) -> tuple[nnx.State, Array]:
        model, optimizer = nnx.merge(graphdef, state)
        loss = _nnx_update(model, optimizer, x)
        return nnx.state((model, optimizer)), loss

    return step


def _nnx_split_once(weights: Weights) -> Taxed:
    graphdef, state = nnx.split(_nnx_objects(weights))

    def arrays(args: Sequence[Any]) -> list[Array]:
        return _nnx_arrays(*nnx.merge(graphdef, args[0]))

    return Taxed(_nnx_split_step(graphdef), (state, _batch()), 1, arrays)


VARIANTS: dict[str, Callable[[Weights], Taxed]] = {
    FLOOR: _list,
    "dict": _dict,
    "eqx.Module": functools.partial(_module, _module_step),
    "filter_jit": functools.partial(_module, _filter_jit_step),
    "cached_filter_jit": functools.partial(_module, _cached_filter_jit_step),
    "flat state": _flat,
    "linen TrainState": _linen,
    "nnx.jit": _nnx_jit,
    "nnx.cached_partial": _nnx_cached_partial,
    "nnx split once": _nnx_split_once,
}
"""Makers of each. They take over the weights, whose arrays the first step deletes. All but `nnx.cached_partial` compile
once for so many layers, however many are made."""
