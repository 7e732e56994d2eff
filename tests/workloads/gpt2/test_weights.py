import jax
import numpy as np
import pytest
from support.gpt2_numpy import randomised
from support.gpt2_weights import from_state_dict, to_state_dict

from perfsuite.workloads.gpt2 import GPT2Config
from perfsuite.workloads.gpt2.int8 import quantize

TINY = GPT2Config.tiny()
PREFIXES = pytest.mark.parametrize("prefix", ["", "transformer."])


@pytest.fixture(scope="module")
def params():
    return randomised(TINY)


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(mine, theirs)


@PREFIXES
def test_there_and_back_is_the_same_parameters(params, prefix):
    assert_same(from_state_dict(to_state_dict(params, prefix), TINY), params)


def test_names_and_shapes_are_hugging_faces(params):
    shapes = {name: array.shape for name, array in to_state_dict(params).items()}
    assert len(shapes) == 4 + 12 * TINY.num_layers
    assert shapes["wte.weight"] == (97, 32)
    assert shapes["wpe.weight"] == (64, 32)
    assert shapes["h.1.attn.c_attn.weight"] == (32, 96)
    assert shapes["h.1.attn.c_proj.weight"] == (32, 32)
    assert shapes["h.1.mlp.c_fc.weight"] == (32, 128)
    assert shapes["h.1.mlp.c_proj.weight"] == (128, 32)
    assert shapes["h.0.mlp.c_fc.bias"] == (128,)
    assert shapes["h.0.ln_2.bias"] == shapes["ln_f.weight"] == (32,)
    assert np.array_equal(to_state_dict(params)["h.1.mlp.c_fc.weight"], params["h"][1]["mlp"]["c_fc"]["weight"].T)


@PREFIXES
def test_masks_and_the_tied_head_of_checkpoints_are_left_out(params, prefix):
    state = to_state_dict(params, prefix)
    state[f"{prefix}h.0.attn.bias"] = np.tril(np.ones((1, 1, 64, 64)))
    state[f"{prefix}h.1.attn.masked_bias"] = np.float32(-1e4)
    state["lm_head.weight"] = state[f"{prefix}wte.weight"]
    assert_same(from_state_dict(state, TINY), params)


def test_a_head_of_its_own_is_an_error(params):
    state = to_state_dict(params)
    with pytest.raises(ValueError, match=r"lm_head.weight differs from wte.weight"):
        from_state_dict({**state, "lm_head.weight": state["wte.weight"] + 1}, TINY)


def test_quantised_parameters_have_no_state_dict(params):
    with pytest.raises(ValueError, match="quantised"):
        to_state_dict(quantize(params))
