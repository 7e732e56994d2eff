import re

import numpy as np
import pytest

from perfsuite.workloads.extraction.store_identity import weights_fingerprint

from .stores import identity


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": (0, 3)}, "layers must be numbers from 0 to 2, got 3"),
        ({"inputs": None}, "inputs must be a name or a fingerprint, got None"),
    ],
)
def test_identities_that_make_no_sense_are_errors(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        identity(**change)
