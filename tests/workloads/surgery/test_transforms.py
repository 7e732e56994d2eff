import re
import warnings
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


class Adapted(eqx.Module):
    """As in LoRA: the layer, and the factors of what is added to it."""

    layer: Any
    a: Any
    b: Any


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
def test_every_pattern_has_its_own_transform(apply):
    new = apply(model(), {"layers.1.*": negated, "head": lambda module: Wrapped(module)})
    assert weights(new) == {
        "layers.0.query": 0.0,
        "layers.0.output": 0.5,
        "layers.1.query": -1.0,
        "layers.1.output": -1.5,
        "head.layer": 9.0,
    }


@ways
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("layers.[0-9].query", [0, 1, 2]),
        ("layers.[02].query", [0, 2]),
        ("layers.[!02].query", [1]),
        ("layers.?.query", [0, 1, 2]),
        ("layers.??.query", [10]),
        ("layers.1*.query", [1, 10]),
        ("*[0-9].query", [0, 1, 2, 10]),
        ("layers.1.query", [1]),
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
def test_patterns_match_whole_names_in_the_case_they_are_written_in(apply):
    for pattern in ("query", "layers.0.quer", "Head", "ayers.0.query", "head."):
        assert "matches no sub-module" in raised(apply, model(), {pattern: negated}, strict=True)


@ways
def test_empty_pattern_is_the_model_itself(apply):
    tree, given = model(), Counted()
    assert weights(apply(tree, {"": given})) == {name: -value for name, value in weights(tree).items()}
    assert len(given.given) == 1
    assert given.given[0] is tree


@ways
def test_empty_plan_gives_an_equal_tree(apply):
    tree = model()
    assert eqx.tree_equal(apply(tree, {}), tree)
    assert apply(None, {}) is None
    assert apply([], {}) == []


@ways
def test_original_is_left_as_it_is(apply):
    tree = model()
    before, values = jax.tree.leaves(tree), weights(tree)
    layer, query = tree.layers[0], tree.layers[0].query
    apply(tree, {"*.query": negated, "head": Wrapped})
    assert all(mine is old for mine, old in zip(jax.tree.leaves(tree), before, strict=True))
    assert tree.layers[0] is layer
    assert layer.query is query
    assert weights(tree) == values


@ways
def test_arrays_that_are_not_replaced_are_shared_with_the_original(apply):
    tree = model()
    new = apply(tree, {"layers.0.query": negated})
    assert new.head.weight is tree.head.weight
    assert new.layers[0].output.bias is tree.layers[0].output.bias
    assert new.layers[1].query.weight is tree.layers[1].query.weight


def test_sub_modules_off_the_paths_are_the_same_objects():
    tree = model()
    new = apply_transforms(tree, {"layers.0.query": negated})
    assert new.head is tree.head
    assert new.layers[1] is tree.layers[1]
    assert new.layers[0].output is tree.layers[0].output
    assert new.layers[0] is not tree.layers[0]


@ways
def test_pattern_that_chooses_one_place_of_a_shared_sub_module_leaves_the_other(apply):
    shared = dense(1.0)
    new = apply(Model([shared], shared), {"head": negated})
    assert weights(new) == {"layers.0": 1.0, "head": -1.0}
    assert new.layers[0].weight is shared.weight


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
def test_shared_sub_module_is_transformed_once_for_each_pattern(apply):
    shared, first, second = dense(1.0), Counted(), Counted(Wrapped)
    new = apply(Model([shared, shared], shared), {"layers.*": first, "head": second})
    assert (len(first.given), len(second.given)) == (1, 1)
    assert weights(new) == {"layers.0": -1.0, "layers.1": -1.0, "head.layer": 1.0}


@ways
def test_transform_sees_the_sub_module_itself_in_the_order_of_the_leaves(apply):
    tree, given = model(3), Counted(unchanged)
    apply(tree, {"layers.*.*": given})
    expected = [part for layer in tree.layers for part in (layer.query, layer.output)]
    assert [id(module) for module in given.given] == [id(module) for module in expected]


@ways
def test_check_init_of_the_modules_around_does_not_run(apply):
    class Strict(eqx.Module):
        inner: Any

        def __check_init__(self):
            if not isinstance(self.inner, Dense):
                raise TypeError("no Dense")

    assert type(apply(Strict(dense()), {"inner": Wrapped}).inner) is Wrapped


@ways
def test_wrapper_with_a_name_of_its_own_survives_and_can_be_replaced(apply):
    @eqx.filter_jit
    def head(x):
        return x

    tree = Model([dense()], head)
    assert apply(tree, {"layers.0": negated}).head.__name__ == "head"
    new = apply(tree, {"head": Wrapped})
    assert new.head.layer.__name__ == "head"
    assert new.head.layer(1) == 1


@ways
def test_pattern_that_matches_nothing_warns_where_it_was_called_and_names_what_comes_close(apply):
    tree = model()
    with pytest.warns(UserWarning, match=r"pattern 'layers\.0\.qeury' matches no sub-module") as caught:
        new = apply(tree, {"layers.0.qeury": negated, "head": negated})
    assert "come close: 'layers.0.query'" in str(caught[0].message)
    assert [warning.filename for warning in caught] == [__file__]
    assert weights(new)["head"] == -9.0


@ways
def test_every_pattern_that_matches_nothing_warns(apply):
    with pytest.warns(UserWarning, match="matches no sub-module") as caught:
        apply(model(), {"a": negated, "head": negated, "b": negated})
    assert [str(warning.message).split(" matches")[0] for warning in caught] == ["pattern 'a'", "pattern 'b'"]


@ways
def test_pattern_that_matches_nothing_is_an_error_if_strict(apply):
    message = raised(apply, model(), {"layers.*.qery": negated, "head": negated}, strict=True)
    assert message.startswith("pattern 'layers.*.qery' matches no sub-module; names that come close: 'layers.0.query'")


@ways
@pytest.mark.parametrize("tree", [None, (), 3, [1, 2]])
def test_tree_without_sub_modules_has_no_names_that_come_close(apply, tree):
    assert raised(apply, tree, {"*": negated}, strict=True).endswith("names that come close: there is none")
    with pytest.warns(UserWarning, match="matches no sub-module"):
        assert apply(tree, {"*": negated}) == tree


@ways
def test_names_that_come_close_do_not_leave_out_the_model_itself(apply):
    assert "'' (the model itself)" in raised(apply, dense(), {"head": negated}, strict=True)


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
def test_match_inside_of_another_match_of_the_same_pattern_is_an_error(apply):
    message = raised(apply, model(), {"layers.*": negated})
    assert message.startswith("pattern 'layers.*' matches 'layers.0.query', which is inside of 'layers.0', ")
    message = raised(apply, model(), {"*": negated})
    assert "is inside of '' (the model itself), which pattern '*' matches" in message


@ways
def test_no_transform_is_called_for_a_plan_that_does_not_fit(apply):
    given = Counted()
    raised(apply, model(), {"layers.0.query": given, "head": given, "hea?": given})
    raised(apply, model(), {"layers.0.query": given, "layers.0.*": given})
    raised(apply, model(), {"layers.0.query": given, "nothing": given}, strict=True)
    assert given.given == []


@ways
def test_transform_that_returns_none_is_an_error(apply):
    message = raised(apply, model(), {"*.output": lambda module: None})
    assert message.startswith("the transform of pattern '*.output' returns None at 'layers.0.output'")
    assert "at '' (the model itself)" in raised(apply, model(), {"": lambda module: None}, same_shapes=False)


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
def test_array_of_another_shape_deep_inside_is_an_error_that_names_it(apply):
    message = raised(apply, model(), {"layers.1": lambda layer: Layer(layer.query, transposed(layer.output))})
    assert "at 'layers.1' makes output.weight of shape (3, 2) one of shape (2, 3)" in message


@ways
def test_array_of_another_shape_in_the_last_of_many_matches_is_an_error(apply):
    tree = model(3)
    last = tree.layers[2].query
    message = raised(apply, tree, {"*.query": lambda module: transposed(module) if module is last else module})
    assert "at 'layers.2.query'" in message


@ways
def test_another_shape_is_allowed_where_it_is_meant(apply):
    new = apply(model(), {"head": transposed}, same_shapes=False)
    assert new.head.weight.shape == (2, 3)


@ways
@pytest.mark.parametrize(
    "transform",
    [
        unchanged,
        negated,
        Wrapped,
        lambda module: Dense(module.weight),
        lambda module: Dense(module.weight.astype(jnp.bfloat16), module.bias),
        lambda module: Dense(np.asarray(module.weight), module.bias),
        lambda module: eqx.nn.Identity(),
        lambda module: "no module",
    ],
    ids=["unchanged", "other values", "wrapped", "bias removed", "other dtype", "numpy", "all removed", "no module"],
)
def test_transforms_that_keep_the_shapes_of_what_they_keep_are_allowed(apply, transform):
    new = apply(model(), {"head": transform})
    assert jax.tree.structure(new.head) == jax.tree.structure(transform(model().head))


@ways
def test_adapter_that_adds_arrays_beside_those_of_the_layer_is_allowed(apply):
    new = apply(model(), {"*.query": lambda layer: Adapted(layer, jnp.zeros((1, 2)), jnp.zeros((3, 1)))})
    assert [layer.query.a.shape for layer in new.layers] == [(1, 2), (1, 2)]
    assert new.layers[1].query.layer.weight.shape == (3, 2)


@ways
def test_wrapper_with_an_array_of_the_layers_name_is_allowed(apply):
    class Scaled(eqx.Module):
        weight: Any
        layer: Any

    new = apply(model(), {"head": lambda layer: Scaled(jnp.ones(()), layer)})
    assert new.head.weight.shape == ()
    assert new.head.layer.weight.shape == (3, 2)


@ways
def test_error_in_a_transform_keeps_its_type_and_says_where_it_was(apply):
    def broken(module):
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError, match=r"^no\n") as info:
        apply(model(), {"*.output": broken})
    assert info.value.__notes__ == ["in the transform of pattern '*.output' at 'layers.0.output'"]


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ({"nothing": negated}, {"strict": True}),
        ({"head": negated, "h*": negated}, {}),
        ({"layers.*": negated}, {}),
        ({"head": lambda module: None}, {}),
        ({"head": transposed}, {}),
        ({"head": lambda module: module.nothing}, {}),
    ],
    ids=["no match", "same path", "inside", "None", "shape", "raises"],
)
def test_errors_are_the_same_in_all_ways(plan, options):
    seen = []
    for apply in (apply_transforms, apply_transforms_batched, apply_transforms_one_by_one):
        with pytest.raises(Exception) as info:  # noqa: PT011 - compared below
            apply(model(), plan, **options)
        seen.append((type(info.value), str(info.value), getattr(info.value, "__notes__", [])))
    assert seen[0] == seen[1] == seen[2]
    assert re.search("'head'|'nothing'|'layers", " ".join([seen[0][1], *seen[0][2]]))


def test_plan_error_is_a_value_error():
    with pytest.raises(ValueError, match="match the same path"):
        apply_transforms(model(), {"head": negated, "h*": negated})


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


@ways
def test_gradients_go_through(apply):
    def loss(tree):
        new = apply(tree, {"head": lambda module: Dense(3 * module.weight, module.bias)})
        return new.head.weight.sum() + new.layers[0].query.weight.sum()

    gradients = jax.grad(loss)(model())
    assert weights(gradients) == {
        "layers.0.query": 1.0,
        "layers.0.output": 0.0,
        "layers.1.query": 0.0,
        "layers.1.output": 0.0,
        "head": 3.0,
    }


@ways
def test_transformed_tree_can_be_transformed_again(apply):
    once = apply(model(), {"layers.*.query": Wrapped})
    twice = apply(once, {"layers.*.query.layer": negated})
    assert weights(twice)["layers.1.query.layer"] == -1.0


@ways
def test_works_500_levels_deep(apply):
    tree = Wrapped(dense(1.0))
    for _ in range(499):
        tree = Wrapped(tree)
    new = apply(tree, {"*" + "layer." * 499 + "layer": negated})
    for _ in range(500):
        new = new.layer
    assert new.weight[0, 0] == -1.0


@ways
def test_warnings_of_a_transform_are_let_through(apply):
    def warning(module):
        warnings.warn("look", stacklevel=1)
        return module

    with pytest.warns(UserWarning, match=r"^look$"):
        apply(model(), {"head": warning})


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
def test_a_class_or_a_dtype_is_no_array(apply):
    assert apply(Block(np.float32), {"": lambda block: Block(np.dtype("float32"))}).bias == np.dtype("float32")


@ways
def test_names_that_come_close_are_those_with_a_like_last_part(apply):
    message = raised(apply, model(), {"*.attention.querry": negated}, strict=True)
    assert "names that come close: 'layers.0.query'" in message
