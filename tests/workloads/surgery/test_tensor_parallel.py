import copy
import fnmatch
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, PartitionSpec

from perfsuite.workloads.bert import BertConfig, BertForMaskedLM
from perfsuite.workloads.bert.layers import Linear
from perfsuite.workloads.surgery import (
    Partitioned,
    apply_transforms,
    bert_tensor_parallel_plan,
    column_parallel,
    partition_specs,
    partitioned,
    row_parallel,
)
from perfsuite.workloads.surgery.module_paths import iter_module
from perfsuite.workloads.surgery.sharding import module_shardings

KEY = jax.random.key(0)
ROWS, COLUMNS, EVERYWHERE = PartitionSpec("model"), PartitionSpec(None, "model"), PartitionSpec()

needs_eight_devices = pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")


def equinox_linear(use_bias=True):
    return eqx.nn.Linear(8, 12, use_bias=use_bias, key=KEY)


def bert_linear():
    return Linear(8, 12, 0.02, key=KEY)


def mesh_of(data, model):
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def specs_by_name(tree):
    specs = jax.tree.leaves_with_path(partition_specs(tree))
    return {jax.tree_util.keystr(path, simple=True, separator="."): spec for path, spec in specs}


@pytest.mark.parametrize("linear", [equinox_linear, bert_linear])
@pytest.mark.parametrize(
    ("transform", "weight", "bias"), [(column_parallel, ROWS, ROWS), (row_parallel, COLUMNS, EVERYWHERE)]
)
def test_columns_split_weight_and_bias_by_outputs_and_rows_the_weight_alone_by_inputs(linear, transform, weight, bias):
    assert specs_by_name(transform(linear())) == {"layer.weight": weight, "layer.bias": bias}


@pytest.mark.parametrize(("transform", "weight"), [(column_parallel, ROWS), (row_parallel, COLUMNS)])
def test_linear_without_bias_has_its_weight_split(transform, weight):
    assert specs_by_name(transform(equinox_linear(use_bias=False))) == {"layer.weight": weight}


def test_stacked_layers_are_split_in_the_dimensions_of_one_layer():
    stack = eqx.filter_vmap(lambda key: eqx.nn.Linear(8, 12, key=key))(jax.random.split(KEY, 3))
    assert specs_by_name(column_parallel(stack)) == {
        "layer.weight": PartitionSpec(None, "model"),
        "layer.bias": PartitionSpec(None, "model"),
    }
    assert specs_by_name(row_parallel(stack)) == {
        "layer.weight": PartitionSpec(None, None, "model"),
        "layer.bias": EVERYWHERE,
    }


@pytest.mark.parametrize("transform", [column_parallel, row_parallel])
def test_stacked_layers_compute_as_before_where_each_is_called_in_turn(transform):
    stack = eqx.filter_vmap(lambda key: eqx.nn.Linear(8, 8, key=key))(jax.random.split(KEY, 3))

    def through(stack):
        dynamic, static = eqx.partition(stack, eqx.is_array)
        return jax.lax.scan(lambda x, layer: (eqx.combine(layer, static)(x), None), jnp.ones(8), dynamic)[0]

    np.testing.assert_array_equal(through(transform(stack)), through(stack))


def test_axis_is_the_callers():
    assert specs_by_name(column_parallel(equinox_linear(), axis="tp"))["layer.bias"] == PartitionSpec("tp")
    assert specs_by_name(row_parallel(equinox_linear(), axis="tp"))["layer.weight"] == PartitionSpec(None, "tp")


def test_partitioned_splits_the_named_arrays_and_no_others():
    specs = specs_by_name(partitioned(eqx.nn.LayerNorm(8), weight=ROWS))
    assert specs == {"layer.weight": ROWS, "layer.bias": EVERYWHERE}
    assert specs_by_name(partitioned(eqx.nn.Embedding(12, 8, key=KEY), weight=COLUMNS)) == {"layer.weight": COLUMNS}


def test_specs_are_none_for_leaves_that_are_no_arrays():
    tree = {
        "jax": jnp.ones(3),
        "numpy": np.ones(3),
        "abstract": jax.ShapeDtypeStruct((3,), jnp.int32),
        "key": KEY,
        "number": 1.0,
        "name": "name",
        "function": jax.nn.gelu,
        "layer": partitioned({"number": 2}),
    }
    assert partition_specs(tree) == {
        "jax": EVERYWHERE,
        "numpy": EVERYWHERE,
        "abstract": EVERYWHERE,
        "key": EVERYWHERE,
        "number": None,
        "name": None,
        "function": None,
        "layer": partitioned({"number": None}),
    }


def test_specs_of_shapes_are_those_of_arrays():
    model = apply_transforms(eqx.nn.MLP(8, 8, 16, 1, key=KEY), {"layers.0": column_parallel, "layers.1": row_parallel})
    specs = jax.tree.leaves(partition_specs(model))
    assert specs == [ROWS, ROWS, COLUMNS, EVERYWHERE]
    assert jax.tree.leaves(partition_specs(eqx.filter_eval_shape(lambda: model))) == specs


# Partitioned


@pytest.mark.parametrize("linear", [equinox_linear, bert_linear])
@pytest.mark.parametrize("transform", [column_parallel, row_parallel])
def test_partitioned_layer_computes_what_the_layer_does(linear, transform):
    x = jnp.arange(8.0)
    layer = linear()
    np.testing.assert_array_equal(transform(layer)(x), layer(x))
    np.testing.assert_array_equal(transform(layer)(x, key=KEY), layer(x, key=KEY))


def test_partitioned_layer_has_the_attributes_of_the_layer():
    layer = equinox_linear()
    split = column_parallel(layer)
    assert split.weight is layer.weight
    assert split.bias is layer.bias
    assert (split.in_features, split.out_features, split.use_bias) == (8, 12, True)
    assert hasattr(split, "weight")


def test_missing_attribute_is_an_attribute_error_naming_it():
    split = column_parallel(equinox_linear())
    assert not hasattr(split, "nothing")
    with pytest.raises(AttributeError, match="nothing"):
        split.nothing


def test_special_methods_of_the_layer_are_not_those_of_the_partitioned_one():
    split = partitioned(_Numbers())
    assert split.layer.__array__() == "numbers"
    assert not hasattr(split, "__array__")


class _Numbers(eqx.Module):
    def __array__(self):
        return "numbers"


def test_partitioned_layer_without_its_fields_has_no_attributes_and_does_not_recurse():
    empty = object.__new__(Partitioned)
    assert not hasattr(empty, "layer")
    assert not hasattr(empty, "weight")


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda split: pickle.loads(pickle.dumps(split)),
        lambda split: jax.tree.map(lambda leaf: leaf, split),
    ],
    ids=["copy", "deepcopy", "pickle", "tree.map"],
)
def test_copies_of_a_partitioned_layer_are_equal_to_it(copied):
    split = column_parallel(equinox_linear(), groups=4)
    other = copied(split)
    assert other is not split
    assert type(other) is Partitioned
    assert other.splits == split.splits
    assert jax.tree.structure(other) == jax.tree.structure(split)
    np.testing.assert_array_equal(other.weight, split.weight)
    np.testing.assert_array_equal(other(jnp.ones(8)), split(jnp.ones(8)))


def test_repr_of_a_partitioned_layer_shows_the_layer_and_its_splits():
    shown = repr(column_parallel(equinox_linear()))
    assert "Partitioned(" in shown
    assert "weight=f32[12,8]" in shown
    assert repr(ROWS) in shown


def test_partitioned_layer_is_a_pytree_with_the_arrays_of_the_layer_and_static_splits():
    layer = equinox_linear()
    split = column_parallel(layer)
    mine, its = jax.tree.leaves(split), jax.tree.leaves(layer)
    assert len(mine) == len(its)
    assert all(a is b for a, b in zip(mine, its, strict=True))
    assert hash(jax.tree.structure(split)) == hash(jax.tree.structure(column_parallel(equinox_linear())))
    assert jax.tree.structure(split) != jax.tree.structure(row_parallel(layer))


def test_plan_makes_no_difference_to_what_a_model_computes_under_vmap_and_jit():
    model = eqx.nn.MLP(8, 4, 16, 1, key=KEY)
    split = apply_transforms(model, {"layers.0": column_parallel, "layers.1": row_parallel}, strict=True)
    x = jax.random.normal(KEY, (5, 8))
    np.testing.assert_array_equal(jax.vmap(split)(x), jax.vmap(model)(x))
    np.testing.assert_array_equal(eqx.filter_jit(eqx.filter_vmap(split))(x), eqx.filter_jit(eqx.filter_vmap(model))(x))


# Errors


@pytest.mark.parametrize("transform", [column_parallel, row_parallel])
@pytest.mark.parametrize("layer", [eqx.nn.LayerNorm(8), jnp.ones((3, 4)), None], ids=["LayerNorm", "array", "None"])
def test_parallel_layer_of_anything_but_a_linear_is_an_error_naming_the_way_out(transform, layer):
    message = rf"{transform.__name__} takes an equinox\.nn\.Linear, got {type(layer).__name__};.*partitioned\("
    with pytest.raises(TypeError, match=message):
        transform(layer)


def test_layer_that_is_split_already_cannot_be_split_again():
    layer = column_parallel(equinox_linear())
    with pytest.raises(TypeError, match="this Linear is split already"):
        partitioned(layer, weight=PartitionSpec(None, "data"))


@pytest.mark.parametrize("second", [column_parallel, row_parallel])
@pytest.mark.parametrize("first", [column_parallel, row_parallel])
def test_linear_that_is_parallel_already_is_an_error(first, second):
    with pytest.raises(TypeError, match=rf"{second.__name__} takes an equinox\.nn\.Linear, got Partitioned"):
        second(first(equinox_linear()))


@pytest.mark.parametrize("name", ["nothing", "in_features", "__call__"])
def test_spec_for_a_name_that_is_no_array_is_an_error(name):
    with pytest.raises(TypeError, match=rf"^Linear\.{name} is no array"):
        partitioned(equinox_linear(), **{name: ROWS})


def test_spec_for_a_bias_that_is_not_there_is_an_error():
    with pytest.raises(TypeError, match=r"^Linear\.bias is no array"):
        partitioned(equinox_linear(use_bias=False), bias=ROWS)


def test_spec_with_more_dimensions_than_its_array_is_an_error():
    with pytest.raises(ValueError, match=r"^Linear\.bias has shape \(12,\), too few dimensions for P.*None, 'model'"):
        partitioned(equinox_linear(), bias=COLUMNS)


# Which arrays of a tree are split


def test_moments_of_adam_are_split_like_their_parameters():
    model = [column_parallel(equinox_linear()), row_parallel(equinox_linear())]
    assert specs_by_name(optax.adamw(1e-3).init(model)) == {
        "0.count": EVERYWHERE,
        **{
            f"0.{moment}.{name}": spec
            for moment in ("mu", "nu")
            for name, spec in {
                "0.layer.weight": ROWS,
                "0.layer.bias": ROWS,
                "1.layer.weight": COLUMNS,
                "1.layer.bias": EVERYWHERE,
            }.items()
        },
    }


def test_factored_moments_have_other_shapes_and_are_not_split():
    model = column_parallel(equinox_linear())
    state = optax.adafactor(1e-3, min_dim_size_to_factor=8).init(model)
    specs = specs_by_name(state)
    factors = {name: spec for name, spec in specs.items() if "v_row" in name or "v_col" in name}
    assert len(factors) == 4
    assert set(factors.values()) == {EVERYWHERE}
    # The bias has no factors: its second moment is kept as in Adam.
    (moments,) = [part for part in state if hasattr(part, "v_row")]
    assert moments.v.bias.shape == (12,)
    assert specs["0.v.layer.bias"] == ROWS
    assert specs["0.v.layer.weight"] == EVERYWHERE


def test_array_that_was_removed_is_not_missed():
    model = eqx.filter(column_parallel(equinox_linear()), lambda leaf: eqx.is_array(leaf) and leaf.ndim == 2)
    assert specs_by_name(model) == {"layer.weight": ROWS}


def test_partitioned_layers_inside_of_a_partitioned_one_keep_their_splits():
    class Block(eqx.Module):
        dense: Partitioned
        scale: jax.Array
        shift: jax.Array

    inner = column_parallel(equinox_linear())
    block = partitioned(Block(inner, jnp.ones((8, 4)), jnp.ones(4)), scale=PartitionSpec("data", "model"))
    outer = partitioned(_Holder(block, jnp.ones(16)), array=PartitionSpec("data"))
    assert specs_by_name([outer]) == {
        "0.layer.inside.layer.dense.layer.weight": ROWS,
        "0.layer.inside.layer.dense.layer.bias": ROWS,
        "0.layer.inside.layer.scale": PartitionSpec("data", "model"),
        "0.layer.inside.layer.shift": EVERYWHERE,
        "0.layer.array": PartitionSpec("data"),
    }


class _Holder(eqx.Module):
    inside: Partitioned
    array: jax.Array


@needs_eight_devices
def test_dimension_split_over_several_mesh_axes_is_divided_by_their_product():
    mesh, both = mesh_of(2, 4), PartitionSpec(("data", "model"))
    layer = partitioned(eqx.nn.Linear(3, 16, key=KEY), weight=both)
    shardings = module_shardings(layer, mesh)
    assert shardings.weight.spec == both
    assert shardings.weight.shard_shape((16, 3)) == (2, 3)
    with pytest.raises(
        ValueError, match=r"^layer\.weight: .*\(12, 3\) cannot be divided over 8 devices.*'data', 'model'"
    ):
        module_shardings(partitioned(eqx.nn.Linear(3, 12, key=KEY), weight=both), mesh)
    missing = PartitionSpec(("data", "tensor"))
    with pytest.raises(ValueError, match=r"^layer\.weight: the mesh has no axis 'tensor', only \('data', 'model'\)"):
        module_shardings(partitioned(eqx.nn.Linear(3, 16, key=KEY), weight=missing), mesh)


@needs_eight_devices
def test_groups_that_would_be_cut_are_an_error_where_the_dimension_could_be_divided():
    layer = eqx.nn.Linear(3, 12, key=KEY)
    module_shardings(column_parallel(layer, groups=4), mesh_of(2, 4))
    with pytest.raises(
        ValueError, match=r"^layer\.weight: 3 heads or other groups of features cannot be divided over 4"
    ):
        module_shardings(column_parallel(layer, groups=3), mesh_of(2, 4))


# BERT's plan


@pytest.mark.parametrize("num_layers", [1, 2, 12, 13])
def test_bert_plan_has_six_patterns_that_match_one_sub_module_of_every_layer_and_nothing_else(num_layers):
    config = BertConfig.tiny(num_layers=num_layers)
    model = eqx.filter_eval_shape(BertForMaskedLM, config, key=KEY)
    plan = bert_tensor_parallel_plan(config)
    names = [name for name, _ in iter_module(model)]
    matched = {pattern: [name for name in names if fnmatch.fnmatchcase(name, pattern)] for pattern in plan}
    chosen = {
        "*.attention.query": "attention.query",
        "*.attention.key": "attention.key",
        "*.attention.value": "attention.value",
        "*.attention.output.dense": "attention.output.dense",
        "*.intermediate.dense": "intermediate.dense",
        "*[0-9].output.dense": "output.dense",
    }
    assert matched == {pattern: [f"layers.{i}.{name}" for i in range(num_layers)] for pattern, name in chosen.items()}


def test_bert_plan_makes_heads_and_wide_product_columns_and_the_ends_of_branches_rows():
    config = BertConfig.tiny(num_layers=12, num_heads=4)
    model = eqx.filter_eval_shape(BertForMaskedLM, config, key=KEY)
    layers = apply_transforms(model, bert_tensor_parallel_plan(config, axis="tp"), strict=True).layers
    assert len(layers) == 12
    for layer in layers:
        heads = [layer.attention.query, layer.attention.key, layer.attention.value]
        assert heads == [column_parallel(part.layer, axis="tp", groups=4) for part in heads]
        assert layer.intermediate.dense == column_parallel(layer.intermediate.dense.layer, axis="tp")
        for part in layer.attention.output.dense, layer.output.dense:
            assert part == row_parallel(part.layer, axis="tp")
