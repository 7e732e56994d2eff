"""The costs of instructions, compared with XLA's own analysis of the same programs, which counts a loop once."""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from support.compiled_texts import jitted, spec
from support.compilers import skip_without_compiler

from perfsuite.measure.hlo.cost_model import CostModel
from perfsuite.measure.hlo.reader import parse_hlo
from perfsuite.measure.program.compilation import compile_call

SIZE = 16

OPERATIONS = {
    "tanh": jnp.tanh,
    "add": lambda x: x + 1.5,
    "product": lambda x: x @ x,
    "transpose": lambda x: x.T * 2,
    "sum": lambda x: x + x.sum(0),
    "softmax": jax.nn.softmax,
    "largest": lambda x: jnp.where(x > x.max(1, keepdims=True) / 2, x, -x),
    "cumulative": lambda x: jnp.cumsum(x, 0),
    "sorted": lambda x: jnp.sort(x, 1),
    "rows": lambda x: x[jnp.argmax(x, 0)],
    "updated": lambda x: x.at[jnp.argmax(x, 0)].add(x),
    "sliced": lambda x: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (2, 3), (4, 5)), (1, 1)),
    "bfloat16": lambda x: (x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16)).astype(jnp.float32),
    "pooled": lambda x: lax.reduce_window(x, 0.0, lax.add, (3, 3), (1, 1), "SAME"),
    "random": lambda x: x * jax.random.normal(jax.random.key(0), x.shape),
    "branch": lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ x, jnp.sin, x),
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, x: jnp.cos(x) @ x, x),
    "scan": lambda x: lax.scan(lambda c, row: (c + row, jnp.exp(c)), x[0], x)[1],
    "fourier": lambda x: jnp.fft.rfft(x).real @ jnp.ones((SIZE // 2 + 1, SIZE)),
}


def composed(names, x):
    return functools.reduce(lambda x, name: OPERATIONS[name](x), names, x)


def compared(function, *arguments, target=None):
    """XLA's (FLOP, transcendentals, bytes) and those of the model."""
    compiled = compile_call(jitted(function, *arguments), target)
    cost = CostModel(parse_hlo(compiled.hlo), {}).total()
    xla = [max(compiled.cost.get(name, 0), 0) for name in ("flops", "transcendentals", "bytes accessed")]
    return xla, [cost.flops, cost.transcendentals, cost.bytes]


@pytest.mark.parametrize("target", [None, "tpu-v5e"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_costs_what_xla_says(name, target):
    if target is not None:
        skip_without_compiler(target)
    xla, model = compared(OPERATIONS[name], spec(SIZE, SIZE), target=target)
    assert model == pytest.approx(xla, rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=2, max_size=5))
def test_programs_cost_what_xla_says(names):
    xla, model = compared(functools.partial(composed, names), spec(SIZE, SIZE))
    assert model == pytest.approx(xla, rel=1e-3)
