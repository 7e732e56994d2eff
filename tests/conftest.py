"""Fixtures for the tests that run pytest inside pytest, and what keeps many tests in one process cheap."""

import gc
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

# A nested session in this process drops the modules that it was the first to import, and numpy's extension modules can
# be loaded only once. So whatever the nested sessions need is imported here, before any of them.
import equinox  # noqa: F401
import flax.nnx  # noqa: F401
import numpy.fft  # noqa: F401
import optax  # noqa: F401
import pytest
import scipy.special  # noqa: F401
import tabulate  # noqa: F401

import perfsuite

# The plugin's own modules too: what it imports only with --perf would be loaded anew by every nested session.
for _module in pkgutil.walk_packages(perfsuite.__path__, "perfsuite."):
    if not _module.name.startswith("perfsuite.workloads."):
        importlib.import_module(_module.name)


def pytest_collection_finish() -> None:
    """Take what the imports made out of the collector's sight: it is never garbage.

    Every timing begins with a full collection. Over the modules of jax, flax, optax and the tests one took 0.14 s, as
    often as not longer than the timing; over what the tests themselves make it takes next to nothing (2-core x86-64
    machine, Python 3.11, jax 0.10.2).
    """
    gc.collect()
    gc.freeze()


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


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A user's project with one jitted step in `steps.py`, whose gates sample for a moment only."""
    pytester.makepyfile(steps=STEP)
    pytester.makeini("[pytest]\naddopts = --perf-seconds=0.3 -p no:cacheprovider\npythonpath = .\n")
    return pytester


@pytest.fixture
def perf_test(project: pytest.Pytester):
    """Write `test_step.py` with one perf test around the lines given."""

    def write(*lines: str, **arguments) -> None:
        body = "\n".join(f"    {line}" for line in lines)
        project.makepyfile(test_step=f"from steps import *\n\ndef test_step(perf):\n{body}\n", **arguments)

    return write


@pytest.fixture
def run_suite(tmp_path: Path):
    """Run tests of the suite in a process of their own, with `plugin` loaded first: (exit status, output)."""

    def run(*tests: str, plugin: str = "") -> tuple[int, str]:
        (tmp_path / "planted.py").write_text(plugin)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-m", "pytest", "--perf", "-p", "planted", "-p", "no:cacheprovider"]
        command += ["--perf-seconds=30", *tests]  # a busy machine needs longer to be sure; a quiet one stops at once
        done = subprocess.run(
            command, cwd=Path(__file__).parent.parent, env=environment, capture_output=True, text=True, timeout=300
        )
        return done.returncode, done.stdout + done.stderr

    return run
