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


# Partitioned


@pytest.mark.parametrize("linear", [equinox_linear, bert_linear])
@pytest.mark.parametrize("transform", [column_parallel, row_parallel])
def test_partitioned_layer_computes_what_the_layer_does(linear, transform):
    x = jnp.arange(8.0)
    layer = linear()
    np.testing.assert_array_equal(transform(layer)(x), layer(x))
    np.testing.assert_array_equal(transform(layer)(x, key=KEY), layer(x, key=KEY))


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


# Errors


@pytest.mark.parametrize("transform", [column_parallel, row_parallel])
@pytest.mark.parametrize("layer", [eqx.nn.LayerNorm(8), jnp.ones((3, 4)), None], ids=["LayerNorm", "array", "None"])
def test_parallel_layer_of_anything_but_a_linear_is_an_error_naming_the_way_out(transform, layer):
    message = rf"{transform.__name__} takes an equinox\.nn\.Linear, got {type(layer).__name__};.*partitioned\("
    with pytest.raises(TypeError, match=message):
        transform(layer)


@pytest.mark.parametrize("name", ["nothing", "in_features", "__call__"])
def test_spec_for_a_name_that_is_no_array_is_an_error(name):
    with pytest.raises(TypeError, match=rf"^Linear\.{name} is no array"):
        partitioned(equinox_linear(), **{name: ROWS})


# Which arrays of a tree are split


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


def test_partitioned_layer_has_the_attributes_of_the_layer():
    layer = equinox_linear()
    split = column_parallel(layer)
    assert split.weight is layer.weight
    assert split.bias is layer.bias
    assert (split.in_features, split.out_features, split.use_bias) == (8, 12, True)
    assert hasattr(split, "weight")


def test_layer_that_is_split_already_cannot_be_split_again():
    layer = column_parallel(equinox_linear())
    with pytest.raises(TypeError, match="this Linear is split already"):
        partitioned(layer, weight=PartitionSpec(None, "data"))


def test_spec_with_more_dimensions_than_its_array_is_an_error():
    with pytest.raises(ValueError, match=r"^Linear\.bias has shape \(12,\), too few dimensions for P.*None, 'model'"):
        partitioned(equinox_linear(), bias=COLUMNS)
