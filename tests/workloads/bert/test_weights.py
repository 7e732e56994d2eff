import equinox as eqx
import jax
import numpy as np
import pytest
from support.bert_weights import BIAS, EMBEDDING, from_state_dict, to_state_dict, weight_table
from support.qwen2_numpy import random_state_dict

from perfsuite.workloads.bert import BertConfig, BertForMaskedLM

TINY = BertConfig.tiny(vocab_size=40, hidden_size=16, intermediate_size=24, max_positions=12, dropout=0.0)
NORM = "bert.encoder.layer.1.attention.output.LayerNorm"
WIDE = "bert.encoder.layer.1.intermediate.dense.weight"
DECODER = "cls.predictions.decoder"


@pytest.fixture
def weights():
    return random_state_dict(TINY, weight_table(TINY))


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
