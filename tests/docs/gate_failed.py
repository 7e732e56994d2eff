"""The perf tests whose messages docs/a_gate_failed.md and docs/baselines.md show, and the change that makes them fail."""

SAVED = """\
import copy
import functools

import jax
import jax.numpy as jnp

from perfsuite import call

SETTINGS = {"rates": [0.1] * 5000, "betas": (0.9, 0.999)}


@functools.partial(jax.jit, donate_argnums=0)
def step(state, batch):
    return jax.tree.map(lambda leaf: leaf + batch.mean(), state)


def update(state, batch):
    return step(state, batch)


@functools.partial(jax.jit, donate_argnums=0)
def decay(average):
    return average * 0.9


def make_call(fn):
    return call(fn, {f"layer{number}": jnp.zeros(2_500) for number in range(4)}, jnp.ones((32, 64)), carry=1)


def test_update(perf):
    perf.host_calls(make_call(update))
    perf.compare(make_call(update), make_call(step), until="return")


def test_program(perf):
    perf.program(call(decay, jnp.zeros(64)))


def test_files(perf):
    perf.record("checkpoint", 4096, unit="bytes", kind="size")
    perf.record("files read", 3, unit="files", kind="count")
    perf.record("tokens", 100, unit="tokens/s", kind="ratio", better="higher", interval=(99, 101), tolerance=0.05)
    perf.record("start-up", 2, unit="s", kind="ratio", interval=(1.9, 2.1))
    perf.record("shards", 4, unit="shards", kind="count")
"""

CHANGES = {
    "    return step(state, batch)\n": "    copy.deepcopy(SETTINGS)  # so that nobody changes them\n    return step(state, batch)\n",
    "return average * 0.9": "return (average * 0.9).astype(jnp.bfloat16)",
    '"checkpoint", 4096': '"checkpoint", 5000',
    '"files read", 3': '"files read", 2',
    '"tokens", 100': '"tokens", 95',
    "interval=(99, 101)": "interval=(90, 100)",
    '"start-up", 2, unit="s", kind="ratio", interval=(1.9, 2.1)': (
        '"start-up", 2000, unit="ms", kind="ratio", interval=(1900, 2100)'
    ),
    '"shards", 4, unit="shards"': '"log lines", 12, unit="lines"',
}


def changed() -> str:
    """The code after the change."""
    code = SAVED
    for old, new in CHANGES.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code
