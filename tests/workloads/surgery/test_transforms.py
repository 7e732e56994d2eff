from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.workloads.surgery.transforms import (
    PlanError,
    apply_transforms,
    apply_transforms_batched,
    apply_transforms_one_by_one,
)

ways = pytest.mark.parametrize(
    "apply",
    [apply_transforms, apply_transforms_batched, apply_transforms_one_by_one],
    ids=["on paths", "batched", "one by one"],
)


class Dense(eqx.Module):
    weight: Any
    bias: Any = None


class Layer(eqx.Module):
    query: Any
    output: Any


class Model(eqx.Module):
    layers: Any
    head: Any
    name: str = eqx.field(static=True, default="model")


class Wrapped(eqx.Module):
    layer: Any


def dense(value=0.0, shape=(3, 2)):
    return Dense(jnp.full(shape, value, jnp.float32), jnp.full(shape[:1], value, jnp.float32))


def model(num_layers=2):
    return Model([Layer(dense(i), dense(i + 0.5)) for i in range(num_layers)], dense(9.0))


def negated(module):
    return jax.tree.map(jnp.negative, module)


def transposed(module):
    return Dense(module.weight.T, module.bias)


def unchanged(module):
    return module


class Counted:
    """A transform that keeps what it was given."""

    def __init__(self, transform=negated):
        self.transform, self.given = transform, []

    def __call__(self, module):
        self.given.append(module)
        return self.transform(module)


def weights(tree):
    return {
        jax.tree_util.keystr(path[:-1], simple=True, separator="."): float(np.ravel(leaf)[0])
        for path, leaf in jax.tree.leaves_with_path(tree)
        if path[-1].name == "weight"
    }


def raised(apply, *args, error=PlanError, **options):
    """The message of the error."""
    with pytest.raises(error) as info:
        apply(*args, **options)
    return str(info.value)


@ways
def test_every_match_is_replaced_and_nothing_else(apply):
    assert weights(apply(model(), {"*.query": negated})) == {
        "layers.0.query": 0.0,
        "layers.0.output": 0.5,
        "layers.1.query": -1.0,
        "layers.1.output": 1.5,
        "head": 9.0,
    }


@ways
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("layers.[0-9].query", [0, 1, 2]),
        ("layers.[!02].query", [1]),
        ("layers.1*.query", [1, 10]),
        ("*[0-9].query", [0, 1, 2, 10]),
    ],
)
def test_patterns_have_the_rules_of_fnmatch(apply, pattern, expected):
    tree = Model({i: Layer(Dense("old"), Dense("old")) for i in (0, 1, 2, 10)}, Dense("old"))
    new = apply(tree, {pattern: lambda module: Dense("new")})
    found = [path for path, leaf in jax.tree.leaves_with_path(new) if leaf == "new"]
    assert [jax.tree_util.keystr(path, simple=True, separator=".") for path in found] == [
        f"layers.{i}.query.weight" for i in expected
    ]


@ways
def test_pattern_that_chooses_all_places_of_a_shared_sub_module_transforms_it_once(apply):
    shared, given = dense(1.0), Counted()
    new = apply(Model([shared, dense(2.0), shared], None), {"layers.*": given})
    assert weights(new) == {"layers.0": -1.0, "layers.1": -2.0, "layers.2": -1.0}
    assert [module.weight for module in given.given] == [shared.weight, given.given[1].weight]
    assert new.layers[0].weight is new.layers[2].weight
    if apply is apply_transforms:
        assert new.layers[0] is new.layers[2]


@ways
def test_pattern_that_matches_nothing_warns_where_it_was_called_and_names_what_comes_close(apply):
    tree = model()
    with pytest.warns(UserWarning, match=r"pattern 'layers\.0\.qeury' matches no sub-module") as caught:
        new = apply(tree, {"layers.0.qeury": negated, "head": negated})
    assert "come close: 'layers.0.query'" in str(caught[0].message)
    assert [warning.filename for warning in caught] == [__file__]
    assert weights(new)["head"] == -9.0


@ways
def test_two_patterns_that_match_the_same_path_are_an_error(apply):
    message = raised(apply, model(), {"*.query": negated, "head": negated, "layers.1.*": negated})
    assert message.startswith("patterns '*.query' and 'layers.1.*' match the same path, 'layers.1.query'")
    message = raised(apply, model(), {"": negated, "?*": negated, "*": negated})
    assert message.startswith("patterns '' and '*' match the same path, '' (the model itself)")


@ways
def test_match_inside_of_another_match_is_an_error(apply):
    message = raised(apply, model(), {"layers.0": negated, "layers.0.query": unchanged})
    assert message.startswith(
        "pattern 'layers.0.query' matches 'layers.0.query', which is inside of 'layers.0', "
        "which pattern 'layers.0' matches"
    )
    assert message == raised(apply, model(), {"layers.0.query": unchanged, "layers.0": negated})


@ways
def test_no_transform_is_called_for_a_plan_that_does_not_fit(apply):
    given = Counted()
    raised(apply, model(), {"layers.0.query": given, "head": given, "hea?": given})
    raised(apply, model(), {"layers.0.query": given, "layers.0.*": given})
    raised(apply, model(), {"layers.0.query": given, "nothing": given}, strict=True)
    assert given.given == []


@ways
@pytest.mark.parametrize(
    "transform",
    [transposed, lambda module: Wrapped(transposed(module)), lambda module: Wrapped([Wrapped(transposed(module))])],
    ids=["itself", "wrapped", "wrapped twice"],
)
def test_array_of_another_shape_is_an_error_also_when_wrapped(apply, transform):
    message = raised(apply, model(), {"*.query": transform})
    assert message == (
        "the transform of pattern '*.query' at 'layers.0.query' makes weight of shape (3, 2) one of shape (2, 3); "
        "if that is meant, pass same_shapes=False"
    )


@ways
@pytest.mark.parametrize(
    "transform",
    [
        Wrapped,
        lambda module: Dense(module.weight),
        lambda module: Dense(module.weight.astype(jnp.bfloat16), module.bias),
        lambda module: Dense(np.asarray(module.weight), module.bias),
    ],
    ids=["wrapped", "bias removed", "other dtype", "numpy"],
)
def test_transforms_that_keep_the_shapes_of_what_they_keep_are_allowed(apply, transform):
    new = apply(model(), {"head": transform})
    assert jax.tree.structure(new.head) == jax.tree.structure(transform(model().head))


@ways
def test_error_in_a_transform_keeps_its_type_and_says_where_it_was(apply):
    def broken(module):
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError, match=r"^no\n") as info:
        apply(model(), {"*.output": broken})
    assert info.value.__notes__ == ["in the transform of pattern '*.output' at 'layers.0.output'"]


@ways
def test_works_inside_of_jit(apply):
    tree, plan = model(), {"*.query": negated, "head": Wrapped}
    new = jax.jit(lambda tree: apply(tree, plan))(tree)
    assert jax.tree.structure(new) == jax.tree.structure(apply(tree, plan))
    assert weights(new) == weights(apply(tree, plan))


@ways
def test_works_on_shapes_without_numbers(apply):
    def init():
        return apply(model(), {"*.query": negated, "head": Wrapped})

    abstract = eqx.filter_eval_shape(init)
    assert abstract.head.layer.weight == jax.ShapeDtypeStruct((3, 2), jnp.float32)
    shapes = jax.eval_shape(model)
    new = apply(shapes, {"head": Wrapped})
    assert new.head.layer.weight == shapes.head.weight
    assert type(new.layers[0].query.weight) is jax.ShapeDtypeStruct
    message = raised(apply, shapes, {"head": lambda old: Dense(jax.ShapeDtypeStruct((7,), jnp.float32), old.bias)})
    assert "makes weight of shape (3, 2) one of shape (7,)" in message


class Block(eqx.Module):
    bias: Any
    inner: Any = None


@ways
def test_an_array_taken_out_is_not_taken_for_one_of_the_same_name_further_in(apply):
    tree = Block(np.zeros(4), Block(np.zeros(8)))
    new = apply(tree, {"": lambda block: Block(None, block.inner)})
    assert new.bias is None
    assert new.inner.bias is tree.inner.bias


class Swapped(eqx.Module):
    inner: Any
    bias: Any


@ways
def test_shapes_that_change_places_are_an_error_too(apply):
    tree = Block(np.zeros(2), np.zeros(3))
    message = raised(apply, tree, {"": lambda block: Swapped(np.zeros(2), np.zeros(3))})
    assert "makes bias of shape (2,) one of shape (3,)" in message


@ways
def test_transform_that_returns_none_is_an_error(apply):
    message = raised(apply, model(), {"*.output": lambda module: None})
    assert message.startswith("the transform of pattern '*.output' returns None at 'layers.0.output'")
    assert "at '' (the model itself)" in raised(apply, model(), {"": lambda module: None}, same_shapes=False)
