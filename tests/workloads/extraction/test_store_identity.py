import re

import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.workloads.extraction.store_identity import StoreIdentity, inputs_fingerprint, weights_fingerprint

from .stores import CONFIG, identity


def test_fingerprints_of_weights_differ_with_any_byte_name_shape_or_dtype():
    weights = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float32)}
    one_bit = weights["a"].copy()
    one_bit.view(np.uint32)[1, 2] ^= 1
    others = [
        weights,
        {**weights, "a": one_bit},
        {**weights, "a": weights["a"].reshape(3, 2)},
        {**weights, "a": weights["a"].view(np.int32)},
        {"a": weights["a"], "c": weights["b"]},
        {"a": weights["b"], "b": weights["a"]},
        {"a": weights["a"]},
    ]
    assert len({weights_fingerprint(other) for other in others}) == len(others)


def test_fingerprints_of_weights_do_not_depend_on_where_they_lie():
    weights = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, jnp.bfloat16)}
    on_device = {name: jnp.asarray(value) for name, value in weights.items()}
    strided = {name: np.asfortranarray(value) for name, value in weights.items()}
    assert weights_fingerprint(weights) == weights_fingerprint(on_device) == weights_fingerprint(strided)


def test_fingerprints_of_inputs_are_those_of_the_ids():
    texts = [[1, 2], [3]]
    same = [texts, [np.array([1, 2], np.int64), np.array([3], np.uint8)], ([1, 2], [3])]
    others = [[[1, 2, 3]], [[1], [2, 3]], [[3], [1, 2]], [[1, 2], [4]], [[1, 2]], []]
    assert len({inputs_fingerprint(each) for each in same}) == 1
    assert len({inputs_fingerprint(each) for each in [texts, *others]}) == 1 + len(others)


def test_an_identity_is_made_of_what_goes_into_an_extraction():
    weights = {"a": np.ones(2)}
    made = StoreIdentity.of(CONFIG, [0, 2], weights, [[1, 2, 3], [4]], samples_per_chunk=8)
    assert made == StoreIdentity(
        CONFIG, (0, 2), 2, 3, 8, weights_fingerprint(weights), inputs_fingerprint([[1, 2, 3], [4]]), "float32"
    )
    longer = StoreIdentity.of(CONFIG, [0, 2], weights, [[1]], samples_per_chunk=8, length=5, dtype="float16")
    assert (longer.length, longer.dtype) == (5, "float16")
    with pytest.raises(ValueError, match="sequence 1 has 3 tokens, but the longest length is 2"):
        StoreIdentity.of(CONFIG, [0], weights, [[1], [1, 2, 3]], samples_per_chunk=1, length=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": (0, 3)}, "layers must be numbers from 0 to 2, got 3"),
        ({"layers": ()}, "layers must name at least one layer"),
        ({"samples": -1}, "samples must be at least 0, got -1"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"samples_per_chunk": 0}, "samples_per_chunk must be at least 1, got 0"),
        ({"dtype": "int8"}, "dtype must be 'float32', 'bfloat16' or 'float16', got 'int8'"),
        ({"weights": ""}, "weights must be a name or a fingerprint, got ''"),
        ({"inputs": None}, "inputs must be a name or a fingerprint, got None"),
    ],
)
def test_identities_that_make_no_sense_are_errors(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        identity(**change)
