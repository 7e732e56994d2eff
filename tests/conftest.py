"""Fixtures for the tests that run pytest inside pytest, and what keeps many tests in one process cheap."""

import compileall
import gc
import importlib
import os
import pkgutil
import signal
import sys
from pathlib import Path

# A nested session in this process drops the modules that it was the first to import, and numpy's extension modules can
# be loaded only once. So whatever the nested sessions need is imported here, before any of them.
import equinox  # noqa: F401
import flax.nnx  # noqa: F401
import jax
import numpy.fft  # noqa: F401
import optax  # noqa: F401
import pytest
import scipy.special
import scipy.stats  # noqa: F401

import perfsuite
from perfsuite.session import fresh
from perfsuite.session.modes import Answer

# Hundreds of processes of the tests import perfsuite, in sessions of pytest with assertions rewritten. Where Python may
# keep no compiled modules, as in many containers, each would compile all of it, which takes 0.5 s.
_kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
compileall.compile_dir(perfsuite.__path__[0], quiet=2)
# The plugin's own modules too: what it imports only with --perf would be loaded anew by every nested session.
for _module in pkgutil.walk_packages(perfsuite.__path__, "perfsuite."):
    if not _module.name.startswith("perfsuite.workloads."):
        importlib.import_module(_module.name)
sys.dont_write_bytecode = _kept

# Nested sessions with --perf make it. JAX compiles everything once more after that, so not in the middle of a test.
perfsuite.measure.private.compile_events.make_context()


@pytest.fixture(autouse=True, scope="module")
def what_was_there_before_is_out_of_the_collectors_sight():
    """What imports and the tests of other modules left stays anyway: in caches of JAX, in what pytest keeps.

    Every timing begins with a full collection. Over the modules of jax, flax, optax and the tests one took 0.14 s, as
    often as not longer than the timing; over what the tests of a module make it takes next to nothing (2-core x86-64
    machine, Python 3.11, jax 0.10.2).
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def bytecode_of_nested_sessions_is_not_kept(request, monkeypatch):
    """A test that changes a file twice in a second, to the same length, would run the bytecode of the first change."""
    if "pytester" in request.fixturenames:
        monkeypatch.setattr(sys, "dont_write_bytecode", True)


LONGEST = (
    "docs/test_docs.py",
    "planted/test_traces.py",
    "planted/test_programs.py",
    "measure/targets/test_target_compiler.py",
    "against/test_check.py",
    "workloads/bert/test_bert.py",
    "workloads/surgery/test_sharding.py",
    "against/test_bisection.py",
    "workloads/surgery/test_start_up.py",
    "promise/test_sessions.py",
    "workloads/gpt2/test_generation.py",
    "workloads/training/test_training.py",
    "integration/test_gating.py",
)
"""The files that take longest, 20 seconds and more each."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: a worker that came to one last would leave the other idle.

    With `--dist loadfile` it does so only with `--no-loadscope-reorder`: xdist sorts files by the number of tests.
    """
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    here = Path(__file__).parent
    items.sort(key=lambda item: ranks.get(os.path.relpath(item.path, here), len(ranks)))


@pytest.fixture(scope="module")
def quick_to_compile():
    """Programs that XLA makes as ever, and LLVM optimises less.

    A train step of `workloads/surgery/test_sharding.py` takes 2.2 s of the processor to compile, not 5.3 (jax 0.10.2).
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # processes that a test starts round as this one does
        yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def well_compiled():
    """All of LLVM's optimisations after all, for one test of a module that is `quick_to_compile`.

    With fewer, a rematerialised layer of BERT rounds otherwise than one that is not; and where a program computes much,
    that takes longer than LLVM does (`test_dropout_keeps_the_mean`: 7.6 s, not 1.1).
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


STEP = """
import jax
import jax.numpy as jnp
import numpy as np
from perfsuite import Budget, call

@jax.jit
def step(state, batch):
    return {name: value + batch.sum() for name, value in state.items()}, batch.mean()

def state():
    return {f"weight{i}": jnp.ones((4, 4)) for i in range(20)}

def batch(n=8):
    return jnp.ones((n,))
"""
"""A train step small enough to compile in a blink; every nested project starts with it as `steps.py`."""


_LEFT_OUT = ("hypothesispytest", "jaxtyping"), ("asyncio", "pytest_cov", "pytest-split", "randomly", "rerunfailures")
FEWER_PLUGINS = " ".join(f"-p no:{plugin}" for plugins in _LEFT_OUT for plugin in plugins)
"""Of sessions inside tests, which use none of them: to load Hypothesis and jaxtyping takes a process 0.8 s, and the
others are there for `integration/test_beside.py`."""


@pytest.fixture(autouse=True)
def _environment_of_sessions(monkeypatch: pytest.MonkeyPatch):
    """Sessions inside tests must not annotate a real run, nor write its summary, nor take themselves for its workers.

    And they start with fewer plugins.
    """
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_ADDOPTS", FEWER_PLUGINS)


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Pytest's own, which takes the options out of the environment, with those of all sessions inside tests."""
    monkeypatch.setenv("PYTEST_ADDOPTS", FEWER_PLUGINS)
    return pytester


EXIT_CODE = "perfsuite.measure.targets.target_compiler._exit_code"


@pytest.fixture
def interruptible():
    """SIGINT is a `KeyboardInterrupt`: a shell has it ignored in what a script starts with `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def _compilers():
    """The processes of `warm_compilers`."""
    from support.warm_compilers import WarmCompilers  # imports modules that are to be kept compiled, above

    compilers = WarmCompilers()
    yield compilers
    compilers.close()


@pytest.fixture(scope="module")
def warm_compilers(_compilers):
    """Programs for other devices are compiled in one process for all, not in one for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EXIT_CODE, _compilers.exit_code)
        yield


@pytest.fixture
def cold_compilers(warm_compilers, _compilers, monkeypatch: pytest.MonkeyPatch):
    """Each in a process of its own after all."""
    monkeypatch.setattr(EXIT_CODE, _compilers.own_process)


@pytest.fixture
def no_fresh_process(monkeypatch: pytest.MonkeyPatch):
    """No process that a session in this one starts confirms a failure: it takes seconds, and says the same."""

    def measure_again(config: pytest.Config, request: object):
        return Answer(failure="this test starts none")

    monkeypatch.setattr(fresh, "measure_again", measure_again)


@pytest.fixture
def project(pytester: pytest.Pytester, no_fresh_process) -> pytest.Pytester:
    """A user's project with one jitted step in `steps.py`, whose gates sample for a moment only, in one process."""
    pytester.makepyfile(steps=STEP)
    options = "--perf-seconds=0.3 -p no:cacheprovider"
    pytester.makeini(f"[pytest]\naddopts = {options}\npythonpath = .\n")
    return pytester


@pytest.fixture
def perf_test(project: pytest.Pytester):
    """Write `test_step.py` with one perf test around the lines given."""

    def write(*lines: str, **arguments) -> None:
        body = "\n".join(f"    {line}" for line in lines)
        project.makepyfile(test_step=f"from steps import *\n\ndef test_step(perf):\n{body}\n", **arguments)

    return write
