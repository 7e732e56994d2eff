"""An idle plugin must cost a session next to nothing. The milliseconds are in tests/perf/test_idle_plugin.py, and what
it imports in tests/perf/test_start_up.py.
"""

import pytest

from perfsuite import processes

IMPORTED = ["perfsuite", "perfsuite.options", "perfsuite.plugin"]
"""All that an idle session imports of perfsuite. What they import, pytest imports too."""
HEAVY = ("jax", "numpy", "scipy", "equinox", "filelock")


def test_an_idle_session_imports_three_modules(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins import numpy and jax
    pytester.makepyfile(
        f"""
        import sys

        def test_idle():
            assert sorted(name for name in sys.modules if name.startswith("perfsuite")) == {IMPORTED}
            assert not {{*{HEAVY}}} & {{*sys.modules}}
        """
    )
    result = pytester.runpytest_subprocess("-p", "perfsuite.plugin")
    result.assert_outcomes(passed=1)


COMPILED_AT_IMPORT = """
    import jax
    import jax.numpy as jnp

    X = jnp.ones(3)
    double = jax.jit(lambda x: x * 2)
    double(X)

    def test_it_is_warm(compile_counter{fixtures}):
        if jax.__version_info__ < (0, 12) or {active}:
            # All instruments. From jax 0.12 on that adds to JAX's context too, by jax.extend, which imports Pallas.
            from perfsuite import Perf

        with compile_counter.forbid():
            double(X)
"""


@pytest.mark.parametrize(("fixtures", "options"), [("", ()), (", perf", ("--perf",))], ids=["idle", "with --perf"])
def test_what_was_compiled_at_import_is_not_compiled_again(pytester, fixtures, options):
    """JAX compiles everything once more after a user context is made: too late where a test module is imported."""
    pytester.makepyfile(COMPILED_AT_IMPORT.format(fixtures=fixtures, active=bool(options)))
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1)


@pytest.mark.parametrize("named_by", ["-p", "a conftest"])
@pytest.mark.parametrize(("options", "copies"), [((), 0), (("--perf", "--collect-only"), 1)], ids=["idle", "--perf"])
def test_a_session_copies_its_environment_once_and_an_idle_one_never(pytester, monkeypatch, named_by, options, copies):
    launches = []

    class Counting(processes.Launch):
        @classmethod
        def of(cls, config, *arguments):
            launches.append(config)
            return super().of(config, *arguments)

    monkeypatch.setattr(processes, "Launch", Counting)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile("def test_it(): pass")
    if named_by == "a conftest":
        pytester.makeconftest("pytest_plugins = 'perfsuite.plugin'")
    arguments = ("-p", "perfsuite.plugin") if named_by == "-p" else ()
    assert pytester.runpytest_inprocess(*arguments, *options).ret == 0
    assert len(launches) == copies


def test_the_plugin_can_be_switched_off(pytester):
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess("-p", "no:perfsuite", "--perf")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*unrecognized arguments: --perf*"])
