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
from perfsuite.workloads.sharding import batch_shardings, bert_shardings, keep_shardings, shard
from perfsuite.workloads.training import (
    TrainState,
    make_flat_train_step,
    make_train_step_with_partition,
    mlm_batches,
)

CONFIG = BertConfig.tiny(dropout=0.1, attention="eager", num_layers=1).narrowed(num_heads=4)
QUIET = BertConfig.tiny(dropout=0.0).narrowed(num_heads=4)
"""Without random bits to draw: they cross no device, and take half of the time to compile."""
MESHES = [(4, 1), (1, 4), (2, 2)]
# AdamW divides a gradient by its own size. A key's bias has none (softmax does not see it), and what is left there is
# rounding, of either sign; an epsilon above it keeps it from becoming a whole step.
TX = optax.adamw(1e-2, eps=1e-4)

pytestmark = pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices")


def mesh_of(data, model, axis_type=AxisType.Auto):
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(axis_type,) * 2)


def model(config=CONFIG):
    return BertForMaskedLM(config, key=jax.random.key(0))


@pytest.fixture(scope="module")
def batch():
    (made,) = mlm_batches(CONFIG.vocab_size, 4, buckets=(16,), num_batches=1)
    return {name: jnp.asarray(values) for name, values in made.items()}


KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def single(batch):
    """State, loss and counts after two steps on one device."""
    step, state = make_flat_train_step(masked_lm_loss, TX), TrainState.create(TX, model())
    for _ in range(2):
        state, out = step(state, batch, KEY)
    return jax.device_get(((state.model, state.opt_state), out))


def flat_training(mesh):
    state = TrainState.create(TX, model())
    shardings = bert_shardings(state, mesh)
    step = keep_shardings(make_flat_train_step(masked_lm_loss, TX), shardings)
    return step, (shard(state, shardings),)


def partitioned_training(mesh):
    made = make_train_step_with_partition(masked_lm_loss, TX, model())
    carried = made.params, made.opt_state
    shardings = bert_shardings(carried, mesh)
    return keep_shardings(made.step, *shardings), shard(carried, shardings)


def abstract_training(mesh, batch, config=CONFIG):
    """The flat step and arguments for it that hold no numbers."""
    state = eqx.filter_eval_shape(lambda: TrainState.create(TX, model(config)))
    batch, key = jax.eval_shape(lambda: (batch, KEY))
    shardings = bert_shardings(state, mesh)
    step = keep_shardings(make_flat_train_step(masked_lm_loss, TX), shardings)
    return step, (
        shard(state, shardings),
        shard(batch, batch_shardings(batch, mesh)),
        shard(key, NamedSharding(mesh, PartitionSpec())),
    )


@pytest.mark.parametrize(
    ("training", "shape"),
    [*((flat_training, shape) for shape in MESHES), (partitioned_training, (2, 2))],
    ids=["flat 4x1", "flat 1x4", "flat 2x2", "partitioned 2x2"],
)
def test_sharded_step_computes_what_one_device_does_and_compiles_once(batch, single, compile_counter, training, shape):
    mesh = mesh_of(*shape)
    step, carried = training(mesh)
    batch = shard(batch, batch_shardings(batch, mesh))
    shardings = [leaf.sharding for leaf in jax.tree.leaves(carried)]

    *after, _ = step(*carried, batch, KEY)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(carried))
    assert [leaf.sharding for leaf in jax.tree.leaves(after)] == shardings
    with compile_counter.forbid():
        *after, out = step(*after, batch, KEY)

    trees = (after[0].model, after[0].opt_state) if training is flat_training else tuple(after)
    # Not bit for bit: sums over the batch and over a layer's width are added up in another order. The dropout masks
    # are the same, or nothing would be close.
    jax.tree.map(
        lambda mine, expected: np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=2e-6),
        (trees, out),
        single,
    )


def test_split_arrays_are_those_of_megatron_in_parameters_and_optimizer_state():
    params = eqx.filter_eval_shape(model)
    tree = params, jax.eval_shape(TX.init, params)
    shardings = bert_shardings(tree, mesh_of(1, 4))
    split = collections.defaultdict(set)
    for path, leaf in jax.tree.leaves_with_path(shardings):
        match = re.fullmatch(
            r"(?:0|1\.0\.(?:mu|nu))\.layers\.0\.(.+)", jax.tree_util.keystr(path, simple=True, separator=".")
        )
        if match:
            split[match[1]].add(leaf.spec)
        else:
            assert leaf.spec == PartitionSpec(), path
    rows, columns, everywhere = {PartitionSpec("model")}, {PartitionSpec(None, "model")}, {PartitionSpec()}
    assert split == {
        "attention.query.weight": rows,
        "attention.query.bias": rows,
        "attention.key.weight": rows,
        "attention.key.bias": rows,
        "attention.value.weight": rows,
        "attention.value.bias": rows,
        "attention.output.dense.weight": columns,
        "attention.output.dense.bias": everywhere,
        "attention.output.norm.weight": everywhere,
        "attention.output.norm.bias": everywhere,
        "intermediate.dense.weight": rows,
        "intermediate.dense.bias": rows,
        "output.dense.weight": columns,
        "output.dense.bias": everywhere,
        "output.norm.weight": everywhere,
        "output.norm.bias": everywhere,
    }


def test_names_of_mesh_axes_are_the_callers():
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    shardings = bert_shardings(eqx.filter_eval_shape(model), mesh, data="dp", model="tp")
    assert shardings.layers[0].output.dense.weight.spec == PartitionSpec(None, "tp")
    assert batch_shardings(jax.ShapeDtypeStruct((4, 16), jnp.int32), mesh, data="dp").spec == PartitionSpec("dp")


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
    gradients = len(jax.tree.leaves(eqx.filter_eval_shape(model, QUIET))) + 1
    assert arrays.total() == gradients + 3


def test_abstract_arguments_give_the_program_of_real_ones(batch):
    mesh = mesh_of(2, 2)
    step, (state,) = flat_training(mesh)
    batch = shard(batch, batch_shardings(batch, mesh))
    key = shard(KEY, NamedSharding(mesh, PartitionSpec()))
    real = step.lower(state, batch, key)
    abstract_step, arguments = abstract_training(mesh, batch)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(arguments))
    assert abstract_step.lower(*arguments).as_text() == real.as_text()


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


def test_step_rejects_a_state_that_is_placed_otherwise(batch):
    step, _ = flat_training(mesh_of(1, 4))
    elsewhere = jax.device_put(TrainState.create(TX, model()), jax.devices()[5])
    with pytest.raises(ValueError, match="does not match the sharding on the respective arg"):
        step(elsewhere, batch, KEY)


@pytest.mark.parametrize(
    ("shape", "names", "config", "message"),
    [
        ((2, 2), {"model": "tensor"}, CONFIG, "no axis 'tensor', only"),
        ((2, 2), {"data": "batch"}, CONFIG, "no axis 'batch', only"),
        ((1, 4), {}, BertConfig.tiny(), "2 heads cannot be divided over 4 devices"),
        (
            (1, 4),
            {},
            BertConfig.tiny(num_heads=4, intermediate_size=6),
            r"intermediate.dense.weight, of shape \(6, 128\)",
        ),
    ],
)
def test_model_that_the_mesh_cannot_divide_is_an_error(shape, names, config, message):
    tree = eqx.filter_eval_shape(BertForMaskedLM, config, key=jax.random.key(0))
    with pytest.raises(ValueError, match=message):
        bert_shardings(tree, mesh_of(*shape), **names)


def test_batch_that_the_mesh_cannot_divide_is_an_error(batch):
    with pytest.raises(ValueError, match=r"batch of shape \(3, 16\) cannot be divided over 2 devices"):
        batch_shardings(jax.tree.map(lambda leaf: leaf[:3], batch), mesh_of(2, 2))


def test_mesh_with_explicit_axes_is_an_error_naming_the_remedy():
    with pytest.raises(ValueError, match=r"'data' is of type Explicit.*AxisType\.Auto"):
        bert_shardings(eqx.filter_eval_shape(model), mesh_of(2, 2, AxisType.Explicit))
