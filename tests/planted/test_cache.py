"""What must be no part of a program is, or a program is not kept: the gate names it with its line, or with the reason."""

import pytest

MODEL = """
import socket
import jax
import jax.numpy as jnp

ACTIVATIONS = {"sin", "cos", "tanh", "exp", "log1p"}

@jax.jit
def step(x):
    for name in ACTIVATIONS:
        x = getattr(jnp, name)(x)
    x = x + sum(map(ord, socket.gethostname()))
    return x * (2 + jax.process_index())

@jax.jit
def control(x):
    for name in sorted(ACTIVATIONS):
        x = getattr(jnp, name)(x)
    return x
"""

TESTS = """
import jax
import jax.numpy as jnp
import pytest
from perfsuite import call
from model import control, step

X = jax.ShapeDtypeStruct((4,), jnp.float32)

@pytest.mark.parametrize("made", [step, control], ids=["planted", "control"])
class TestCache:
    def test_key(self, perf, made):
        perf.cache_key(call(made, X), processes=2)
"""

EPOCH = """
import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

def keep(on=True, seconds=0, size=-1):
    jax.config.update("jax_enable_compilation_cache", on)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", size)
    compilation_cache.reset_cache()

def named(name):
    def program(x):
        return jnp.sin(x) + len(name)
    program.__name__ = name
    return jax.jit(program)

@jax.jit
def prints(x):
    jax.debug.print("{}", x)
    return x

@jax.jit
def of_a_set(x):
    for name in {"sin", "cos", "tanh", "exp", "log1p"}:
        x = getattr(jnp, name)(x)
    return x

def epoch(x):
    keep()
    named("control")(x)
    prints(x)
    of_a_set(x)
    keep(seconds=1000)
    named("quick")(x)
    keep(size=10**9)
    named("small")(x)
    keep(on=False)
    named("switched_off")(x)
"""

OF_EPOCH = """
import jax
import numpy as np
import pytest
from perfsuite import call
from model import epoch

@pytest.fixture(autouse=True)
def cache_of_the_test():
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", "/nowhere")
    yield
    jax.config.update("jax_compilation_cache_dir", before)

def test_hits(perf):
    perf.cache_hits(call(epoch, np.ones(4, np.float32)))
"""


@pytest.fixture
def printed(pytester, monkeypatch):
    """What a project with this model and these tests prints; nothing of its processes is left behind."""

    def run(model, tests, **outcomes):
        temporary = pytester.mkdir("temporary")
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # processes start faster without the other plugins
        pytester.makepyfile(model=model, test_model=tests)
        result = pytester.runpytest_inprocess("--perf", "-p", "perfsuite.plugin")
        result.assert_outcomes(**outcomes)
        assert {path.suffix for path in temporary.iterdir()} <= {".lock"}
        return result.stdout

    return run


def test_a_set_a_host_name_and_a_process_index_are_named_with_their_lines(printed):
    """Their control, in the same class, has one key."""
    printed(MODEL, TESTS, passed=1, failed=1).fnmatch_lines(
        [
            "*BudgetExceeded: step has 2 keys in 2 processes*",
            "*likely cause: the program differs in * lines of StableHLO*",
            "*line *, from model.py:10 in step",
            "*process 1: %0 = *",
            "*process 2: %0 = *",
            "*line *, from model.py:11 in step",
            "*process 1: *dense<*",
            "*process 2: *dense<*",
            "*line *, from model.py:12 in step",
            "*each process has its own answer to socket.gethostname() at model.py:11 in step, jax.process_index() at model.py:12 in step",
            "FAILED test_model.py::TestCache::test_key?planted?",
        ]
    )


def test_every_program_that_is_missed_is_named_with_the_reason(printed):
    """Only jax 0.10 keeps no program that calls Python."""
    said = printed(EPOCH, OF_EPOCH, failed=1)
    one_more = "found 2 in the cache" in str(said)
    assert one_more or "because it uses host callbacks" in str(said)
    said.fnmatch_lines(
        [
            f"*BudgetExceeded: epoch: the second process compiled {5 - one_more} programs, and found {1 + one_more} *",
            "*of_a_set: its key is another in each process: the program differs in * the same operations in another order*",
            "*line *, from model.py:* in of_a_set",
            "*first process: %0 = *",
            "*second process: %0 = *",
            "*quick: Not writing persistent cache entry for *quick* because it took < 1000.00 seconds to compile *",
            "*small: Not writing persistent cache entry * is less than threshold (1000000000 bytes)*",
            "*switched_off: JAX does not use its cache: jax_enable_compilation_cache is off*",
        ]
    )
