"""A train step in Equinox and Optax, saved once: with --perf-changed every plant in it is measured, and nothing else."""

import json

import pytest

MODEL = """
import equinox as eqx
import jax
import jax.numpy as jnp
import optax

WIDTH, RATE, LOGGED = 8, 1e-3, ("loss",)


class Model(eqx.Module):
    layers: list
    scale: float = eqx.field(static=True)

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x)) * self.scale
        return x


def loss(model, batch):
    return (jax.vmap(model)(batch) ** 2).mean()


def log(metrics):
    return [metrics[name] for name in LOGGED]


TX = optax.adam(RATE)


@eqx.filter_jit(donate="all-except-first")
def update(batch, model, state):
    value, grads = eqx.filter_value_and_grad(loss)(model, batch)
    updates, state = TX.update(grads, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, value


def train_step(model, state, batch):
    model, state, value = update(batch, model, state)
    log({"loss": value})
    return model, state


def made():
    keys = jax.random.split(jax.random.key(0), 2)
    model = Model([eqx.nn.Linear(WIDTH, WIDTH, key=key) for key in keys], 0.5)
    return model, TX.init(eqx.filter(model, eqx.is_array)), jnp.ones((4, WIDTH))
"""

TESTS = """
from model import made, train_step
from perfsuite import call


def step():
    return call(train_step, *made(), carry=2)


def test_compare(perf):
    perf.compare(step(), step(), until="return", tolerance=50.0)


def test_host_calls(perf):
    perf.host_calls(step())
"""

PLANTS = {
    "an operation in the loss": ("jnp.tanh(layer(x))", "jnp.tanh(jnp.sin(layer(x)))"),
    "a static field": ("for key in keys], 0.5)", "for key in keys], 0.25)"),
    "the rate that is built in": ("RATE, LOGGED = 8, 1e-3", "RATE, LOGGED = 8, 1e-2"),
    "a lost donation": ('donate="all-except-first"', 'donate="none"'),
    "a wider model": ("WIDTH, RATE, LOGGED = 8", "WIDTH, RATE, LOGGED = 16"),
    "a larger batch": ("jnp.ones((4, WIDTH))", "jnp.ones((8, WIDTH))"),
    "one pass over the model": ("    log({", "    model = jax.tree.map(lambda leaf: leaf, model)\n    log({"),
    "a wait for the device": ("    log({", "    value.block_until_ready()\n    log({"),
    "a second program": ("    log({", "    value = value + 1\n    log({"),
    "a helper that does more": ("    return [metrics", "    sorted(metrics)\n    return [metrics"),
    "what a helper reads": ('LOGGED = 8, 1e-3, ("loss",)', 'LOGGED = 8, 1e-3, ("loss", "loss")'),
    "a sleep": ("    log({", "    __import__('time').sleep(0)\n    log({"),
}

ALIKE = {
    "nothing": ("", ""),
    "a comment": ("    log({", "    # For the page.\n    log({"),
    "a refactored loss": (
        "    return (jax.vmap(model)(batch) ** 2).mean()",
        "    predicted = jax.vmap(model)(batch)\n    squares = predicted**2\n    return squares.mean()",
    ),
    "a function that nobody calls": ("def log(", "def other():\n    return 3\n\n\ndef log("),
}


@pytest.fixture
def compared(project):
    """`compared(model)`: the verdict of the comparison with that source, after the baseline of `MODEL`."""

    def verdict(model: str) -> str:
        project.makepyfile(model=model)
        project.runpytest_inprocess("--perf", "--perf-changed", "--perf-report=report", "-k", "compare")
        (test,) = json.loads((project.path / "report" / "report.json").read_text())["tests"]
        return next(metric["verdict"] for metric in test["metrics"] if metric["name"].endswith("ratio to return"))

    project.makepyfile(model=MODEL, test_model=TESTS)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=2)
    return verdict


@pytest.mark.parametrize("plant", PLANTS)
def test_a_plant_is_timed(compared, plant):
    before, after = PLANTS[plant]
    assert MODEL.count(before) == 1
    assert compared(MODEL.replace(before, after)) != "unchanged"


@pytest.mark.parametrize("change", ALIKE)
def test_the_control_is_unchanged(compared, change):
    before, after = ALIKE[change]
    assert compared(MODEL.replace(before, after) if before else MODEL) == "unchanged"


def test_host_calls_are_gated_as_ever(compared, project):
    before, after = PLANTS["one pass over the model"]
    project.makepyfile(model=MODEL.replace(before, after))
    result = project.runpytest_inprocess("--perf", "--perf-changed", "-k", "host_calls")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*train_step host calls is * over the baseline * calls*"])
