"""What a session with --perf imports of perfsuite: what its tests ask for, and nothing private of JAX before that."""

import re
import sys

import pytest

WITHOUT_A_PERF_TEST = re.compile(
    r"perfsuite(\.(plugin|options|hooks|gate|session|report|sources)\b.*"
    r"|\.processes|\.measure(\.(errors|installed|io|metric|peers|progress|serialise|words|compiler_stderr|compiles(\.observing)?"
    r"|private(\.\w+)?))?)?"
)
"""What may be imported where no test measures. A new module takes about half a millisecond of each session."""

RECORDING = """
import builtins, importlib, sys

_import, _import_module = builtins.__import__, importlib.import_module
PRIVATE = set()

def _note(name, frame):
    if str(frame.f_globals.get("__name__", "")).startswith("perfsuite") and name.startswith(("jax._src", "jaxlib._")):
        PRIVATE.add((name, frame.f_globals["__name__"]))

def _noting(name, globals=None, locals=None, fromlist=(), level=0):
    if not level:
        _note(name, sys._getframe(1))
        for each in fromlist or ():
            _note(f"{name}.{each}", sys._getframe(1))
    return _import(name, globals, locals, fromlist, level)

def _noting_module(name, package=None):
    _note(name, sys._getframe(1))
    return _import_module(name, package)

builtins.__import__, importlib.import_module = _noting, _noting_module
"""
"""Loaded as a plugin, before any other: what perfsuite imports of JAX's private tree, and from which module."""

SHOWING = """
import sys
import recording

def pytest_unconfigure():
    print("PRIVATE", sorted(recording.PRIVATE))
    print("IMPORTED", *sorted(name for name in sys.modules if name.split(".")[0] == "perfsuite"))
"""


@pytest.fixture
def session(pytester):
    """Run a session with --perf in a process of its own: the modules of perfsuite that it imports, and the private ones
    of JAX's that perfsuite does.
    """

    def run(test):
        pytester.makepyfile(recording=RECORDING, showing=SHOWING, test_it=test)
        plugins = "-p", "recording", "-p", "perfsuite.plugin", "-p", "showing"
        pytester.makeini("[pytest]\npythonpath = .\n")
        result = pytester.runpytest_subprocess(*plugins, "--perf", "-p", "no:cacheprovider")
        result.assert_outcomes(passed=1)
        said = {line.split()[0]: line.partition(" ")[2] for line in result.outlines if line[:4] in ("PRIV", "IMPO")}
        return said["IMPORTED"].split(), said["PRIVATE"]

    return run


def test_a_session_without_a_perf_test_imports_what_every_session_needs(session, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    imported, private = session("def test_plain(): pass")
    assert [name for name in imported if not WITHOUT_A_PERF_TEST.fullmatch(name)] == []
    assert len(imported) <= 45
    assert private == "[]"


def test_what_compiles_is_remembered_without_anything_private(session, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    imported, _ = session(
        """
        import jax, jax.numpy as jnp

        def test_plain():
            jax.jit(lambda x: x + 1)(jnp.ones(3))
        """
    )
    assert "perfsuite.measure.compiles.compiles" in imported


def test_a_test_imports_its_own_instrument(session, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    imported, private = session(
        """
        import jax, jax.numpy as jnp
        from perfsuite import call

        def test_step(perf):
            perf.host_calls(call(jax.jit(lambda x: x + 1), jnp.ones(3)))
        """
    )
    instruments = [name for name in imported if name.startswith("perfsuite.instruments.")]
    assert instruments == [f"perfsuite.instruments.{each}" for each in ("base", "host")]
    others = re.compile(r"perfsuite\.measure\.(program|targets|profiler|cache|first_call|timing|stats|hlo)\b.*")
    assert list(filter(others.match, imported)) == []
    assert len(imported) <= 110
    assert "jax._src" in private  # what the test above does not see can be seen


def test_an_instrument_that_fails_at_import_fails_the_tests_that_use_it(project, perf_test, monkeypatch):
    monkeypatch.setitem(sys.modules, "perfsuite.instruments.memory", None)
    project.makepyfile(
        test_both="""
        from steps import *

        def test_memory(perf):
            perf.memory(call(step, state(), batch()))

        def test_host_calls(perf):
            perf.host_calls(call(step, state(), batch()))

        def test_another_budget(perf):
            perf.host_calls(call(step, state(), batch()), budget=Budget(ratio=1))
        """
    )
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["*perfsuite.instruments.memory*", "*perf.host_calls does not check*perf.compare does*"]
    )


def test_conftest_files_and_test_modules_set_the_devices_before_the_backend_starts(pytester):
    pytester.mkdir("below")
    (pytester.path / "below/conftest.py").write_text("import jax\njax.config.update('jax_num_cpu_devices', 3)\n")
    (pytester.path / "below/test_mesh.py").write_text(
        "import jax\n"
        "def test_plain(): assert jax.device_count() == 3\n"
        "def test_perf(perf): perf.record('devices', jax.device_count(), unit='devices', kind='count')\n"
    )
    result = pytester.runpytest_subprocess("--perf", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["collected 2 items", "perfsuite: 3 x cpu *", "below/test_mesh.py ..*"])
