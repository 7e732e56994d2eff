import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, PartitionSpec

from perfsuite.workloads.bert import BertConfig, BertForMaskedLM, masked_lm_loss
from perfsuite.workloads.surgery import (
    StartUp,
    apply_transforms,
    apply_transforms_batched,
    apply_transforms_one_by_one,
    bert_tensor_parallel_plan,
    column_parallel,
    make_module_opt,
    row_parallel,
)
from perfsuite.workloads.surgery.sharding import batch_shardings, keep_shardings, module_shardings, shard
from perfsuite.workloads.surgery.transforms import PlanError
from perfsuite.workloads.training import (
    Optimizer,
    TrainState,
    make_flat_train_step,
    mlm_batches,
)

CONFIG = BertConfig.tiny(dropout=0.0, num_layers=1).narrowed(num_heads=4)
PLAN = bert_tensor_parallel_plan(CONFIG)
MLP_PLAN = {"layers.0": column_parallel, "layers.1": row_parallel}
ADAMW = optax.adamw(1e-2, eps=1e-4)
KEY = jax.random.key(3)

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")


def mesh_of(data, model, axis_type=AxisType.Auto):
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(axis_type,) * 2)


def bert(key):
    return BertForMaskedLM(CONFIG, key=key)


def mlp(key):
    """A user's model: its activations are leaves that are no arrays."""
    return eqx.nn.MLP(8, 16, 32, 1, key=key)


compiled = functools.cache(eqx.filter_jit)
"""A model on one device is compiled once for all tests."""


def arrays(tree):
    return jax.tree.leaves(eqx.filter(tree, eqx.is_array))


def on_one_device(module_fn, tx, plan, wrt=eqx.is_inexact_array):
    """Model and optimizer as they are made without a mesh."""
    module = apply_transforms(compiled(module_fn)(KEY), plan, strict=True)
    return module, Optimizer.create(tx, module, wrt)


def assert_same(mine, expected):
    """The same tree, with the same numbers bit for bit."""
    assert jax.tree.structure(mine) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree.leaves_with_path(mine), jax.tree.leaves(expected), strict=True):
        if eqx.is_array(b):
            assert a.dtype == b.dtype, path
            np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))
        else:
            assert a is b, path


def assert_in_place(made, mesh):
    """Every array lies as `module_shardings` says, and no device holds more than its part."""
    shardings = jax.tree.leaves(module_shardings(made, mesh))
    for array, sharding in zip(arrays(made), shardings, strict=True):
        # Equivalent, not equal: where an axis has one device, XLA leaves it out of the spec.
        assert array.sharding.is_equivalent_to(sharding, array.ndim)
        assert array.committed
        parts = {part.device: part.data.shape for part in array.addressable_shards}
        assert parts == dict.fromkeys(mesh.devices.flat, sharding.shard_shape(array.shape))


def specs(tree):
    leaves = jax.tree.leaves_with_path(eqx.filter(tree, eqx.is_array))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf.sharding.spec for path, leaf in leaves}


@pytest.fixture(scope="module")
def started():
    """BERT over two by four devices. No test may change it or donate it."""
    mesh = mesh_of(2, 4)
    return mesh, make_module_opt(bert, ADAMW, mesh, PLAN, key=KEY, strict=True)


# What is made


def test_model_and_optimizer_are_those_of_the_program_on_one_device_bit_for_bit(started):
    _, made = started
    assert_same(made, on_one_device(bert, ADAMW, PLAN))


def test_every_array_has_its_sharding_and_every_device_its_part_alone(started):
    mesh, made = started
    assert_in_place(made, mesh)
    assert [array.sharding for array in arrays(made)] == jax.tree.leaves(module_shardings(made, mesh))


def test_another_key_makes_another_model_without_compiling(started, compile_counter):
    mesh, (module, _) = started
    other = jax.random.key(4)
    with compile_counter.forbid():
        module_of_other, _ = make_module_opt(bert, ADAMW, mesh, PLAN, key=other, strict=True)
    query = module_of_other.layers[0].attention.query.weight
    assert not np.array_equal(query, module.layers[0].attention.query.weight)
    np.testing.assert_array_equal(query, compiled(bert)(other).layers[0].attention.query.weight)


def test_called_again_with_the_same_objects_it_neither_traces_nor_compiles(started, compile_counter):
    mesh, made = started
    with compile_counter.forbid():
        again = make_module_opt(bert, ADAMW, mesh, PLAN, key=KEY, strict=True)
        # Equal objects will do where they say that they are equal: a mesh, a plan with the same transforms in it.
        and_again = make_module_opt(bert, ADAMW, mesh_of(2, 4), dict(PLAN), key=KEY, strict=True)
    assert_same(again, made)
    assert_same(and_again, made)


# Other models, optimizers, meshes, keys


def by_matrix(params):
    return jax.tree.map(lambda leaf: "matrix" if leaf.ndim == 2 else "vector", params)


OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), ADAMW),
    "masked": optax.masked(ADAMW, lambda params: jax.tree.map(lambda leaf: leaf.ndim == 2, params)),
    "multi_transform": optax.multi_transform({"matrix": ADAMW, "vector": optax.sgd(0.1)}, by_matrix),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_of_any_optimizer_is_that_of_one_device_and_in_place(name):
    mesh, tx = mesh_of(2, 4), OPTIMIZERS[name]
    made = make_module_opt(mlp, tx, mesh, MLP_PLAN, key=KEY, strict=True)
    assert_same(made, on_one_device(mlp, tx, MLP_PLAN))
    assert_in_place(made, mesh)
    split = [spec for spec in specs(made[1].opt_state).values() if spec != PartitionSpec()]
    rows, columns = PartitionSpec("model"), PartitionSpec(None, "model")
    # Of what adafactor keeps, the moment of the first bias alone has the shape of its parameter.
    both = [rows, columns] * 2
    expected = {
        "sgd": [],
        "momentum": [rows, rows, columns],
        "adafactor": [rows],
        "chain": [rows, rows, columns] * 2,
        "masked": both,
        "multi_transform": both,
    }
    assert split == expected[name]


def is_matrix(leaf):
    return eqx.is_array(leaf) and leaf.ndim == 2


def test_wrt_says_what_has_a_place_in_the_optimizers_state():
    made = make_module_opt(mlp, ADAMW, mesh_of(2, 4), MLP_PLAN, key=KEY, wrt=is_matrix)
    assert_same(made, on_one_device(mlp, ADAMW, MLP_PLAN, wrt=is_matrix))
    assert made[1].wrt is is_matrix


# Errors


def test_pattern_that_matches_nothing_is_an_error_if_strict():
    plan = {**MLP_PLAN, "layers.7": column_parallel}
    with pytest.raises(PlanError, match=r"pattern 'layers\.7' matches no sub-module"):
        make_module_opt(mlp, ADAMW, mesh_of(2, 4), plan, key=KEY, strict=True)


def test_mesh_that_does_not_fit_is_an_error_naming_pattern_and_path():
    message = (
        r"^layers\.0\.attention\.query\.layer\.weight \(chosen by pattern '\*\.attention\.query'\): 4 heads or other"
    )
    with pytest.raises(ValueError, match=message):
        make_module_opt(bert, ADAMW, mesh_of(1, 8), PLAN, key=KEY)


# The program


def test_all_ways_to_apply_a_plan_give_the_same_program():
    mesh = mesh_of(2, 4)
    texts = {
        apply: StartUp(bert, ADAMW, mesh, tuple(PLAN.items()), apply=apply).lower(KEY).as_text()
        for apply in (apply_transforms, apply_transforms_batched, apply_transforms_one_by_one)
    }
    assert len(set(texts.values())) == 1
    # With the sharding of every split array in it.
    unsplit = StartUp(bert, ADAMW, mesh, ()).lower(KEY).as_text()
    assert unsplit not in texts.values()


def test_no_device_needs_more_memory_than_its_part_of_the_arrays():
    """At BERT-base's width: the table of words, on every device, is what would need memory beside it."""
    mesh, config = mesh_of(2, 4), BertConfig.base(num_layers=2)
    plan = bert_tensor_parallel_plan(config)
    how = StartUp(lambda key: BertForMaskedLM(config, key=key), ADAMW, mesh, tuple(plan.items()))
    memory = how.lower(KEY).compile().memory_analysis()

    def make():
        module = apply_transforms(BertForMaskedLM(config, key=KEY), plan, strict=True)
        return module, ADAMW.init(module)

    made = eqx.filter_eval_shape(make)
    shapes, shardings = jax.tree.leaves(made), jax.tree.leaves(module_shardings(made, mesh))
    part = sum(
        int(np.prod(sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize
        for leaf, sharding in zip(shapes, shardings, strict=True)
    )
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in shapes)
    assert part < 0.8 * whole
    assert memory.output_size_in_bytes >= part
    assert memory.output_size_in_bytes + memory.temp_size_in_bytes <= 1.1 * part


# Training from the result


def squared_error(model, batch, key):
    del key
    return jnp.mean((jax.vmap(model)(batch["x"]) - batch["y"]) ** 2), {}


def mlp_batch():
    x, y = jax.random.split(KEY)
    return {"x": jax.random.normal(x, (8, 8)), "y": jax.random.normal(y, (8, 16))}


def bert_batch():
    (made,) = mlm_batches(CONFIG.vocab_size, 4, buckets=(16,), num_batches=1)
    return {name: jnp.asarray(values) for name, values in made.items()}


def losses_on_one_device(module_fn, loss_fn, batch):
    """Those of the model that no plan has changed."""
    step, state = make_flat_train_step(loss_fn, ADAMW), TrainState.create(ADAMW, compiled(module_fn)(KEY))
    losses = []
    for _ in range(3):
        state, (loss, _) = step(state, batch, None)
        losses.append(float(loss))
    assert losses[2] < 0.999 * losses[0]
    return losses


@pytest.mark.parametrize(
    ("shape", "module_fn", "plan", "loss_fn", "make_batch"),
    [
        ((2, 4), bert, PLAN, masked_lm_loss, bert_batch),
        ((8, 1), mlp, MLP_PLAN, squared_error, mlp_batch),
    ],
    ids=["bert 2x4", "mlp 8x1"],
)
def test_flat_step_trains_what_was_made_and_compiles_once(shape, module_fn, plan, loss_fn, make_batch, compile_counter):
    mesh, batch = mesh_of(*shape), make_batch()
    module, optimizer = make_module_opt(module_fn, ADAMW, mesh, plan, key=KEY, strict=True)
    state = TrainState.of(module, optimizer.opt_state)
    step = keep_shardings(make_flat_train_step(loss_fn, ADAMW), module_shardings(state, mesh))
    placed = shard(batch, batch_shardings(batch, mesh))
    losses = []

    def train(state):
        after, (loss, _) = step(state, placed, None)
        assert all(array.is_deleted() for array in state.arrays)
        losses.append(loss)
        return after

    state = train(state)
    with compile_counter.forbid():
        state = train(train(state))
    np.testing.assert_allclose(losses, losses_on_one_device(module_fn, loss_fn, batch), rtol=1e-5)
    assert_in_place((state.model, state.opt_state), mesh)
