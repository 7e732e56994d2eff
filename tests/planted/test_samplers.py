"""Regressions planted in samplers of blackjax and numpyro, as a user writes them: each fails its gate and is named.

The baselines are saved, then one line of the project changes. The controls change a line that costs nothing.
"""

import re

import pytest

pytest.importorskip("blackjax", reason="one of the projects that are tried: pip install blackjax")
pytest.importorskip("numpyro", reason="one of the projects that are tried: pip install numpyro")

pytestmark = pytest.mark.usefixtures("quick_to_compile")

HMC = """
import blackjax
import jax
import jax.numpy as jnp

ROWS, STEPS = 200, 10


def logdensity(position):
    width = position["weights"].size
    data = jnp.cos(jnp.arange(ROWS * width, dtype=jnp.float32)).reshape(ROWS, width)
    logits = data @ position["weights"] + position["bias"]
    return -jax.nn.softplus(logits).sum() - 0.5 * (position["weights"] ** 2).sum()


def sampler(position):
    mass = jnp.ones(position["weights"].size + 1)
    return blackjax.hmc(logdensity, step_size=1e-2, inverse_mass_matrix=mass, num_integration_steps=STEPS)


def initial_state(width=8):
    position = {"bias": jnp.zeros(()), "weights": jnp.zeros(width)}
    return sampler(position).init(position)


def states():
    return [initial_state(), initial_state()]


def hmc_kernel(state, key):
    state, info = sampler(state.position).step(key, state)
    return state, info.acceptance_rate


hmc_kernel = jax.jit(hmc_kernel, donate_argnums=0)


def hmc_step(state, key):
    return hmc_kernel(state, key)


sample = hmc_step
"""

SVI = """
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

ROWS = 200


def model(data, labels):
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", data.shape[0]):
        numpyro.sample("labels", dist.Bernoulli(logits=data @ weights + bias), obs=labels)


OPTIMIZER = numpyro.optim.Adam(1e-2)
INFERENCE = SVI(model, AutoNormal(model), OPTIMIZER, Trace_ELBO())


def batch(rows=ROWS):
    return jnp.cos(jnp.arange(rows * 8.0)).reshape(rows, 8), jnp.arange(rows) % 2


def batches():
    return [batch(), batch(), batch()]


def initial_state():
    # Copies: the guide keeps the arrays themselves, which a donated state would delete.
    return jax.tree.map(jnp.copy, INFERENCE.init(jax.random.key(0), *batch()))


def svi_kernel(state, data, labels):
    return INFERENCE.update(state, data, labels)


svi_kernel = jax.jit(svi_kernel, donate_argnums=0)


def svi_step(state, data, labels):
    return svi_kernel(state, data, labels)


update = svi_step
"""

MCMC = """
import jax
import jax.numpy as jnp
from numpyro.infer import HMC, NUTS

ROWS, STEPS, DEPTH = 200, 10, 10


def potential(position):
    width = position["weights"].size
    data = jnp.cos(jnp.arange(ROWS * width, dtype=jnp.float32)).reshape(ROWS, width)
    logits = data @ position["weights"] + position["bias"]
    return jax.nn.softplus(logits).sum() + 0.5 * (position["weights"] ** 2).sum()


FIXED = dict(potential_fn=potential, step_size=1e-2, adapt_step_size=False, adapt_mass_matrix=False)
SAMPLERS = {
    "hmc": HMC(num_steps=STEPS, trajectory_length=None, **FIXED),
    "nuts": NUTS(max_tree_depth=DEPTH, **FIXED),
}


def initial_state(sampler):
    position = {"bias": jnp.zeros(()), "weights": jnp.zeros(8)}
    return SAMPLERS[sampler].init(jax.random.key(0), 0, position, (), {})


@jax.jit
def hmc_step(state):
    state = SAMPLERS["hmc"].sample(state, (), {})
    return state, state.accept_prob


@jax.jit
def nuts_step(state):
    state = SAMPLERS["nuts"].sample(state, (), {})
    return state, state.accept_prob
"""

MCMC_TESTS = """
import mcmc
import pytest
from perfsuite import call


@pytest.mark.parametrize("sampler", ["hmc", "nuts"])
def test_the_program(perf, sampler):
    perf.program(call(getattr(mcmc, f"{sampler}_step"), mcmc.initial_state(sampler)))
"""

HMC_TESTS = """
import hmc
import jax
from perfsuite import Budget, call

KEYS = list(jax.random.split(jax.random.key(0), 4))


def step(function=None):
    return call(function or hmc.sample, hmc.initial_state(), KEYS[0], carry=1)


def test_no_step_recompiles(perf):
    perf.warm(hmc.sample, over=[step()])
    states = hmc.states()
    with perf.no_compiles():
        for state in states:
            for key in KEYS:
                state, _ = hmc.sample(state, key)


def test_what_a_step_costs_the_host(perf):
    perf.host_calls(step())


def test_the_programs_that_a_step_runs(perf):
    perf.dispatches(step())


def test_the_program(perf):
    perf.program(step(hmc.hmc_kernel))
    perf.donation(step(hmc.hmc_kernel), budget=Budget(undonated=0))
"""

SVI_TESTS = """
import jax
import svi
from perfsuite import Budget, call


def step(function=None):
    return call(function or svi.update, svi.initial_state(), *svi.batch(), carry=1)


def test_no_step_recompiles(perf):
    perf.warm(svi.update, over=[step()])
    state, batches = svi.initial_state(), svi.batches()
    with perf.no_compiles():
        for batch in batches:
            state, _ = svi.update(state, *batch)


def test_what_a_step_costs_the_host(perf):
    perf.host_calls(step())


def test_the_programs_that_a_step_runs(perf):
    perf.dispatches(step())


def test_the_program(perf):
    perf.program(step(svi.svi_kernel))
    perf.donation(step(svi.svi_kernel), budget=Budget(undonated=0))
"""

PROJECTS = {"hmc": (HMC, HMC_TESTS), "svi": (SVI, SVI_TESTS), "mcmc": (MCMC, MCMC_TESTS)}


@pytest.fixture(scope="module")
def saved():
    """The baselines of each project, once they are saved."""
    return {}


@pytest.fixture
def planted(pytester, saved, no_fresh_process):
    """Saves the baselines of a project, changes lines of it, and returns what its perf tests, or one, say then."""

    def run(project, *changes, test=""):
        source, tests = PROJECTS[project]
        pytester.makeini("[pytest]\naddopts = -p no:cacheprovider\npythonpath = .\n")
        pytester.makepyfile(**{project: source, f"test_{project}": tests})
        baselines = pytester.path / "baselines" / "cpu.json"
        if project not in saved:
            result = pytester.runpytest("--perf-save")
            assert result.ret == 0, result.outlines
            saved[project] = baselines.read_text()
        baselines.parent.mkdir(exist_ok=True)
        baselines.write_text(saved[project])
        changed = source
        for old, new in changes:
            assert changed.count(old) == 1, old
            changed = changed.replace(old, new)
        pytester.makepyfile(**{project: changed})
        result = pytester.runpytest("--perf", f"test_{project}.py{test and '::' + test}")
        return result.ret, "\n".join(result.outlines)

    return run


DRAWN = "    return hmc_kernel(state, key)\n"
UPDATED = "    return svi_kernel(state, data, labels)\n"
PASS = "    state = jax.tree.map(lambda leaf: leaf, state)\n"
TREE_PASS = r"host calls is \d+ calls, .* over the baseline \d+ calls?; .*jax._src.tree:map at \w+.py:\d+ in "

CAUGHT = {
    "another shape": (
        "hmc",
        "test_no_step_recompiles",
        [("[initial_state(), initial_state()]", "[initial_state(), initial_state(9)]")],
        r"`hmc_kernel` was traced again at (.|\n)*args\[0\].position\['weights'\]: shape was \(8,\), is \(9,\)",
    ),
    "a weak type": (
        "hmc",
        "test_no_step_recompiles",
        [
            (
                "[initial_state(), initial_state()]",
                "[initial_state(), initial_state()._replace(logdensity=jnp.asarray(-138.6))]",
            )
        ],
        r"`hmc_kernel` was traced again at (.|\n)*args\[0\].logdensity: weak type was False.*, is True",
    ),
    "a pass over the state in Python": (
        "hmc",
        "test_what_a_step_costs_the_host",
        [(DRAWN, PASS + DRAWN)],
        TREE_PASS + "hmc_step",
    ),
    "a pass over the state in a function of another name": (
        "hmc",
        "test_what_a_step_costs_the_host",
        [(DRAWN, PASS + DRAWN), ("def hmc_step", "def checked_step"), ("sample = hmc_step", "sample = checked_step")],
        "checked_step " + TREE_PASS + "checked_step",
    ),
    "a second call of the kernel": (
        "hmc",
        "test_the_programs_that_a_step_runs",
        [(DRAWN, "    state, _ = hmc_kernel(state, key)\n" + DRAWN)],
        r"hmc_step dispatches is 2 \w+, \+1\b.* over the baseline 1 program; grew: hmc_kernel \(\+1\) at hmc.py:\d+",
    ),
    "an operation outside jit": (
        "svi",
        "test_the_programs_that_a_step_runs",
        [(UPDATED, "    state, loss = svi_kernel(state, data, labels)\n    return state, loss + 0\n")],
        r"svi_step eager operations is 1 \w+, \+1\b.* over the baseline 0 operations; grew: add \(\+1\) at svi.py:\d+",
    ),
    "a step outside jit": (
        "hmc",
        "test_no_step_recompiles",
        [
            (
                DRAWN,
                "    state, info = sampler(state.position).step(key, state)\n    return state, info.acceptance_rate\n",
            )
        ],
        r"warm\(hmc_step, over=\[...\]\): entry 0: hmc_step compiled in each of 3 runs",
    ),
    "a state that is not donated": (
        "hmc",
        "test_the_program",
        [("hmc_kernel = jax.jit(hmc_kernel, donate_argnums=0)", "hmc_kernel = jax.jit(hmc_kernel)")],
        r"hmc_kernel undonated arrays is 5 arrays, over the budget(.|\n)*args\[0\].position\['weights'\]",
    ),
    "5 % more work in the kernel": (
        "hmc",
        "test_the_program",
        [("ROWS, STEPS = 200, 10", "ROWS, STEPS = 210, 10")],
        r"hmc_kernel flops is .* FLOP, \+\S+ % over the baseline",
    ),
    "11 integration steps for 10": (
        "hmc",
        "test_the_program",
        [("ROWS, STEPS = 200, 10", "ROWS, STEPS = 200, 11")],
        r"hmc_kernel flops is .* FLOP, \+9\S* % over the baseline",
    ),
    "15 integration steps for 10": (
        "hmc",
        "test_the_program",
        [("ROWS, STEPS = 200, 10", "ROWS, STEPS = 200, 15")],
        r"hmc_kernel flops is .* FLOP, \+4\S* % over the baseline",
    ),
    "11 steps of numpyro's HMC for 10": (
        "mcmc",
        "test_the_program[hmc]",
        [("STEPS, DEPTH = 200, 10, 10", "STEPS, DEPTH = 200, 11, 10")],
        r"hmc_step flops is .* FLOP, \+9\S* % over the baseline",
    ),
    "trees of depth 11 for 10 in numpyro's NUTS": (
        "mcmc",
        "test_the_program[nuts]",
        [("STEPS, DEPTH = 200, 10, 10", "STEPS, DEPTH = 200, 10, 11")],
        r"nuts_step flops is about .* FLOP, \+9\S* % over the baseline(.|\n)*the most that may run: .*while at mcmc.py:\d+",
    ),
    "a smaller last batch": (
        "svi",
        "test_no_step_recompiles",
        [("[batch(), batch(), batch()]", "[batch(), batch(), batch(192)]")],
        r"`svi_kernel` was traced again at (.|\n)*args\[1\]: shape was \(200, 8\), is \(192, 8\)",
    ),
    "a pass over the state of SVI in Python": (
        "svi",
        "test_what_a_step_costs_the_host",
        [(UPDATED, PASS + UPDATED)],
        TREE_PASS + "svi_step",
    ),
    "a state of SVI that is not donated": (
        "svi",
        "test_the_program",
        [("svi_kernel = jax.jit(svi_kernel, donate_argnums=0)", "svi_kernel = jax.jit(svi_kernel)")],
        r"svi_kernel undonated arrays is \d+ arrays, over the budget",
    ),
    "a second particle": (
        "svi",
        "test_the_program",
        [("OPTIMIZER, Trace_ELBO()", "OPTIMIZER, Trace_ELBO(num_particles=2)")],
        r"svi_kernel flops is .* FLOP, \+\S+ % over the baseline",
    ),
}


@pytest.mark.parametrize("plant", CAUGHT)
def test_a_regression_is_caught_and_named(planted, plant):
    project, test, changes, words = CAUGHT[plant]
    status, output = planted(project, *changes, test=test)
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert re.search(words, output), output


@pytest.mark.parametrize(
    ("project", "change"),
    [
        ("hmc", ("state, info.acceptance_rate", "state, info.energy")),
        (
            "mcmc",
            (
                'SAMPLERS["hmc"].sample(state, (), {})\n    return state, state.accept_prob',
                'SAMPLERS["hmc"].sample(state, (), {})\n    return state, state.energy',
            ),
        ),
        (
            "svi",
            (
                "    return svi_kernel(state, data, labels)\n",
                "    state, loss = svi_kernel(state, data, labels)\n    return state, loss\n",
            ),
        ),
    ],
)
def test_a_change_that_costs_nothing_passes(planted, project, change):
    status, output = planted(project, change)
    assert status == 0, output
