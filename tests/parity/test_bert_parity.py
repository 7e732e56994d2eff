"""Our Equinox BERT against Hugging Face's, at random weights: the same logits, hidden states and files."""

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from support.bert_weights import from_state_dict

from perfsuite.workloads.bert import BertConfig, masked_lm_loss
from perfsuite.workloads.training.mlm import IGNORED_LABEL

from .hugging_face import assert_within, bert, randomise, state_of, tensor, torch

TINY = functools.partial(
    BertConfig.tiny, vocab_size=90, hidden_size=32, intermediate_size=48, max_positions=16, dropout=0.0
)
CONFIGS = {
    "tiny": TINY(),
    # An epsilon and token types that make a difference.
    "deeper": TINY(num_layers=4, num_heads=4, num_token_types=3, norm_epsilon=1e-2),
}
LENGTHS = np.array([9, 5, 1])
SEEDS = range(3)


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def config(request):
    return request.param


@pytest.fixture(scope="module", params=SEEDS, ids="seed {}".format)
def seed(request):
    return request.param


@pytest.fixture(scope="module")
def theirs(config, seed):
    model = bert(config)
    randomise(model, seed, std=0.2)
    return model


@pytest.fixture(scope="module")
def batch(config, seed):
    random = np.random.default_rng(seed)
    return {
        "input_ids": random.integers(0, config.vocab_size, (3, 9)),
        "attention_mask": np.arange(9) < LENGTHS[:, None],
        "token_type_ids": random.integers(0, config.num_token_types, (3, 9)),
    }


@pytest.fixture(scope="module")
def expected(theirs, batch):
    with torch.inference_mode():
        return theirs(**{name: tensor(array) for name, array in batch.items()}, output_hidden_states=True)


@eqx.filter_jit
def logits_and_hidden_states(model, input_ids, attention_mask, token_type_ids):
    """Logits `[batch, sequence, vocabulary]`; what the embeddings and each layer give, `[batch, sequence, hidden]`."""
    logits = model(input_ids, attention_mask, token_type_ids, inference=True)
    x = model.embeddings(input_ids, token_type_ids, None)
    hidden = [x]
    for layer in model.layers:
        x = layer(x, attention_mask, (None, None, None))
        hidden.append(x)
    return logits, [x.reshape(*input_ids.shape, -1) for x in hidden]


@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_logits_and_hidden_states_are_theirs(config, theirs, batch, expected, attention):
    ours = from_state_dict(BertConfig(**{**vars(config), "attention": attention}), state_of(theirs))
    logits, hidden = logits_and_hidden_states(ours, **batch)
    mask = batch["attention_mask"]
    assert_within(logits[mask], expected.logits[mask])
    assert len(hidden) == len(expected.hidden_states) == config.num_layers + 1
    for mine, other in zip(hidden, expected.hidden_states, strict=True):
        assert_within(mine[mask], other[mask])


def test_the_loss_is_theirs(config, theirs, batch):
    ours = from_state_dict(config, state_of(theirs))
    labels = np.where(batch["attention_mask"] & (np.arange(9) % 2 == 0), batch["input_ids"], IGNORED_LABEL)
    with torch.inference_mode():
        expected = theirs(**{name: tensor(array) for name, array in batch.items()}, labels=tensor(labels)).loss
    loss, _ = eqx.filter_jit(masked_lm_loss)(ours, {**batch, "labels": jnp.asarray(labels)}, None)
    assert abs(float(loss) - float(expected)) < 1e-4
    assert float(expected) > 0.1
