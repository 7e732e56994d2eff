"""A user's loaders that bring what was not warmed: each is named with its input before anything runs."""

import re

import pytest

LOADERS = """
import functools
import jax
import jax.numpy as jnp
import numpy as np

@functools.partial(jax.jit, static_argnames="mode")
def step(params, batch, rate, mode="train"):
    return params - rate * (batch ** 2).mean() * (1 if mode == "train" else 0)

PARAMS = jnp.zeros(4)
RATE = jnp.float32(0.1)

def batches(rows, size=8, dtype=np.float32):
    data = np.ones((rows, 16), dtype)
    return (data[start : start + size] for start in range(0, rows, size))

def whole(rows=32):
    return ((PARAMS, batch, RATE) for batch in batches(rows))

def with_a_last_batch():
    return whole(35)

def weakly_typed():
    for place, batch in enumerate(batches(32)):
        yield PARAMS, batch, RATE if place < 3 else RATE.item() * 0.5

def changing_its_dtype():
    for place, batch in enumerate(batches(32)):
        yield PARAMS, batch.astype(np.float16) if place == 2 else batch, RATE

def padded(batch, rows=8):
    return np.pad(batch, ((0, rows - len(batch)), (0, 0)))
"""

TESTS = """
import pytest
from loaders import *
from perfsuite import call

@pytest.fixture
def warmed(perf):
    return perf.warm(step, over=[next(whole())])

def test_whole_batches(perf, warmed):
    assert perf.covers(warmed, whole()).signatures == 1

def test_last_batch_padded(perf, warmed):
    perf.covers(warmed, ((PARAMS, padded(batch), RATE) for batch in batches(35)))

def test_last_batch(perf, warmed):
    perf.covers(warmed, with_a_last_batch())

def test_weakly_typed(perf, warmed):
    perf.covers(warmed, weakly_typed())

def test_dtype(perf, warmed):
    perf.covers(warmed, changing_its_dtype())

def test_static_value(perf):
    calls = [call(step, *arguments, mode=mode) for arguments, mode in zip(whole(), ("train", "train", "eval"))]
    perf.covers(perf.warm(step, over=calls[:1]), calls)
"""

SAID = {
    "last_batch": (
        4,
        r"args\[1\] \(batch\): shape was \(8, 16\), is \(3, 16\)",
        "Where the last batch is smaller: pad it",
    ),
    "weakly_typed": (
        3,
        r"args\[2\] \(rate\): weak type was False \(an array\), is True \(a Python float\)",
        "jnp.float32",
    ),
    "dtype": (2, r"args\[1\] \(batch\): dtype was float32, is float16", r"x\.astype\('float32'\)"),
    "static_value": (2, r"kwargs\['mode'\]: static value was 'train', is 'eval'", r"Warm every value"),
}


def test_each_plant_is_named_with_its_input_and_the_controls_are_silent(project: pytest.Pytester):
    project.makepyfile(loaders=LOADERS, test_loaders=TESTS)
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=2, failed=len(SAID))
    printed = str(result.stdout)
    for test, (first, change, advice) in SAID.items():
        (said,) = re.findall(rf"_ test_{test} _+\n(.*?)(?=\n_____|\n=====)", printed, re.DOTALL)
        assert "uncovered signatures is 1 signature, over the budget of 0 signatures" in said
        assert f"input {first} brings `step`" in said
        assert re.search(change, said), said
        assert re.search(advice, said), said
