"""Qwen2 against Hugging Face's, at random weights: the same logits, activations, tokens and files.

PyTorch and transformers are no dependencies of this project; without them these tests are skipped.
"""

import copy
import functools

import jax
import numpy as np
import pytest

from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config, initialize_cache
from perfsuite.workloads.qwen2_weights import from_state_dict, load_safetensors, to_state_dict

REASON = "compares with Hugging Face's Qwen2: pip install torch transformers safetensors"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)

pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to fix

CONFIGS = {
    "tied": Qwen2Config.tiny(vocab_size=90),
    "untied": Qwen2Config.tiny(vocab_size=90, tied_head=False, num_layers=3, num_key_value_heads=1, rope_theta=1e4),
    "one head a group": Qwen2Config.tiny(vocab_size=90, num_layers=2, num_key_value_heads=4, norm_epsilon=1e-2),
}
LENGTHS = np.array([9, 5, 1])


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def pair(request):
    """Our configuration and parameters, and their model of the same weights, none of which is zero or one."""
    config = request.param
    theirs = transformers.Qwen2Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_key_value_heads,
        max_position_embeddings=config.max_positions,
        rms_norm_eps=config.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.tied_head,
    )
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(theirs).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return config, from_state_dict(config, weights), model


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(0, 90, (3, 9)).astype(np.int32)


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_and_activations_are_theirs(pair, ids, side):
    config, params, model = pair
    layers = tuple(range(config.num_layers))
    mask = np.arange(9) < LENGTHS[:, None]
    mask = mask if side == "right" else mask[:, ::-1].copy()
    logits, hidden = jax.jit(functools.partial(Qwen2(config).apply, layers=layers))(params, ids, mask)
    last = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, inputs: last.append(inputs[0]))
    with torch.no_grad():
        theirs = model(torch.tensor(ids).long(), attention_mask=torch.tensor(mask).long(), output_hidden_states=True)
    hook.remove()
    close(logits[mask], theirs.logits.numpy()[mask])
    assert len(theirs.hidden_states) == config.num_layers + 1
    for layer in layers[:-1]:
        close(hidden[layer][mask], theirs.hidden_states[layer + 1].numpy()[mask])
    # Their last hidden state is the normalised one; ours is what goes into the norm.
    close(hidden[-1][mask], last[0].numpy()[mask])
    close(model.model.norm(torch.tensor(np.asarray(hidden[-1]))).detach()[mask], theirs.hidden_states[-1].numpy()[mask])


def test_greedy_tokens_of_prompts_of_different_length_are_theirs(pair, ids):
    config, params, model = pair
    left = np.stack([np.roll(row, 9 - length) for row, length in zip(ids, LENGTHS, strict=True)])
    mask = np.arange(9) >= 9 - LENGTHS[:, None]
    with torch.no_grad():
        theirs = model.generate(
            torch.tensor(left).long(),
            attention_mask=torch.tensor(mask).long(),
            max_new_tokens=8,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )[:, 9:]
    prefill, decode = (
        jax.jit(functools.partial(Qwen2(config).apply, method=method)) for method in ("prefill", "decode")
    )
    logits, _, cache = prefill(params, ids, LENGTHS, initialize_cache(config, 3, 16))
    tokens = [np.argmax(logits, -1)]
    for _ in range(7):
        logits, _, cache = decode(params, tokens[-1].astype(np.int32), cache)
        tokens.append(np.argmax(logits, -1))
    assert np.stack(tokens, 1).tolist() == theirs.tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_files_that_they_save_are_read(pair, tmp_path, dtype):
    config, params, model = pair
    copy.deepcopy(model).to(getattr(torch, dtype)).save_pretrained(tmp_path, max_shard_size="100KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    mine = to_state_dict(config, load_safetensors(config, *files))
    for name, array in to_state_dict(config, params).items():
        assert np.array_equal(mine[name], torch.tensor(array).to(getattr(torch, dtype)).float()), name
