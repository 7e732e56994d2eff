"""Regressions planted in the workloads: the instrument that gates each of them in `tests/perf` sees it, and not its control."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from support.programs import program_of
from support.qwen2_numpy import random_state_dict
from support.qwen2_weights import from_state_dict

from perfsuite import RecompilationError, call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.runtime.host_calls import host_calls
from perfsuite.workloads import gpt2
from perfsuite.workloads.bert import BertConfig, BertForMaskedLM, masked_lm_loss
from perfsuite.workloads.extraction import fixed_size_batches, make_extractor
from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config
from perfsuite.workloads.qwen2.weights import weight_table
from perfsuite.workloads.surgery import (
    StartUp,
    bert_tensor_parallel_plan,
    column_parallel,
    row_parallel,
    start_up,
    tensor_parallel,
)
from perfsuite.workloads.surgery.replacing import replace_at_once, replace_on_paths
from perfsuite.workloads.surgery.sharding import batch_shardings, module_shardings, shard
from perfsuite.workloads.surgery.transforms import apply_transforms, find_replacements
from perfsuite.workloads.training import TrainState, make_flat_train_step, mlm_batches

pytestmark = [
    pytest.mark.usefixtures("quick_to_compile"),
    pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices"),
]

BERT = BertConfig.tiny(dropout=0.0, num_layers=1).narrowed(num_heads=4)
TX, KEY = optax.adamw(1e-2), jax.random.key(3)
STEP = make_flat_train_step(masked_lm_loss, TX)


def bert(key):
    return BertForMaskedLM(BERT, key=key)


@pytest.fixture(scope="module")
def batch():
    (made,) = mlm_batches(BERT.vocab_size, 4, buckets=(16,), num_batches=1)
    return {name: jnp.asarray(values) for name, values in made.items()}


def test_a_pass_over_the_state_is_seen_in_the_host_calls_of_a_step(batch):
    def with_a_pass(state, batch, key):
        return STEP(jax.tree.map(lambda leaf: leaf, state), batch, key)

    control, planted = (
        host_calls(call(step, TrainState.create(TX, bert(KEY)), batch, KEY, carry=1)) for step in (STEP, with_a_pass)
    )
    assert planted.total > control.total + len(jax.tree.leaves(TrainState.create(TX, bert(KEY))))


def test_a_batch_that_is_put_on_a_device_is_a_recompilation(batch):
    state, _ = STEP(TrainState.create(TX, bert(KEY)), batch, KEY)
    with compiles.forbid():
        state, _ = STEP(state, batch, KEY)
    committed = jax.device_put(batch, jax.devices()[0])
    with pytest.raises(RecompilationError, match=r"args\[1\].*uncommitted.*committed"), compiles.forbid():
        STEP(state, committed, KEY)


def test_a_tree_that_is_built_anew_is_seen_in_the_host_calls_of_a_surgery():
    model = bert(KEY)
    replacements = find_replacements(model, bert_tensor_parallel_plan(BERT), strict=True)
    control, planted = (
        host_calls(call(functools.partial(replace, replacements=replacements), model)).total
        for replace in (replace_on_paths, replace_at_once)
    )
    assert planted > 2 * control


def mesh_of(data, model):
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def test_an_optimizer_on_all_devices_is_seen_in_the_memory_of_a_start_up(monkeypatch):
    def program():
        plan = (("layers.0", column_parallel), ("layers.1", row_parallel))
        mlp = functools.partial(eqx.nn.MLP, 64, 64, 128, 1)
        return program_of(call(StartUp(lambda key: mlp(key=key), TX, mesh_of(2, 4), plan), KEY))

    control, original = program(), start_up.shard
    monkeypatch.setattr(
        start_up, "shard", lambda tree, at: tree if isinstance(tree, start_up.Optimizer) else original(tree, at)
    )
    assert not control.collectives
    assert program().peak_bytes > 1.1 * control.peak_bytes


def test_a_wrong_split_is_seen_in_the_collectives_of_a_model(monkeypatch, batch):
    def collectives():
        model = apply_transforms(bert(KEY), bert_tensor_parallel_plan(BERT), strict=True)
        mesh = mesh_of(1, 4)
        arrays, rest = eqx.partition(shard(model, module_shardings(model, mesh)), eqx.is_array)
        loss = jax.jit(lambda arrays, batch: masked_lm_loss(eqx.combine(arrays, rest), batch, KEY)[0])
        return {
            each.what for each in program_of(call(loss, arrays, shard(batch, batch_shardings(batch, mesh)))).collectives
        }

    assert collectives() == {"all-reduce"}
    monkeypatch.setattr(tensor_parallel, "row_parallel", tensor_parallel.column_parallel)
    assert collectives() > {"all-reduce"}


QWEN2 = Qwen2(Qwen2Config.tiny(vocab_size=50, num_layers=2, max_positions=32))


@pytest.fixture(scope="module")
def extraction():
    """An extractor of the first layer, its parameters, and batches of two lengths whose texts are shorter."""
    params = from_state_dict(QWEN2.config, random_state_dict(QWEN2.config, weight_table(QWEN2.config)))
    texts = [np.ones(length, int) for length in (3, 2, 7, 5)]
    return make_extractor(QWEN2, (0,)), params, list(fixed_size_batches(texts, 2, length=(4, 8), pad_id=0))


def test_batches_of_their_own_lengths_are_recompilations(extraction):
    extractor, params, batches = extraction
    with compiles.observe():
        for batch in batches:
            extractor.step(params, batch.ids, batch.mask)
    with compiles.forbid():
        for batch in batches:
            extractor.step(params, batch.ids, batch.mask)
    shorter = batches[0].ids[:, :3], batches[0].mask[:, :3]
    with pytest.raises(RecompilationError, match=r"args\[1\]: shape was \(2, 4\), is \(2, 3\)"), compiles.forbid():
        extractor.step(params, *shorter)


def test_a_head_and_donated_parameters_are_seen_in_the_program_of_an_extraction(extraction):
    extractor, params, (batch, _) = extraction

    def program(step, **options):
        return program_of(call(jax.jit(step, **options), params, batch.ids, batch.mask))

    def with_head(params, ids, mask):
        return QWEN2.apply(params, ids, mask, layers=(0,))

    control = program(extractor.step)
    assert not control.lost_donations
    assert len(program(with_head).products) > len(control.products)
    assert program(extractor.step, donate_argnums=0).lost_donations


GPT2 = gpt2.GPT2Config.tiny(num_layers=1)
PARAMS = gpt2.init_params(GPT2, KEY)


def growing(update_cache):
    """The tokens stay right, and every step's cache is a slot longer."""

    def longer(arrays, layer):
        more = jnp.zeros_like(arrays[layer][:, :1])
        return (*arrays[:layer], jnp.concatenate([arrays[layer], more], axis=1), *arrays[layer + 1 :])

    def update(cache, layer, keys, values):
        grown = dataclasses.replace(cache, keys=longer(cache.keys, layer), values=longer(cache.values, layer))
        return update_cache(grown, layer, keys, values)

    return update


def test_a_cache_that_grows_is_compiled_for_every_token(monkeypatch):
    def programs():
        step, cache = jax.jit(lambda *args: gpt2.decode_step(PARAMS, GPT2, *args)), gpt2.initialize_cache(GPT2, 1, 12)
        with compiles.count() as counted:
            for _ in range(3):
                _, cache = step(jnp.array([1]), cache)
        return counted.by_function["<lambda>"].compiles

    assert programs() == 1
    monkeypatch.setattr(gpt2, "update_cache", growing(gpt2.update_cache))
    assert programs() == 3


def test_tokens_that_are_read_again_are_seen_in_the_flops_of_a_step():
    def again(token, cache):
        scores, cache = gpt2.decode_step(PARAMS, GPT2, token, cache)
        prefix = jnp.zeros((1, cache.slots), jnp.int32)
        return scores + 0 * gpt2.logits(PARAMS, GPT2, prefix)[:, -1], cache

    control, planted = (
        program_of(call(jax.jit(step), jnp.array([1]), gpt2.initialize_cache(GPT2, 1, 12))).flops
        for step in (functools.partial(gpt2.decode_step, PARAMS, GPT2), again)
    )
    assert planted > 5 * control
