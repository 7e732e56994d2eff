"""What is seen of a function: its arguments by their annotations, and what it gives back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped, UInt8

from perfsuite.starting.worker import UnusableError, argument_of, describe


@pytest.mark.parametrize(
    ("annotation", "source"),
    [
        (float, "1.0"),
        (int, "1"),
        (bool, "False"),
        (Float[Array, ""], "jnp.zeros(())"),
        (Float[Array, "32 8"], "jnp.zeros((32, 8))"),
        (Float[Array, "batch=32 #width _ ?x"], "jnp.zeros((32, 8, 8, 8))"),
        (Float[Array, "... 3"], "jnp.zeros((3,))"),
        (Float[Array, "*batch 3"], "jnp.zeros((3,))"),
        (Int[Array, "4"], 'jnp.zeros((4,), "int32")'),
        (UInt8[np.ndarray, "4"], 'np.zeros((4,), "uint8")'),
        (Bool[Array, "4"], 'jnp.zeros((4,), "bool")'),
        (Shaped[Array, "4"], "jnp.zeros((4,))"),
        (Float[Array, "4"] | None, "jnp.zeros((4,))"),
        (PRNGKeyArray, "jax.random.key(0)"),
        (Float[Array, "n+1"], ""),
        (PyTree[Float[Array, "4"]], ""),
        (jax.Array, ""),
        (str, ""),
        (list[int], ""),
    ],
    ids=str,
)
def test_an_annotation_gives_a_value_where_it_says_enough(annotation, source):
    seen = argument_of(annotation)
    assert seen.source == source
    if source:
        written = eval(source, {"jax": jax, "jnp": jnp, "np": np})
        assert jax.eval_shape(lambda x: x, written) == jax.eval_shape(lambda x: x, seen.make())


BATCH = Float[Array, "4 8"]


def update(state: Float[Array, "8"], batch: BATCH, scale: float, power: int = 2):
    return state + scale * batch.mean(0) ** power, batch.sum()


def test_outputs_that_are_the_first_arguments_again_are_carried():
    assert describe(jax.jit(update))["carry"] == 1
    assert describe(update) == {**describe(jax.jit(update)), "jitted": False}
    assert [each[:2] for each in describe(update)["parameters"]] == [
        ["state", "jnp.zeros((8,))"],
        ["batch", "jnp.zeros((4, 8))"],
        ["scale", "1.0"],
    ]


@pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit, eqx.filter_jit(donate="all"), nnx.jit])
def test_one_output_is_carried_too_by_every_jit(jit):
    def advance(state: Float[Array, "8"]):
        return state + 1

    seen = describe(jit(advance))
    assert (seen["carry"], seen["jitted"], seen["problem"]) == (1, True, "")


def test_a_function_that_takes_any_arguments_shows_none():
    def decorated(*args, **options):
        return update(*args)

    assert describe(decorated)["parameters"] == [["args", "", ""]]


def test_a_value_that_the_function_does_not_take_is_a_problem_and_not_an_error():
    def product(a: BATCH, b: Float[Array, "4"]):
        return a @ b

    assert describe(product)["problem"].startswith("TypeError: ")
    assert describe(product)["carry"] == 0


def test_an_annotation_for_type_checkers_alone_says_nothing():
    def step(model: "Model", x: "jax.Array"):  # noqa: F821
        return x

    assert describe(step)["parameters"] == [["model", "", "'Model'"], ["x", "", "'jax.Array'"]]


def test_an_argument_that_must_be_named_is_refused():
    def step(x, *, key):
        return x

    with pytest.raises(UnusableError, match="it needs key by keyword: name a function"):
        describe(step)
