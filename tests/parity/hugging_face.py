"""Hugging Face transformers on PyTorch, for tests that hold this project's models against the published ones.

A test module that imports this is skipped where they are not installed: they are no dependencies of this project.
Models are made from configurations with random weights; nothing is looked for on the network.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import jax
import numpy as np
import pytest

from perfsuite.workloads.bert import BertConfig
from perfsuite.workloads.gpt2 import GPT2Config
from perfsuite.workloads.qwen2 import Qwen2Config

_REASON = 'compares with Hugging Face transformers on PyTorch: pip install -e ".[parity]"'
torch = pytest.importorskip("torch", reason=_REASON)
transformers = pytest.importorskip("transformers", reason=_REASON)


def bert(config: BertConfig, attention: str = "sdpa"):
    """Their BERT of our configuration, without dropout."""
    theirs = transformers.BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_positions,
        type_vocab_size=config.num_token_types,
        layer_norm_eps=config.norm_epsilon,
    )
    return transformers.BertForMaskedLM._from_config(theirs, attn_implementation=attention).eval()


def gpt2(config: GPT2Config, attention: str = "sdpa"):
    """Their GPT-2 of our configuration. No token ends a generation."""
    theirs = transformers.GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.max_positions,
        n_embd=config.hidden_size,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        layer_norm_epsilon=config.norm_epsilon,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.GPT2LMHeadModel._from_config(theirs, attn_implementation=attention).eval()


def qwen2(config: Qwen2Config, attention: str = "sdpa"):
    """Their Qwen2 of our configuration. No token ends a generation."""
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
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.Qwen2ForCausalLM._from_config(theirs, attn_implementation=attention).eval()


def randomise(model, seed: int, std: float) -> None:
    """Draw every parameter anew, biases and norms too, so that one in the wrong place shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std, generator=generator)


def state_of(model) -> dict[str, np.ndarray]:
    """The model's state dict in NumPy, with which it shares its memory."""
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def tensor(array) -> "torch.Tensor":
    """An integer tensor of an array of ids or a mask."""
    return torch.tensor(np.asarray(array)).long()


def assert_within(actual, expected, limit: float = 1e-4) -> None:
    """No number is further off than `limit`. Numbers that are all small would be close to anything: that fails too."""
    actual, expected = (np.asarray(jax.device_get(array), np.float64) for array in (actual, expected))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=limit)
    assert expected.std() > 0.1
