import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.gpt2_numpy import numpy_greedy, numpy_logits, prompts, randomised

from perfsuite.workloads.gpt2 import GPT2Config, init_params
from perfsuite.workloads.gpt2.generation import generate, generate_stepwise
from perfsuite.workloads.gpt2.int8 import logit_error, quantize, size_bytes

TINY = GPT2Config.tiny()


@pytest.fixture(scope="module")
def params():
    return randomised(TINY)


@pytest.fixture(scope="module")
def quantized(params):
    return quantize(params)


def dequantized(params):
    """Float parameters that are exactly what the int8 ones stand for."""
    if isinstance(params, list):
        return [dequantized(part) for part in params]
    if not isinstance(params, dict):
        return params
    if "scale" in params:
        rest = {name: leaf for name, leaf in params.items() if name not in ("weight", "scale")}
        return {**rest, "weight": params["weight"].astype(jnp.float32) * params["scale"][:, None]}
    return {name: dequantized(part) for name, part in params.items()}


def test_small_takes_128_megabytes_and_not_498():
    floats = jax.eval_shape(lambda: init_params(GPT2Config.small(), jax.random.key(0)))
    assert size_bytes(floats) == 497_759_232
    # Weights a byte each, four for each of the other 907 776 numbers and of the 133 201 scales.
    assert size_bytes(jax.eval_shape(quantize, floats)) == 123_532_032 + 4 * 907_776 + 4 * 133_201 == 127_695_940


def test_weights_are_off_by_at_most_half_a_scale_and_use_the_whole_range(params, quantized):
    original, restored = (jax.tree.leaves(tree) for tree in (params, dequantized(quantized)))
    layer = quantized["h"][0]["mlp"]["c_fc"]
    assert layer["weight"].dtype == jnp.int8
    assert np.all(np.abs(np.asarray(layer["weight"], int)).max(axis=1) == 127)
    error = np.abs(dequantized(layer)["weight"] - params["h"][0]["mlp"]["c_fc"]["weight"])
    assert np.all(error <= layer["scale"][:, None] * 0.5001)
    assert [leaf.shape for leaf in restored] == [leaf.shape for leaf in original]


def test_a_row_of_zeros_stays_zero_and_has_scale_one():
    row = quantize({"wte": {"weight": jnp.zeros((2, 3))}, "h": []})["wte"]
    assert not np.any(row["weight"])
    assert row["scale"].tolist() == [1, 1]


def test_logit_error_is_the_difference_of_logits_and_small(params, quantized):
    ids, _ = prompts(TINY, (9, 9))
    pairs = [(numpy_logits(dequantized(quantized), TINY, row), numpy_logits(params, TINY, row)) for row in ids]
    difference = np.abs(np.array([mine - theirs for mine, theirs in pairs]))
    error = logit_error(params, quantized, TINY, ids)
    assert error.max_abs == pytest.approx(difference.max(), rel=0.01)
    assert error.mean_abs == pytest.approx(difference.mean(), rel=0.01)
    assert error.same_argmax == np.mean([mine.argmax(-1) == theirs.argmax(-1) for mine, theirs in pairs])
    assert 0 < error.mean_abs < 0.05 * np.std([theirs for _, theirs in pairs])


# One row is another product, and another loop.
@pytest.mark.parametrize(("how", "lengths"), [(generate, (5,)), (generate, (5, 2)), (generate_stepwise, (5, 2))])
def test_it_generates_what_the_weights_it_stands_for_do(quantized, how, lengths):
    ids, lengths = prompts(TINY, lengths)
    floats = dequantized(quantized)
    expected = [numpy_greedy(floats, TINY, row[:n], 5) for row, n in zip(ids, lengths, strict=True)]
    assert how(quantized, TINY, ids, lengths, 5).tolist() == expected


def test_quantising_twice_is_an_error(quantized):
    with pytest.raises(ValueError, match="quantised already"):
        quantize(quantized)
