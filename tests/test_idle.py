"""An idle plugin must cost a session next to nothing. The milliseconds are in tests/perf/test_idle_plugin.py."""

import sys

HEAVY = ("jax", "numpy", "scipy", "equinox", "filelock", "tabulate")


def test_a_session_without_perf_imports_no_heavy_package(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins import numpy and jax
    pytester.makepyfile(f"import sys\ndef test_idle(): assert not {{*{HEAVY}}} & {{*sys.modules}}")
    result = pytester.runpytest_subprocess("-p", "perfsuite.plugin")
    result.assert_outcomes(passed=1)


def test_the_public_names_import_no_heavy_package(pytester):
    code = f"import sys, perfsuite; assert not {{*{HEAVY}}} & {{*sys.modules}}, sys.modules"
    assert pytester.run(sys.executable, "-c", code).ret == 0


def test_the_plugin_can_be_switched_off(pytester):
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess("-p", "no:perfsuite", "--perf")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*unrecognized arguments: --perf*"])
