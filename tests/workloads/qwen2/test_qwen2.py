import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.qwen2_numpy import numpy_qwen2, random_state_dict
from support.qwen2_weights import from_state_dict

from perfsuite.workloads.qwen2 import KeyValueCache, Qwen2, Qwen2Config, initialize_cache
from perfsuite.workloads.qwen2.weights import weight_table

NARROW = Qwen2Config.tiny(vocab_size=61, num_layers=3, intermediate_size=96, max_positions=32)
UNTIED = dataclasses.replace(NARROW, tied_head=False, num_key_value_heads=1)
MODEL = Qwen2(NARROW)
LENGTHS = np.array([7, 4, 1])
ALL = tuple(range(NARROW.num_layers))


@pytest.fixture(scope="module")
def weights():
    return random_state_dict(NARROW, weight_table(NARROW))


@pytest.fixture(scope="module")
def params(weights):
    return from_state_dict(NARROW, weights)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(1).integers(0, NARROW.vocab_size, (3, 7)).astype(np.int32)


@functools.partial(jax.jit, static_argnames=("layers", "method"))
def apply(params, *args, layers=(), method="__call__"):
    return MODEL.apply(params, *args, layers=layers, method=method)


def plain(params, ids):
    return apply(params, ids, layers=(2, 0))


def masked(params, ids, mask):
    return apply(params, ids, mask, layers=ALL)


def prefill(params, ids, lengths, capacity=11):
    """Activations of layer 1 among the results."""
    return apply(params, ids, lengths, initialize_cache(NARROW, 3, capacity), layers=(1,), method="prefill")


def decode(params, tokens, cache):
    """Activations of layers 0 and 2 among the results."""
    return apply(params, tokens, cache, layers=(0, 2), method="decode")


def real(ids):
    return np.arange(ids.shape[1]) < LENGTHS[:, None]


def close(actual, expected, tolerance=1e-4):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # As Hugging Face counts the published weights; Qwen2.5 has the same sizes.
        (Qwen2Config.qwen2_0_5b(), 494_032_768),
        (Qwen2Config(152064, 3584, 28, 28, 4, 18944, tied_head=False), 7_615_616_512),
    ],
)
def test_parameter_counts_are_the_published_ones(config, parameters):
    shapes = jax.eval_shape(Qwen2(config).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


@pytest.mark.parametrize("config", [NARROW, UNTIED], ids=["tied", "untied"])
def test_logits_and_activations_are_those_of_the_report_computed_in_numpy(config, ids):
    weights = random_state_dict(config, weight_table(config))
    mask = real(ids)
    logits, hidden = jax.jit(functools.partial(Qwen2(config).apply, layers=ALL))(
        from_state_dict(config, weights), ids, mask
    )
    for row, length in enumerate(LENGTHS):
        expected, stream = numpy_qwen2(config, weights, ids[row, :length])
        close(logits[row, :length], expected)
        close(np.stack(hidden)[:, row, :length], stream)


def test_activations_alone_run_no_later_layer(params, ids):
    def products(layers):
        run = functools.partial(MODEL.apply, layers=layers, method="hidden_states")
        return str(jax.make_jaxpr(run)(params, ids)).count("dot_general[")

    # Seven projections, scores and mixing a layer; and no head.
    assert [products((0,)), products((1, 0)), products((2,))] == [9, 18, 27]


def test_positions_count_real_tokens_so_padding_may_be_anywhere(weights, params, ids):
    mask = np.array([[0, 0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0]], bool)
    logits, hidden = masked(params, ids, mask)
    for row, real_tokens in enumerate(mask):
        expected, stream = numpy_qwen2(NARROW, weights, ids[row, real_tokens])
        close(logits[row, real_tokens], expected)
        close(np.stack(hidden)[:, row, real_tokens], stream)


def test_half_precision_computes_in_half_and_keeps_parameters(weights, ids):
    config = dataclasses.replace(NARROW, activation_dtype="bfloat16")
    half = from_state_dict(config, weights)
    logits, hidden = jax.jit(functools.partial(Qwen2(config).apply, layers=(1,)))(half, ids)
    assert {logits.dtype, hidden[0].dtype, initialize_cache(config, 1, 4).keys[0].dtype} == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(half)} == {jnp.dtype("float32")}
    single = plain(half, ids)[0]
    assert np.std(logits.astype(jnp.float32) - single) < 0.05 * np.std(single)


def test_prompts_of_different_length_decode_in_one_batch_as_without_a_cache(weights, params, ids):
    logits, hidden, cache = prefill(params, ids, LENGTHS)
    sequences = [row[:length] for row, length in zip(ids, LENGTHS, strict=True)]
    for row, sequence in enumerate(sequences):
        expected, stream = numpy_qwen2(NARROW, weights, sequence)
        close(logits[row], expected[-1])
        close(hidden[0][row, : LENGTHS[row]], stream[1])
    for step in range(4):
        tokens = np.array([step, 60 - step, 30], np.int32)
        logits, hidden, cache = decode(params, tokens, cache)
        sequences = [np.append(sequence, token) for sequence, token in zip(sequences, tokens, strict=True)]
        for row, sequence in enumerate(sequences):
            expected, stream = numpy_qwen2(NARROW, weights, sequence)
            close(logits[row], expected[-1])
            close([layer[row] for layer in hidden], stream[[0, 2], -1])
    assert np.array_equal(cache.lengths, LENGTHS + 4)


def test_prefill_forgets_what_the_cache_held(params, ids):
    _, _, used = prefill(params, ids[::-1], np.full(3, 7))
    _, _, used = apply(params, ids, LENGTHS, used, layers=(1,), method="prefill")
    _, _, new = prefill(params, ids, LENGTHS)
    token = np.array([1, 2, 3], np.int32)
    assert np.array_equal(*(decode(params, token, cache)[0] for cache in (used, new)))


def test_a_donated_cache_is_written_in_place(params):
    decode = jax.jit(functools.partial(MODEL.apply, method="decode"), donate_argnums=2)
    program = decode.lower(params, jnp.zeros(3, jnp.int32), initialize_cache(NARROW, 3, 11)).compile()
    cache_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(initialize_cache(NARROW, 3, 11)))
    assert program.memory_analysis().alias_size_in_bytes >= cache_bytes


def test_under_jit_a_token_beyond_the_cache_is_nan_for_its_sample_alone(params, ids):
    _, _, cache = prefill(params, ids, LENGTHS)
    for _ in range(4):
        _, _, cache = decode(params, ids[:, 0], cache)
    assert np.array_equal(cache.lengths, [11, 8, 5])
    logits, _, after = decode(params, ids[:, 0], cache)
    assert np.array_equal(np.isnan(logits).all(-1), [True, False, False])
    assert np.array_equal(after.lengths, [11, 9, 6])
    assert np.array_equal(after.keys[0][0], cache.keys[0][0])


@pytest.mark.parametrize("wrong", [-1, NARROW.vocab_size])
def test_under_jit_an_id_that_there_is_not_makes_its_sample_nan_and_no_other(params, ids, wrong):
    ids = ids.copy()
    ids[1, 2] = wrong
    logits, _ = plain(params, ids)
    assert np.array_equal(np.isnan(logits).all((1, 2)), [False, True, False])
    assert np.isfinite(np.asarray(logits)[[0, 2]]).all()


def test_what_does_not_fit_the_cache_is_an_error_with_the_numbers(params, ids):
    cache = initialize_cache(NARROW, 3, 6)
    full = KeyValueCache(cache.keys, cache.values, jnp.array([1, 6, 2]))
    cases = [
        ("prefill", "input_ids are 7 tokens long, but the cache holds 6", (ids, LENGTHS, cache)),
        ("prefill", r"lengths must be from 0 to 5, got \[7 4 1\]", (ids[:, :5], LENGTHS, cache)),
        ("prefill", r"lengths must have shape \(3,\), one a prompt, got \(2,\)", (ids[:, :5], LENGTHS[:2], cache)),
        ("prefill", r"input_ids must have shape \[3, sequence\].*got \(2, 5\)", (ids[:2, :5], LENGTHS[:2], cache)),
        ("decode", r"token_ids must have shape \[3\].*got \(3, 1\)", (ids[:, :1], cache)),
        ("decode", r"holds 6 tokens a sample and is full: \[1 6 2\]", (ids[:, 0], full)),
    ]
    for method, message, arguments in cases:
        with pytest.raises(ValueError, match=message):
            MODEL.apply(params, *arguments, method=method)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 66}, r"hidden_size \(66\) must be a multiple of twice num_heads \(4\)"),
        ({"activation_dtype": "int8"}, "activation_dtype must be 'float32'"),
    ],
)
def test_configuration_that_makes_no_model_is_an_error_naming_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        Qwen2Config.tiny(**changes)


def test_without_a_mask_every_token_is_real(params, ids):
    close(masked(params, ids, np.ones(ids.shape, bool))[0], plain(params, ids)[0], 1e-5)


@pytest.mark.parametrize("wrong", [-1, NARROW.vocab_size])
def test_outside_jit_an_id_that_there_is_not_is_an_error(params, wrong):
    message = f"must be from 0 to 60, got {wrong}"
    with pytest.raises(ValueError, match=f"input_ids {message}"):
        MODEL.apply(params, np.array([[1, wrong]]))
    with pytest.raises(ValueError, match=f"token_ids {message}"):
        MODEL.apply(params, jnp.array([wrong]), initialize_cache(NARROW, 1, 4), method="decode")


@pytest.mark.parametrize("layer", [-1, 3, 1.0])
def test_a_layer_that_there_is_not_is_an_error(params, ids, layer):
    for method in ("__call__", "hidden_states"):
        with pytest.raises(ValueError, match=f"layers must be numbers from 0 to 2, got {layer}"):
            MODEL.apply(params, ids, layers=(0, layer), method=method)
