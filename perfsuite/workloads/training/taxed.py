"""What all variants of the framework tax share: the model's arrays, its loss, its optimizer, and one update."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

WIDTH = 4
RATE = 0.1

Weights = Sequence[tuple[Array, Array]]
"""Of each layer its weight and its bias, float32 `[WIDTH, WIDTH]` and `[WIDTH]`."""


@dataclasses.dataclass(frozen=True)
class Taxed:
    """A train step with its first arguments: `call(step, *args, carry=carry)` runs it again and again.

    `step(*args)` returns `(state, loss)` where `carry` is 1, and `loss` alone where it updates its state in place. The
    last of `args` is the batch, float32 `[WIDTH]`, which is not donated. `bound` is the state where it is no argument.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...]
    carry: int = 1
    bound: Any = None

    def arrays(self, args: Sequence[Any]) -> list[Array]:
        """The state's arrays by dtype, shape and numbers, an order that is the same for all variants.

        `args` are those of the next run.
        """
        return sorted(jax.tree.leaves((self.bound, args[:-1])), key=_by_numbers)


def _by_numbers(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.name, array.shape, (np.asarray(array) + 0).tobytes()  # -0.0 + 0 is 0.0


def leaves_of(layers: int) -> int:
    """The number of arrays in a state of so many layers."""
    return 6 * layers + 2


def random_weights(layers: int) -> Weights:
    """The same for the same number of layers."""
    random = np.random.default_rng(layers)
    shapes = (WIDTH, WIDTH), (WIDTH,)
    made = [[random.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(layers)]
    return [(jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in made]


def batch() -> Array:
    """Float32 `[WIDTH]`."""
    return jnp.linspace(0.5, 1.5, WIDTH)


def no_steps() -> Array:
    """The number of steps before the first."""
    return jnp.zeros((), jnp.uint32)


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


def updated(
    pairs: Callable[[Any], Weights], params: Any, opt_state: Any, steps: Array, x: Array
) -> tuple[tuple[Any, Any, Array], Array]:
    """`(params, opt_state, steps)` after one more step, and the loss. `pairs(params)` gives the weights."""
    loss, grads = jax.value_and_grad(lambda params: loss_of(pairs(params), x))(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state, steps + 1), loss
