"""Qwen2 against Hugging Face's, at random weights: the same logits, activations, tokens and files."""

import functools

import jax
import numpy as np
import pytest
from support.qwen2_weights import from_state_dict

from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config, initialize_cache

from .hugging_face import assert_within, qwen2, randomise, state_of, tensor, torch

CONFIGS = {
    "tied": Qwen2Config.tiny(vocab_size=90),
    "untied": Qwen2Config.tiny(vocab_size=90, tied_head=False, num_layers=3, num_key_value_heads=1, rope_theta=1e4),
    "one head a group": Qwen2Config.tiny(vocab_size=90, num_layers=2, num_key_value_heads=4, norm_epsilon=1e-2),
}
LENGTHS = np.array([9, 5, 1])


@pytest.fixture(scope="module", params=range(3), ids="seed {}".format)
def seed(request):
    return request.param


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def pair(request, seed):
    """Our configuration and parameters, and their model of the same weights, none of which is zero or one."""
    config = request.param
    model = qwen2(config)
    randomise(model, seed, std=0.2)
    return config, from_state_dict(config, state_of(model)), model


@pytest.fixture(scope="module")
def ids(seed):
    return np.random.default_rng(seed).integers(0, 90, (3, 9)).astype(np.int32)


@functools.cache
def compiled(config, method="__call__", **static):
    """Compiled once for all seeds, which differ in weights alone."""
    return jax.jit(functools.partial(Qwen2(config).apply, method=method, **static))


@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_and_activations_are_theirs(pair, ids, side):
    config, params, model = pair
    layers = tuple(range(config.num_layers))
    mask = np.arange(9) < LENGTHS[:, None]
    mask = mask if side == "right" else mask[:, ::-1].copy()
    logits, hidden = compiled(config, layers=layers)(params, ids, mask)
    last = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, inputs: last.append(inputs[0]))
    with torch.inference_mode():
        theirs = model(tensor(ids), attention_mask=tensor(mask), output_hidden_states=True)
        normalised = model.model.norm(torch.tensor(np.asarray(hidden[-1])))
    hook.remove()
    assert_within(logits[mask], theirs.logits[mask])
    assert len(theirs.hidden_states) == config.num_layers + 1
    for layer in layers[:-1]:
        assert_within(hidden[layer][mask], theirs.hidden_states[layer + 1][mask])
    # Their last hidden state is the normalised one; ours is what goes into the norm.
    assert_within(hidden[-1][mask], last[0][mask])
    assert_within(normalised[mask], theirs.hidden_states[-1][mask])


def test_greedy_tokens_of_prompts_of_different_length_are_theirs(pair, ids):
    config, params, model = pair
    left = np.stack([np.roll(row, 9 - length) for row, length in zip(ids, LENGTHS, strict=True)])
    mask = np.arange(9) >= 9 - LENGTHS[:, None]
    with torch.inference_mode():
        theirs = model.generate(
            tensor(left), attention_mask=tensor(mask), max_new_tokens=8, do_sample=False, pad_token_id=0
        )[:, 9:]
    prefill, decode = compiled(config, "prefill"), compiled(config, "decode")
    logits, _, cache = prefill(params, ids, LENGTHS, initialize_cache(config, 3, 16))
    tokens = [np.argmax(logits, -1)]
    for _ in range(7):
        logits, _, cache = decode(params, tokens[-1].astype(np.int32), cache)
        tokens.append(np.argmax(logits, -1))
    assert np.stack(tokens, 1).tolist() == theirs.tolist()
