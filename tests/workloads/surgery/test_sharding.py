import collections
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from perfsuite.workloads.bert import BertConfig, BertForMaskedLM, masked_lm_loss
from perfsuite.workloads.surgery import apply_transforms, bert_tensor_parallel_plan, partitioned
from perfsuite.workloads.surgery.sharding import batch_shardings, keep_shardings, module_shardings, shard
from perfsuite.workloads.training import (
    TrainState,
    make_flat_train_step,
    make_train_step_with_partition,
    mlm_batches,
)

CONFIG = BertConfig.tiny(dropout=0.1, attention="eager", num_layers=1).narrowed(num_heads=4)
QUIET = BertConfig.tiny(dropout=0.0, num_layers=1).narrowed(num_heads=4)
"""Without random bits to draw: they cross no device, and take half of the time to compile."""
STEPS = 3
# AdamW divides a gradient by its own size. A key's bias has none (softmax does not see it), and what is left there is
# rounding, of either sign; an epsilon above it keeps it from becoming a whole step.
TX = optax.adamw(1e-2, eps=1e-4)

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")


def mesh_of(data, model, axis_type=AxisType.Auto):
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(axis_type,) * 2)


def plain_model(config=CONFIG):
    return BertForMaskedLM(config, key=jax.random.key(0))


def parallel_model(config=CONFIG, axis="model"):
    return apply_transforms(plain_model(config), bert_tensor_parallel_plan(config, axis=axis), strict=True)


def by_name(tree):
    """The arrays of `tree` by the names that they have in a model without `Partitioned` layers."""
    arrays = jax.tree.leaves_with_path(eqx.filter(tree, eqx.is_array))
    names = [jax.tree_util.keystr(path, simple=True, separator=".").replace(".layer.", ".") for path, _ in arrays]
    found = dict(zip(names, (leaf for _, leaf in arrays), strict=True))
    assert len(found) == len(arrays)
    return found


def assert_close(mine, expected, rtol, atol):
    mine, expected = by_name(mine), by_name(expected)
    assert mine.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(mine[name], value, rtol=rtol, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def batch():
    (made,) = mlm_batches(CONFIG.vocab_size, 4, buckets=(16,), num_batches=1)
    return {name: jnp.asarray(values) for name, values in made.items()}


KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def single(batch):
    """State, loss and counts after all steps of the model that no plan has changed, on one device."""
    step, state = make_flat_train_step(masked_lm_loss, TX), TrainState.create(TX, plain_model())
    for _ in range(STEPS):
        state, out = step(state, batch, KEY)
    return jax.device_get(((state.model, state.opt_state), out))


def flat_training(mesh):
    state = TrainState.create(TX, parallel_model())
    shardings = module_shardings(state, mesh)
    step = keep_shardings(make_flat_train_step(masked_lm_loss, TX), shardings)
    return step, (shard(state, shardings),)


def partitioned_training(mesh):
    made = make_train_step_with_partition(masked_lm_loss, TX, parallel_model())
    carried = made.params, made.opt_state
    shardings = module_shardings(carried, mesh)
    return keep_shardings(made.step, *shardings), shard(carried, shardings)


def abstract_training(mesh, batch, config=CONFIG):
    """The flat step and arguments for it that hold no numbers."""
    state = eqx.filter_eval_shape(lambda: TrainState.create(TX, parallel_model(config)))
    batch, key = jax.eval_shape(lambda: (batch, KEY))
    shardings = module_shardings(state, mesh)
    step = keep_shardings(make_flat_train_step(masked_lm_loss, TX), shardings)
    return step, (
        shard(state, shardings),
        shard(batch, batch_shardings(batch, mesh)),
        shard(key, NamedSharding(mesh, PartitionSpec())),
    )


@pytest.mark.parametrize("training", [flat_training, partitioned_training])
def test_sharded_step_computes_what_one_device_does_and_compiles_once(batch, single, compile_counter, training):
    mesh = mesh_of(2, 2)
    step, carried = training(mesh)
    batch = shard(batch, batch_shardings(batch, mesh))
    shardings = [leaf.sharding for leaf in jax.tree.leaves(carried)]

    *after, _ = step(*carried, batch, KEY)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(carried))
    assert [leaf.sharding for leaf in jax.tree.leaves(after)] == shardings
    with compile_counter.forbid():
        for _ in range(STEPS - 1):
            before = after
            *after, out = step(*before, batch, KEY)
            assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))

    trees = tuple(after) if training is partitioned_training else (after[0].model, after[0].opt_state)
    # Not bit for bit: sums over the batch and over a layer's width are added up in another order. The dropout masks
    # are the same, or nothing would be close.
    assert_close((trees, out), single, rtol=2e-4, atol=2e-6)


def collectives(compiled):
    """How many there are of each kind in the forward pass, in the backward pass, and over how many arrays in all."""
    counts, arrays = collections.Counter(), collections.Counter()
    # A result is one array, or a tuple of them with comments in it.
    pattern = r" = (\(.*?\)|\S+) ((?:all|reduce|collective)-[a-z-]+?)(?:-start)?\(.*?op_name=\"([^\"]*)\""
    for shapes, kind, op_name in re.findall(pattern, compiled.as_text()):
        if kind == "reduce-window":
            continue
        direction = "backward" if "transpose(" in op_name else "forward"
        counts[direction, kind] += 1
        arrays[direction, kind] += len(re.findall(r"[a-z]\w*\[", shapes))
    return counts, arrays


def test_tensor_parallel_layer_has_two_all_reduces_forward_and_two_backward(batch):
    step, arguments = abstract_training(mesh_of(1, 4), batch, QUIET)
    counts, _ = collectives(step.lower(*arguments).compile())
    layers = QUIET.num_layers
    assert counts == {("forward", "all-reduce"): 2 * layers, ("backward", "all-reduce"): 2 * layers}


def test_data_parallel_step_reduces_every_gradient_the_loss_and_two_counts_once(batch):
    step, arguments = abstract_training(mesh_of(4, 1), batch, QUIET)
    counts, arrays = collectives(step.lower(*arguments).compile())
    assert {kind for _, kind in counts} == {"all-reduce"}
    # The embedding table has two gradients, from the lookup and from the head.
    gradients = len(jax.tree.leaves(eqx.filter_eval_shape(parallel_model, QUIET))) + 1
    assert arrays.total() == gradients + 3


def test_every_donated_array_is_reused(batch):
    step, arguments = abstract_training(mesh_of(2, 2), batch, QUIET)
    memory = step.lower(*arguments).compile().memory_analysis()
    on_one_device = sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf in arguments[0].arrays
    )
    assert memory.alias_size_in_bytes == on_one_device


def test_kept_shardings_hold_where_xla_would_choose_another():
    sharding = NamedSharding(mesh_of(1, 4), PartitionSpec("model"))
    step = jax.jit(lambda state, batch, key: (jnp.zeros_like(state) + key, batch), donate_argnums=0)
    state = jax.device_put(jnp.ones(8), sharding)
    assert step(state, 1.0, 2.0)[0].sharding != sharding
    state = jax.device_put(jnp.ones(8), sharding)
    assert keep_shardings(step, sharding)(state, 1.0, 2.0)[0].sharding == sharding


def test_leaf_without_a_sharding_stays_as_it_is():
    mesh = mesh_of(1, 4)
    tree = {"weight": jnp.ones(8), "activation": jax.nn.gelu, "scale": 0.5, "name": "tree"}
    shardings = module_shardings(tree, mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    assert shardings == {"weight": everywhere, "activation": None, "scale": None, "name": None}
    placed = shard(tree, shardings)
    assert placed.pop("weight").sharding == everywhere
    assert placed == {"activation": jax.nn.gelu, "scale": 0.5, "name": "tree"}


def test_arrays_made_in_a_trace_get_their_shardings():
    sharding = NamedSharding(mesh_of(1, 4), PartitionSpec(None, "model"))
    made = jax.jit(lambda: shard({"a": jnp.zeros((3, 8))}, {"a": sharding}))()
    assert made["a"].sharding == sharding


@pytest.mark.parametrize(
    ("axis_type", "data", "rows", "message"),
    [
        (AxisType.Auto, "batch", 4, r"no axis 'batch', only \('data', 'model'\)"),
        (AxisType.Auto, "data", 3, r"batch of shape \(3, 16\) cannot be divided over 2 devices"),
        (AxisType.Explicit, "data", 4, r"'data' is of type Explicit.*AxisType\.Auto"),
    ],
)
def test_batch_that_the_mesh_cannot_split_is_an_error(axis_type, data, rows, message):
    with pytest.raises(ValueError, match=message):
        batch_shardings({"ids": np.zeros((rows, 16))}, mesh_of(2, 2, axis_type), data=data)


NARROW = BertConfig.tiny(num_heads=4, intermediate_size=6)


@pytest.mark.parametrize(
    ("config", "axis", "path", "pattern", "message"),
    [
        (
            BertConfig.tiny(),
            "model",
            "layers.0.attention.query.layer.weight",
            "*.attention.query",
            "2 heads or other groups of features cannot be divided over 4 devices (mesh axis 'model')",
        ),
        (
            NARROW,
            "model",
            "layers.0.intermediate.dense.layer.weight",
            "*.intermediate.dense",
            "an array of shape (6, 128) cannot be divided over 4 devices (mesh axis 'model') in dimension 0",
        ),
    ],
    ids=["heads", "width"],
)
def test_model_that_the_mesh_cannot_divide_is_an_error_naming_path_and_pattern(config, axis, path, pattern, message):
    plan = bert_tensor_parallel_plan(config, axis=axis)
    tree = eqx.filter_eval_shape(parallel_model, config, axis)
    for patterns, culprit in [((), path), (plan, f"{path} (chosen by pattern {pattern!r})")]:
        with pytest.raises(ValueError) as raised:  # noqa: PT011
            module_shardings(tree, mesh_of(1, 4), plan=patterns)
        assert str(raised.value) == f"{culprit}: {message}"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (PartitionSpec("model", "model"), r"layers\.0\.layer\.weight: .* has mesh axis 'model' twice"),
        (PartitionSpec(PartitionSpec.UNCONSTRAINED, "model"), r"layers\.0\.layer\.weight: .* leaves dimension 0 open"),
    ],
)
def test_spec_that_no_mesh_can_follow_is_an_error_naming_the_array(spec, message):
    tree = eqx.filter_eval_shape(eqx.nn.MLP, 4, 4, 8, 1, key=KEY)
    split = apply_transforms(tree, {"layers.0": lambda layer: partitioned(layer, weight=spec)})
    with pytest.raises(ValueError, match=message):
        module_shardings(split, mesh_of(1, 4))
