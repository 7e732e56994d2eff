"""FLOP of products, compared with what XLA counts for a whole program of products alone."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.compiled_texts import compile_here_or_for, spec

from perfsuite.measure.hlo.product_flops import overlaps


@pytest.mark.parametrize("backend", [None, "tpu-v5e"])
def test_a_batched_product_has_the_flops_of_its_parts(backend):
    program = compile_here_or_for(
        backend, lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), spec(4, 128, 8, 64), spec(4, 96, 8, 64)
    )
    (product,) = program.products
    assert product.flops == 2 * 4 * 8 * 128 * 96 * 64
    assert program.flops == pytest.approx(product.flops, rel=0.05)


@pytest.mark.parametrize(("backend", "stride", "groups"), [(None, 2, 1), (None, 1, 16), ("tpu-v5e", 2, 1)])
def test_convolutions_count_as_the_compiler_counts_them(backend, stride, groups):
    """Forwards, and backwards where they are dilated, reversed, and cut in groups."""

    def loss(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        made = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )
        return jnp.sum(made**2)

    program = compile_here_or_for(backend, jax.grad(loss, (0, 1)), spec(8, 32, 32, 16), spec(3, 3, 16 // groups, 32))
    assert len(program.products) == 3
    assert sum(product.flops for product in program.products) == pytest.approx(program.flops, rel=0.05)


WINDOW = st.tuples(*[st.integers(1, 6)] * 3, st.integers(-4, 6))


@given(st.integers(0, 12), st.integers(0, 9), st.integers(0, 12), WINDOW)
@example(8, 8, 8, (7, 8, 1, 0))
def test_overlaps_are_those_of_trying_every_position(size, kernel, outputs, window):
    stride, into_dilation, kernel_dilation, padding = window
    places = {element * into_dilation for element in range(size)}
    tried = [
        position * stride - padding + element * kernel_dilation in places
        for position in range(outputs)
        for element in range(kernel)
    ]
    assert overlaps(size, kernel, outputs, window) == sum(tried)


def test_a_batch_of_very_many_products_is_counted_without_trying_every_position():
    many = 10**6
    assert overlaps(many, many, many, (many - 1, many, 1, 0)) == many
