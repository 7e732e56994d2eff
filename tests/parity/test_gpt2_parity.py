"""Our GPT-2 against Hugging Face's, on random weights."""

import numpy as np
import pytest

from perfsuite.workloads.generation import generate, generate_uncached
from perfsuite.workloads.gpt2 import GPT2Config, logits
from perfsuite.workloads.gpt2_weights import from_state_dict, load_safetensors

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
transformers = pytest.importorskip("transformers", reason="compares with Hugging Face transformers, not installed")

TINY = GPT2Config.tiny()


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=TINY.vocab_size,
        n_positions=TINY.max_positions,
        n_embd=TINY.hidden_size,
        n_layer=TINY.num_layers,
        n_head=TINY.num_heads,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def params(reference):
    return from_state_dict({name: tensor.numpy() for name, tensor in reference.state_dict().items()}, TINY)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(0, TINY.vocab_size, (3, 10))


def test_logits_are_hugging_faces(reference, params, ids):
    with torch.no_grad():
        expected = reference(torch.tensor(ids)).logits.numpy()
    assert np.abs(logits(params, TINY, ids) - expected).max() < 1e-4
    assert np.std(expected) > 0.5


@pytest.mark.parametrize("how", [generate, generate_uncached])
def test_greedy_tokens_are_hugging_faces(reference, params, ids, how):
    prompt = torch.tensor(ids)
    with torch.no_grad():
        whole = reference.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
    assert np.array_equal(how(params, TINY, ids, np.full(3, 10), 12), whole[:, 10:].numpy())


def test_a_saved_model_is_read_from_its_safetensors_file(reference, params, ids, tmp_path):
    reference.save_pretrained(tmp_path)
    loaded = load_safetensors(tmp_path / "model.safetensors", TINY)
    assert np.array_equal(logits(loaded, TINY, ids), logits(params, TINY, ids))
