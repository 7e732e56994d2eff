"""Our GPT-2 against Hugging Face's, at random weights: the same logits, hidden states, tokens and files."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.gpt2_weights import from_state_dict

from perfsuite.workloads.gpt2 import GPT2Config, apply_layer, causal_attention, embed, logits, normalise
from perfsuite.workloads.gpt2.generation import generate, generate_stepwise, generate_uncached

from .hugging_face import assert_within, gpt2, randomise, state_of, tensor, torch

CONFIGS = {
    "tiny": GPT2Config.tiny(),
    # Heads of another width, and an epsilon that makes a difference.
    "deeper": GPT2Config.tiny(num_layers=4, num_heads=2, vocab_size=80, norm_epsilon=1e-2),
}
LENGTHS = np.array([10, 6, 1])


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def config(request):
    return request.param


@pytest.fixture(scope="module", params=range(3), ids="seed {}".format)
def seed(request):
    return request.param


@pytest.fixture(scope="module")
def theirs(config, seed):
    model = gpt2(config)
    randomise(model, seed, std=0.3)
    return model


@pytest.fixture(scope="module")
def params(theirs, config):
    return from_state_dict(state_of(theirs), config)


@pytest.fixture(scope="module")
def ids(config, seed):
    return np.random.default_rng(seed).integers(0, config.vocab_size, (3, 10))


@functools.partial(jax.jit, static_argnums=1)
def logits_and_hidden_states(params, config, ids):
    """Logits, and what goes into each layer and out of the last, each `[batch, sequence, hidden]`, before any norm."""
    x = embed(params, config, ids, jnp.arange(ids.shape[1]))
    hidden = [x]
    for layer in params["h"]:
        x = apply_layer(layer, config, x, causal_attention)
        hidden.append(x)
    return logits(params, config, ids), hidden


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_and_hidden_states_are_theirs(config, theirs, params, ids, attention):
    theirs.set_attn_implementation(attention)
    with torch.inference_mode():
        expected = theirs(tensor(ids), output_hidden_states=True)
    mine, hidden = logits_and_hidden_states(params, config, ids)
    assert_within(mine, expected.logits)
    assert len(hidden) == len(expected.hidden_states) == config.num_layers + 1
    for own, other in zip(hidden[:-1], expected.hidden_states[:-1], strict=True):
        assert_within(own, other)
    # Their last hidden state is the normalised one.
    assert_within(normalise(params["ln_f"], config, hidden[-1]), expected.hidden_states[-1])


# The uncached reference compiles anew for every length.
@pytest.mark.parametrize(("how", "new"), [(generate, 12), (generate_stepwise, 12), (generate_uncached, 3)])
def test_greedy_tokens_of_prompts_of_different_length_are_theirs(config, theirs, params, ids, how, new):
    left = np.stack([np.roll(row, 10 - length) for row, length in zip(ids, LENGTHS, strict=True)])
    mask = np.arange(10) >= 10 - LENGTHS[:, None]
    with torch.inference_mode():
        expected = theirs.generate(
            tensor(left), attention_mask=tensor(mask), max_new_tokens=new, do_sample=False, pad_token_id=0
        )
    assert how(params, config, ids, LENGTHS, new).tolist() == expected[:, 10:].tolist()
