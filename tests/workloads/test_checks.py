import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.workloads.checks import check_at_least, check_choice, check_ids, check_multiple, check_positive


@dataclasses.dataclass
class Sizes:
    width: int = 8
    heads: int = 4
    rate: float = 0.5
    dtype: str = "float32"


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_at_least(5, Sizes(), "width", "heads"), "Sizes.heads must be at least 5, got 4"),
        (lambda: check_at_least(0, Sizes(rate=float("nan")), "rate"), "Sizes.rate must be at least 0, got nan"),
        (lambda: check_positive(Sizes(rate=0.0), "width", "rate"), "Sizes.rate must be positive, got 0.0"),
        (lambda: check_choice(("a", "b", "c"), Sizes(), "dtype"), "Sizes.dtype must be 'a', 'b' or 'c', got 'float32'"),
        (lambda: check_multiple(Sizes(heads=3), "width", "heads"), "Sizes.width (8) must be a multiple of heads (3)"),
        (
            lambda: check_multiple(Sizes(width=4), "width", "heads", times=2),
            "Sizes.width (4) must be a multiple of twice heads (4)",
        ),
        (lambda: check_ids("ids", np.ones(2), 5), "ids must be integers, got float64"),
        (lambda: check_ids("ids", np.ones(2, bool), 5), "ids must be integers, got bool"),
        (lambda: check_ids("ids", np.array([1, 5, -1]), 5), "ids must be from 0 to 4, got 5"),
        (lambda: check_ids("token", jnp.array([-1]), 5), "token must be from 0 to 4, got -1"),
    ],
)
def test_what_is_wrong_is_named_with_its_value(check, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check()


def test_what_fits_passes():
    check_at_least(4, Sizes(), "width", "heads")
    check_positive(Sizes(), "width", "rate")
    check_choice(("float32",), Sizes(), "dtype")
    check_multiple(Sizes(), "width", "heads", times=2)
    check_ids("ids", np.arange(5, dtype=np.uint8), 5)
    check_ids("ids", np.zeros((0, 3), int), 5)


def test_the_dtype_of_a_tracer_is_checked_and_its_values_are_not():
    jax.jit(lambda ids: check_ids("ids", ids, 5))(jnp.array([7]))
    with pytest.raises(ValueError, match="ids must be integers, got float32"):
        jax.jit(lambda ids: check_ids("ids", ids, 5))(jnp.ones(2))
