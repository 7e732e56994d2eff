import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.workloads.bert import (
    IGNORED_LABEL,
    BertConfig,
    BertForMaskedLM,
    masked_lm_loss,
    parameter_count,
)

NARROW = BertConfig.tiny(dropout=0.0, num_layers=1).narrowed()
LENGTHS = (9, 6, 3)


def randomised(config):
    """A model whose every array is random."""
    # Initial biases are zero and initial scales one; other values show where they go.
    model = eqx.filter_eval_shape(BertForMaskedLM, config, key=jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(0.2 * rng.normal(size=leaf.shape), leaf.dtype), model)


@pytest.fixture(scope="module")
def model():
    return randomised(NARROW)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    shape = len(LENGTHS), max(LENGTHS)
    ids = rng.integers(4, NARROW.vocab_size, shape)
    mask = np.arange(shape[1]) < np.array(LENGTHS)[:, None]
    selected = mask & (rng.random(shape) < 0.4)
    return {
        "input_ids": jnp.asarray(ids * mask, jnp.int32),
        "attention_mask": jnp.asarray(mask, jnp.int32),
        "labels": jnp.asarray(np.where(selected, ids, IGNORED_LABEL), jnp.int32),
    }


def with_config(model, **changes):
    """The same parameters under another configuration."""
    other = eqx.filter_eval_shape(BertForMaskedLM, dataclasses.replace(model.config, **changes), key=jax.random.key(0))
    return jax.tree.unflatten(jax.tree.structure(other), jax.tree.leaves(model))


def logits(model, batch, **kwargs):
    return eqx.filter_jit(model)(batch["input_ids"], batch["attention_mask"], **kwargs)


def dropout_key(seed):
    """A key of the generator that XLA compiles fastest."""
    return jax.random.key(seed, impl="rbg")


def numpy_bert(model, ids, mask, types):
    """BERT by the paper, in float64, one sequence and one head at a time."""

    def array(x):
        return np.asarray(x, np.float64)

    def linear(layer, x):
        return x @ array(layer.weight).T + array(layer.bias)

    def norm(layer, x):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + model.config.norm_epsilon)
        return scaled * array(layer.weight) + array(layer.bias)

    def gelu(x):
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    def attention(layer, x, real):
        query, key, value = (linear(projection, x) for projection in (layer.query, layer.key, layer.value))
        width = x.shape[-1] // model.config.num_heads
        heads = []
        for start in range(0, x.shape[-1], width):
            head = slice(start, start + width)
            scores = query[:, head] @ key[:, head].T / math.sqrt(width)
            weights = np.exp(scores) * real
            heads.append(weights / weights.sum(-1, keepdims=True) @ value[:, head])
        return np.concatenate(heads, -1)

    def sequence(ids, real, types):
        tables = model.embeddings
        x = array(tables.word_embeddings.weight)[ids]
        x = x + array(tables.position_embeddings.weight)[: len(ids)]
        x = norm(tables.norm, x + array(tables.token_type_embeddings.weight)[types])
        for layer in model.layers:
            out = layer.attention.output
            x = norm(out.norm, x + linear(out.dense, attention(layer.attention, x, real)))
            x = norm(layer.output.norm, x + linear(layer.output.dense, gelu(linear(layer.intermediate.dense, x))))
        x = norm(model.head.norm, gelu(linear(model.head.dense, x)))
        return x @ array(tables.word_embeddings.weight).T + array(model.head.bias)

    return np.stack([sequence(*row) for row in zip(ids, mask, types, strict=True)])


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # As Hugging Face counts BertForMaskedLM of the same sizes.
        (BertConfig.base(), 109_514_298),
        (BertConfig.large(), 335_174_458),
        (BertConfig.tiny(), 4_416_698),
    ],
)
def test_parameter_counts_are_the_papers(config, parameters):
    model = eqx.filter_eval_shape(BertForMaskedLM, config, key=jax.random.key(0))
    counted = parameter_count(jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), model))
    assert counted == parameters


def test_base_has_the_seed_documents_202_leaves_and_narrowing_keeps_them():
    base = BertConfig.base()
    shapes = [
        eqx.filter_eval_shape(BertForMaskedLM, config, key=jax.random.key(0))
        for config in (base, base.narrowed(), BertConfig.large(num_layers=4), BertConfig.tiny())
    ]
    assert [len(jax.tree.leaves(shape)) for shape in shapes] == [202, 202, 74, 42]
    paths = [[path for path, _ in jax.tree.leaves_with_path(shape)] for shape in shapes[:2]]
    assert paths[0] == paths[1]


@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_logits_are_those_of_the_paper_computed_in_numpy(batch, attention):
    model = randomised(dataclasses.replace(NARROW, num_layers=2))
    types = np.arange(max(LENGTHS)) % 2 * np.ones_like(batch["input_ids"])
    mine = logits(with_config(model, attention=attention), batch, token_type_ids=jnp.asarray(types))
    reference = numpy_bert(model, *(np.asarray(batch[name]) for name in ("input_ids", "attention_mask")), types)
    real = np.asarray(batch["attention_mask"], bool)
    np.testing.assert_allclose(np.asarray(mine)[real], reference[real], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_padding_does_not_reach_real_tokens(model, batch, attention):
    model = with_config(model, attention=attention)
    mask = batch["attention_mask"]
    other_padding = {**batch, "input_ids": jnp.where(mask == 1, batch["input_ids"], 77)}
    real = np.asarray(mask, bool)
    assert np.array_equal(np.asarray(logits(model, batch))[real], np.asarray(logits(model, other_padding))[real])


@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_dropout_follows_its_key_and_is_off_in_inference(model, batch, attention):
    dropped = with_config(model, dropout=0.3, attention=attention)
    first, again, other = (logits(dropped, batch, key=dropout_key(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(
        logits(dropped, batch, inference=True, key=dropout_key(1)),
        logits(with_config(model, attention=attention), batch),
    )


def test_eager_attention_drops_attention_weights_and_fused_does_not(model, batch):
    """With dropout on the attention weights alone, only eager attention differs from inference."""

    def attend(kind, key):
        attention = with_config(model, dropout=0.3, attention=kind).layers[0].attention
        x = jax.random.normal(jax.random.key(5), (batch["input_ids"].size, NARROW.hidden_size))
        return eqx.filter_jit(attention)(x, batch["attention_mask"].astype(bool), (key, None))

    for kind, differs in (("eager", True), ("fused", False)):
        assert np.array_equal(attend(kind, dropout_key(1)), attend(kind, None)) is not differs


def test_dropout_without_a_key_is_an_error_and_not_silence(model, batch):
    with pytest.raises(ValueError, match="needs a key"):
        logits(with_config(model, dropout=0.1), batch)


def test_half_precision_activations_leave_parameters_gradients_and_loss_in_single(model, batch):
    half = with_config(model, activation_dtype="bfloat16")
    assert logits(half, batch).dtype == jnp.bfloat16
    grads, _ = eqx.filter_eval_shape(eqx.filter_grad(masked_lm_loss, has_aux=True), half, batch, None)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    loss, single = (eqx.filter_jit(masked_lm_loss)(m, batch, None)[0] for m in (half, model))
    assert loss.dtype == jnp.float32
    assert float(loss) == pytest.approx(float(single), rel=0.02)


@pytest.mark.usefixtures("well_compiled")
@pytest.mark.parametrize("attention", ["fused", "eager"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_rematerialised_layers_give_the_same_gradients(model, batch, attention, dropout):
    key = dropout_key(1) if dropout else None

    def results(remat):
        made = with_config(model, attention=attention, dropout=dropout, remat=remat)
        loss_and_gradients = jax.value_and_grad(lambda model: masked_lm_loss(model, batch, key), has_aux=True)
        step = jax.jit(loss_and_gradients).lower(made)
        return step.as_text(), jax.device_get(jax.tree.leaves(step.compile()(made)))

    (plain, expected), (program, mine) = results(False), results(True)
    # A layer is computed twice behind a barrier, which keeps the compiler from seeing that it is the same.
    # Fused attention does so by itself.
    assert plain.count("optimization_barrier") == (NARROW.num_layers if attention == "fused" else 0)
    assert program.count("optimization_barrier") == plain.count("optimization_barrier") + NARROW.num_layers
    # Bit for bit, because it is the same sums in the same order. In half precision it would not be: XLA leaves out
    # roundings inside a fusion, and the second pass is fused in another way.
    for array, reference in zip(mine, expected, strict=True):
        assert np.array_equal(array, reference)


def test_loss_is_the_mean_cross_entropy_over_selected_positions(model, batch):
    loss, aux = eqx.filter_jit(masked_lm_loss)(model, batch, None)
    scores = np.asarray(logits(model, batch), np.float64)
    labels = np.asarray(batch["labels"])
    selected = labels != IGNORED_LABEL
    log_probabilities = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    expected = -np.mean([log_probabilities[*at, labels[*at]] for at in np.argwhere(selected)])
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert int(aux["selected"]) == selected.sum() > 0
    assert int(aux["correct"]) == np.sum(scores.argmax(-1)[selected] == labels[selected])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 100, "num_heads": 3}, "multiple of num_heads"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
    ],
)
def test_configuration_that_makes_no_model_is_an_error_naming_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        BertConfig.base(**changes)


def test_token_types_are_zero_unless_given(model, batch):
    zeros = jnp.zeros_like(batch["input_ids"])
    given = logits(model, batch, token_type_ids=zeros)
    np.testing.assert_allclose(logits(model, batch), given, rtol=1e-5, atol=1e-5)
    assert not np.allclose(given, logits(model, batch, token_type_ids=zeros + 1), atol=1e-3)


def test_loss_without_a_selected_position_is_zero_with_zero_gradients(model, batch):
    nothing = {**batch, "labels": jnp.full_like(batch["labels"], IGNORED_LABEL)}
    (loss, aux), grads = eqx.filter_jit(eqx.filter_value_and_grad(masked_lm_loss, has_aux=True))(model, nothing, None)
    assert float(loss) == 0
    assert int(aux["selected"]) == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads))
