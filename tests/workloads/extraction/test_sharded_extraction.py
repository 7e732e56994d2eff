import dataclasses
import functools
import types

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import AxisType, PartitionSpec
from support.programs import program_of
from support.qwen2_numpy import random_state_dict
from support.qwen2_weights import from_state_dict

from perfsuite import call
from perfsuite.workloads.extraction import extract, make_extractor
from perfsuite.workloads.extraction.activation_store import ActivationStore
from perfsuite.workloads.extraction.batching import BatchActivations, fixed_size_batches
from perfsuite.workloads.extraction.sharded_extraction import (
    extract_own_rows,
    extract_to_shared,
    make_sharded_extractor,
)
from perfsuite.workloads.extraction.store_identity import StoreIdentity
from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config
from perfsuite.workloads.qwen2 import sharding as qwen2_sharding
from perfsuite.workloads.qwen2.sharding import qwen2_shardings
from perfsuite.workloads.qwen2.weights import weight_table

CONFIG = Qwen2Config.tiny(
    vocab_size=64,
    hidden_size=32,
    num_layers=2,
    num_heads=16,
    num_key_value_heads=8,
    intermediate_size=48,
    max_positions=32,
    tied_head=False,
)
"""Eight heads of keys and values, so that eight devices can share one model."""
MODEL = Qwen2(CONFIG)
LAYERS = (1, 0)
MESHES = [(8, 1), (4, 2), (2, 4), (1, 8)]
BATCH, LENGTH = 8, 6

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")


def mesh_of(data, model, axis_type=AxisType.Auto, names=("data", "model")):
    return jax.make_mesh((data, model), names, axis_types=(axis_type,) * 2)


@functools.cache
def params():
    return from_state_dict(CONFIG, random_state_dict(CONFIG, weight_table(CONFIG)))


@functools.cache
def parallel(shape):
    """Extractor and parameters over a mesh, one for all tests: the program is compiled once."""
    extractor = make_sharded_extractor(MODEL, LAYERS, mesh_of(*shape))
    return extractor, extractor.place(params())


def texts():
    """Two whole batches and a part of one."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, CONFIG.vocab_size, length).tolist() for length in rng.integers(1, LENGTH + 1, 19)]


def batches(batch_size=BATCH):
    return list(fixed_size_batches(texts(), batch_size, length=LENGTH, pad_id=0))


def program_over(extractor, placed):
    split = [jax.device_put(array, extractor.rows) for array in (batches()[0].ids, batches()[0].mask)]
    return program_of(call(extractor.step, placed, *split))


@pytest.fixture(scope="module")
def on_one_device():
    return [done.values for done in extract(make_extractor(MODEL, LAYERS), params(), batches())]


@pytest.mark.parametrize("shape", MESHES)
def test_a_mesh_gives_the_activations_of_one_device_and_compiles_once(shape, on_one_device, compile_counter):
    extractor, placed = parallel(shape)
    list(extract_own_rows(extractor, placed, batches()[:1]))
    # Nor does anything move from device to device but inside the program.
    with compile_counter.forbid(), jax.transfer_guard_device_to_device("disallow_explicit"):
        done = list(extract_own_rows(extractor, placed, batches()))
    for mine, batch, expected in zip(done, batches(), on_one_device, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(vars(mine.batch).values(), vars(batch).values(), strict=True))
        np.testing.assert_allclose(mine.values[batch.rows], expected[batch.rows], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", MESHES)
def test_the_only_collectives_add_up_what_the_model_axis_split(shape):
    """One after the embedding, and two a layer: after attention and after the MLP. None where the batch alone is split."""
    program = program_over(*parallel(shape))
    assert [made.what for made in program.collectives] == ["all-reduce"] * (5 if shape[1] > 1 else 0)
    rows = BATCH // shape[0]
    assert {made.bytes for made in program.collectives} <= {rows * LENGTH * CONFIG.hidden_size * 4}
    assert not program.resharding


def test_an_embedding_split_by_features_is_resharding_and_is_seen(monkeypatch):
    """The control of the test before."""
    table = {**qwen2_sharding._SPLIT_DIMENSION, ("embed_tokens", "embedding"): 1}
    monkeypatch.setattr(qwen2_sharding, "_SPLIT_DIMENSION", table)
    extractor = make_sharded_extractor(MODEL, LAYERS, mesh_of(4, 2))
    assert any(made.what == "all-gather" for made in program_over(extractor, extractor.place(params())).resharding)


def test_parameters_are_split_by_heads_wide_features_and_vocabulary():
    specs = jax.tree.map(lambda sharding: sharding.spec, qwen2_shardings(CONFIG, mesh_of(4, 2)))["params"]
    columns, rows, features = PartitionSpec(None, "model"), PartitionSpec("model"), PartitionSpec("model")
    heads = {"kernel": columns, "bias": features}
    assert specs["layers_1"] == {
        "input_layernorm": {"scale": PartitionSpec()},
        "self_attn": {"q_proj": heads, "k_proj": heads, "v_proj": heads, "o_proj": {"kernel": rows}},
        "post_attention_layernorm": {"scale": PartitionSpec()},
        "mlp": {"gate_proj": {"kernel": columns}, "up_proj": {"kernel": columns}, "down_proj": {"kernel": rows}},
    }
    assert specs["embed_tokens"] == {"embedding": rows}
    assert specs["lm_head"] == {"kernel": columns}
    assert specs["norm"] == {"scale": PartitionSpec()}


# Into a store.


@pytest.fixture
def store(tmp_path):
    identity = StoreIdentity.of(CONFIG, LAYERS, params(), texts(), samples_per_chunk=2, length=LENGTH)
    return ActivationStore.create_or_open(tmp_path / "store", identity)


def assert_stores(store, on_one_device):
    expected = [
        sample
        for batch, values in zip(batches(), on_one_device, strict=True)
        for sample in BatchActivations(batch, values).samples()
    ]
    assert [index for index, _ in store] == list(range(len(texts())))
    for (_, mine), (_, other) in zip(store, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(8, 1), (2, 4)])
def test_a_single_process_stores_every_sample_by_the_same_lines(shape, store, on_one_device):
    done = extract_to_shared(store, *parallel(shape), texts(), BATCH, pad_id=0)
    assert (done.computed, done.skipped) == (len(texts()), 0)
    assert_stores(store, on_one_device)
    done = extract_to_shared(store, *parallel(shape), texts(), BATCH, pad_id=0)
    assert (done.computed, done.skipped) == (0, len(texts()))


def test_of_a_batch_that_is_there_in_part_the_rest_alone_is_written(store, on_one_device, monkeypatch):
    """What a process leaves that was ended while others went on."""
    first, second, _ = batches()
    half = dataclasses.replace(second, rows=np.arange(BATCH) < BATCH // 2)
    for batch, values in ((first, on_one_device[0]), (half, on_one_device[1])):
        store.write(BatchActivations(batch, values))
    store.wait()
    written, write = [], store.write

    def watched(done):
        written.append(done.batch.indices[done.batch.rows].tolist())
        write(done)

    monkeypatch.setattr(store, "write", watched)
    done = extract_to_shared(store, *parallel((4, 2)), texts(), BATCH, pad_id=0)
    assert (done.computed, done.skipped) == (11, 8)
    assert written == [[12, 13, 14, 15], [16, 17, 18]]
    assert_stores(store, on_one_device)


def test_what_process_0_saw_decides_what_is_skipped(store, monkeypatch):
    """Had each process its own view of the store, they would compute different batches, and wait for each other."""
    from_process_0 = np.array([*[LENGTH] * BATCH, *[0] * (len(texts()) - BATCH)], np.int32)
    broadcast = multihost_utils.broadcast_one_to_all

    def seen(tree):
        return from_process_0 if np.shape(tree) == from_process_0.shape else broadcast(tree)

    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", seen)
    done = extract_to_shared(store, *parallel((4, 2)), texts(), BATCH, pad_id=0)
    assert (done.computed, done.skipped) == (11, 8)
    assert store.missing().tolist() == list(range(8))


# What does not fit.


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"num_key_value_heads": 2},
            "params.layers_0.self_attn.k_proj.kernel: 2 heads or other groups of features cannot be",
        ),
        ({"vocab_size": 63}, r"params.embed_tokens.embedding: an array of shape \(63, 32\) cannot be divided"),
    ],
)
def test_a_model_axis_that_does_not_divide_is_an_error_that_names_the_parameter(changes, problem):
    model = Qwen2(dataclasses.replace(CONFIG, **changes))
    with pytest.raises(ValueError, match=problem):
        make_sharded_extractor(model, LAYERS, mesh_of(2, 4))


def test_parameters_that_are_not_in_place_are_an_error_and_do_not_travel_with_every_batch():
    extractor, placed = parallel((4, 2))
    batch = batches()[0]
    with pytest.raises(ValueError, match=r"params.embed_tokens.embedding is not in its place: call .*place once"):
        extractor(params(), batch.ids, batch.mask)
    one = jax.tree.map(lambda leaf: leaf, placed)
    one["params"]["layers_1"]["mlp"]["up_proj"]["kernel"] = params()["params"]["layers_1"]["mlp"]["up_proj"]["kernel"]
    with pytest.raises(ValueError, match=r"params.layers_1.mlp.up_proj.kernel is not in its place"):
        extractor(one, batch.ids, batch.mask)
    with pytest.raises(ValueError, match=r"params are not as ShardedExtractor.place gives them"):
        extractor(placed["params"], batch.ids, batch.mask)


@pytest.mark.parametrize("shape", MESHES)
def test_the_program_reads_and_gives_each_devices_part_alone(shape):
    program = program_over(*parallel(shape))
    tokens = BATCH * LENGTH
    assert program.output_bytes == tokens * len(LAYERS) * CONFIG.hidden_size * 4 // shape[0]
    used = jax.tree.leaves([params()["params"][name] for name in ("embed_tokens", "layers_0", "layers_1")])
    norms = 4 * CONFIG.hidden_size
    split = sum(leaf.size for leaf in used) - norms
    assert program.argument_bytes == (norms + split // shape[1]) * 4 + tokens * (4 + 1) // shape[0]


def test_copies_start_before_the_batch_before_is_read_and_only_from_the_rows_owners():
    plain, placed = parallel((4, 2))
    events = []

    class Part:
        def __init__(self, name):
            self.name = name

        def copy_to_host_async(self):
            events.append(f"copy {self.name}")

        def __array__(self, dtype=None, copy=None):
            events.append(f"read {self.name}")
            return np.zeros((2, 1, 1, 1))

    class Everywhere:
        shape, dtype = (BATCH, 1, 1, 1), np.dtype(float)

        def __init__(self, step):
            self.addressable_shards = [
                types.SimpleNamespace(device=device, data=Part(f"{step}.{device.id}")) for device in jax.devices()
            ]

        def __len__(self):
            return BATCH

    steps = iter("abc")
    extractor = dataclasses.replace(plain, step=lambda *args: Everywhere(next(steps)))
    for done in extract_own_rows(extractor, placed, batches()):
        events.append(f"use {len(done.values)}")
    owners = [device.id for _, device in plain.owners(BATCH)]
    copy, read = ({step: [f"{what} {step}.{owner}" for owner in owners] for step in "abc"} for what in ("copy", "read"))
    assert len(owners) == 4
    assert events == [
        *(*copy["a"], *copy["b"], *read["a"], "use 8"),
        *(*copy["c"], *read["b"], "use 8", *read["c"], "use 8"),
    ]


def test_a_batch_that_the_data_axis_does_not_divide_is_an_error_before_anything_runs(compile_counter):
    extractor, placed = parallel((4, 2))
    problem = r"a batch of shape \(6, 6\) cannot be divided over 4 devices \(mesh axis 'data'\)"
    with compile_counter.forbid(), pytest.raises(ValueError, match=problem):
        next(extract_own_rows(extractor, placed, batches(batch_size=6)))
