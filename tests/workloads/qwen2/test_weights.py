import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.qwen2_numpy import random_state_dict
from support.qwen2_weights import from_state_dict, to_state_dict

from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config
from perfsuite.workloads.qwen2.weights import EMBEDDING, HEAD, weight_table

TIED = Qwen2Config.tiny(vocab_size=40, num_layers=2)
UNTIED = dataclasses.replace(TIED, tied_head=False)
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def weights():
    return random_state_dict(TIED, weight_table(TIED))


def assert_same_weights(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(actual[name], array), name


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_the_table_has_every_parameter_of_the_model_once_in_its_shape(config):
    shapes = jax.eval_shape(Qwen2(config).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    expected = {tuple(key.key for key in path): leaf.shape for path, leaf in jax.tree.leaves_with_path(shapes)}
    table = weight_table(config)
    actual = {weight.path: weight.shape[::-1] if weight.transposed else weight.shape for weight in table.values()}
    assert actual == expected
    assert len(table) == len(actual)


def test_names_are_hugging_faces():
    names = set(weight_table(UNTIED))
    assert {EMBEDDING, HEAD, "model.norm.weight", "model.layers.0.self_attn.k_proj.bias", UP} < names
    assert len(names) == 3 + 2 * 12


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_weights_come_back_as_they_went_in(config):
    weights = random_state_dict(config, weight_table(config))
    back = to_state_dict(config, from_state_dict(config, weights))
    assert_same_weights(back, weights)
    assert all(array.flags.c_contiguous for array in back.values())


def test_parameters_are_in_the_parameter_dtype(weights):
    params = from_state_dict(dataclasses.replace(TIED, parameter_dtype="bfloat16"), weights)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}


def test_bfloat16_weights_are_read(weights):
    half = {name: array.astype(jnp.bfloat16) for name, array in weights.items()}
    assert_same_weights(to_state_dict(TIED, from_state_dict(TIED, half)), half)


def test_a_tied_head_may_be_there_twice_when_it_is_the_same(weights):
    params = from_state_dict(TIED, {**weights, HEAD: weights[EMBEDDING].copy()})
    assert_same_weights(to_state_dict(TIED, params), weights)
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight, .*tied_head"):
        from_state_dict(TIED, {**weights, HEAD: weights[EMBEDDING] + 1})


def test_an_untied_model_needs_its_head(weights):
    with pytest.raises(ValueError, match=r"lm_head\.weight is missing, shape \(40, 64\)"):
        from_state_dict(UNTIED, weights)
