"""Reading and checking weights, and that the loaders of BERT, Qwen2 and GPT-2 do both."""

from functools import partial

import numpy as np
import pytest

from perfsuite.workloads.state_dicts import check_weights

WEIGHTS = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(3, np.float32)}
SHAPES = {"a": (3, 4), "b": (3,)}
check = partial(check_weights, shapes=SHAPES, repeats={"again": "a"}, because="it is tied")


def test_every_weight_that_does_not_fit_is_named_with_its_shapes():
    check(WEIGHTS)
    with pytest.raises(ValueError, match="do not fit the configuration") as raised:
        check({"a": np.ones((4, 3), np.int32), "c": np.ones(2), "again": WEIGHTS["a"]})
    assert str(raised.value).split(": ")[1].split("; ") == [
        "a has shape (4, 3), not (3, 4)",
        "a is int32, not floating-point",
        "again differs from a, but it is tied",
        "b is missing, shape (3,)",
        "c is not known, shape (2,)",
    ]


def test_of_a_long_list_the_first_eight_are_named():
    with pytest.raises(ValueError, match=r"u0 is.*; u7 is not known, shape \(1,\); and 2 more$"):
        check({**WEIGHTS, **{f"u{i}": np.ones(1) for i in range(10)}})


def test_a_repeated_weight_must_be_equal_and_may_hold_nan():
    a = WEIGHTS["a"] + np.diag([np.nan] * 4)[:3]
    check({**WEIGHTS, "a": a, "again": a.copy()})
    with pytest.raises(ValueError, match="again differs from a"):
        check({**WEIGHTS, "a": a, "again": np.nan_to_num(a)})
