import dataclasses
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.workloads.bert import BertConfig, BertForMaskedLM
from perfsuite.workloads.bert_weights import (
    BIAS,
    EMBEDDING,
    from_state_dict,
    load_safetensors,
    to_state_dict,
    weight_table,
)

TINY = BertConfig.tiny(vocab_size=40, hidden_size=16, intermediate_size=24, max_positions=12, dropout=0.0)
NORM = "bert.encoder.layer.1.attention.output.LayerNorm"
WIDE = "bert.encoder.layer.1.intermediate.dense.weight"
DECODER = "cls.predictions.decoder"


@pytest.fixture
def weights():
    random = np.random.default_rng(0)
    return {name: random.normal(size=weight.shape).astype(np.float32) for name, weight in weight_table(TINY).items()}


@pytest.fixture
def safetensors_numpy():
    return pytest.importorskip("safetensors.numpy", reason="reads .safetensors files: pip install safetensors")


def assert_same_weights(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(actual[name], array), name


@pytest.mark.parametrize("config", [TINY, BertConfig.base(), BertConfig.large()], ids=["tiny", "base", "large"])
def test_the_table_has_every_array_of_the_model_once_in_its_shape(config):
    model = eqx.filter_eval_shape(BertForMaskedLM, config, key=jax.random.key(0))
    expected = {path: leaf.shape for path, leaf in jax.tree.leaves_with_path(model)}
    table = weight_table(config)
    assert {weight.path: weight.shape for weight in table.values()} == expected
    assert len(table) == len(expected)


def test_names_are_hugging_faces():
    table = weight_table(TINY)
    assert {EMBEDDING, BIAS, f"{NORM}.bias", "cls.predictions.transform.LayerNorm.weight"} < set(table)
    assert len(table) == 3 + 2 + 2 * 16 + 5
    assert table[WIDE].shape == (24, 16)


def test_weights_come_back_as_they_went_in(weights):
    assert_same_weights(to_state_dict(from_state_dict(TINY, weights)), weights)


def test_the_model_read_is_the_model_written():
    model = BertForMaskedLM(TINY, key=jax.random.key(3))
    read = from_state_dict(TINY, to_state_dict(model))
    assert eqx.tree_equal(read, model)


def test_parameters_are_copies_and_do_not_follow_the_arrays_they_came_from(weights):
    # An array that begins at a multiple of 64 bytes is one that JAX on a CPU would share.
    memory = np.empty(TINY.vocab_size + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    bias = memory[start : start + TINY.vocab_size]
    bias[:] = 3
    model = from_state_dict(TINY, {**weights, BIAS: bias})
    bias[:] = 0
    assert np.all(model.head.bias == 3)


def test_what_published_checkpoints_hold_besides_is_left_out(weights):
    more = {
        "bert.pooler.dense.weight": np.ones((16, 16)),
        "cls.seq_relationship.bias": np.ones(2),
        "bert.embeddings.position_ids": np.arange(12)[None],
        f"{DECODER}.weight": weights[EMBEDDING].copy(),
        f"{DECODER}.bias": weights[BIAS].copy(),
    }
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in weights.items()
    }
    assert f"{NORM}.gamma" in old
    assert_same_weights(to_state_dict(from_state_dict(TINY, {**old, **more})), weights)


@pytest.mark.parametrize(("leaf", "source"), [("weight", EMBEDDING), ("bias", BIAS)])
def test_a_decoder_of_its_own_is_an_error(weights, leaf, source):
    with pytest.raises(ValueError, match=rf"{DECODER}\.{leaf} differs from {source}"):
        from_state_dict(TINY, {**weights, f"{DECODER}.{leaf}": weights[source] + 1})


def test_every_weight_that_does_not_fit_is_named_with_its_shapes(weights):
    del weights[f"{NORM}.bias"]
    weights["bert.encoder.layer.2.output.dense.bias"] = np.zeros(16)
    weights[WIDE] = weights[WIDE].T
    weights[EMBEDDING] = weights[EMBEDDING].astype(np.int32)
    with pytest.raises(ValueError, match="weights do not fit the configuration") as raised:
        from_state_dict(TINY, weights)
    for message in (
        f"{NORM}.bias is missing, shape (16,)",
        "bert.encoder.layer.2.output.dense.bias is not known, shape (16,)",
        f"{WIDE} has shape (16, 24), not (24, 16)",
        f"{EMBEDDING} is int32, not floating-point",
    ):
        assert message in str(raised.value)


def test_a_deeper_model_lacks_its_layers_and_a_long_list_is_cut(weights):
    deeper = dataclasses.replace(TINY, num_layers=3)
    with pytest.raises(ValueError, match=r"layer\.2\.attention\.output\.LayerNorm\.bias is missing.*and 8 more$"):
        from_state_dict(deeper, weights)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_in_several_safetensors_files_is_read(tmp_path, weights, safetensors_numpy, dtype):
    weights = {name: array.astype(dtype) for name, array in weights.items()}
    parts = tmp_path / "model-1.safetensors", tmp_path / "model-2.safetensors"
    first = {name: array for name, array in weights.items() if "layer.0" in name}
    safetensors_numpy.save_file(first, parts[0])
    safetensors_numpy.save_file({name: array for name, array in weights.items() if name not in first}, parts[1])
    read = to_state_dict(load_safetensors(TINY, *parts))
    assert_same_weights(read, {name: array.astype(jnp.float32) for name, array in weights.items()})
    with pytest.raises(ValueError, match=r"word_embeddings\.weight is missing"):
        load_safetensors(TINY, parts[0])
    with pytest.raises(ValueError, match=r"is both in .*model-1\.safetensors and in .*model-1\.safetensors"):
        load_safetensors(TINY, parts[0], parts[0])


def test_no_file_is_an_error(safetensors_numpy):
    with pytest.raises(ValueError, match="at least one file"):
        load_safetensors(TINY)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        load_safetensors(TINY, "model.safetensors")
