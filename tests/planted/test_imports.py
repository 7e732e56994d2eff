"""An import that grows a start-up, planted in a module whose baseline is saved, is named with its line."""

LIBRARY = """
import textwrap

def wrap(text):
    return textwrap.fill(text)
"""

TESTS = """
import sys
from perfsuite import Budget

def test_start_up(perf):
    perf.imports("library", without=("jax",), budget=Budget(started_backends=0))
"""


def test_a_heavy_import_and_a_backend_at_import_are_named_with_their_lines(saved_project, pytester):
    (pytester.path / "heavy.py").write_text("import jax\n\nDEVICES = jax.devices\n")
    (pytester.path / "other.py").write_text("")
    tests = TESTS.replace('without=("jax",), ', "")
    gated = saved_project(LIBRARY, tests.replace("library", "model"))
    gated(LIBRARY)

    added = gated(f"import other\n{LIBRARY}")
    assert "model modules imported is 2 modules, " in added
    assert "grew: other (+1) at model.py:1" in added

    starts = gated(f"import heavy\n{LIBRARY}\nheavy.DEVICES()\n")
    assert "model backends started is 1 backend" in starts
    assert "likely cause: cpu: 1, first at model.py:8" in starts


def test_a_package_that_must_not_be_imported_is_named_with_the_lines_that_lead_there(project):
    project.makepyfile(
        library=f"import parts\n{LIBRARY}",
        parts="import jax\n",
        clean=LIBRARY,
        test_library=TESTS,
        test_clean=TESTS.replace("library", "clean"),
    )
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*BudgetExceeded: importing library imports jax",
            "*likely cause: library.py:1 imports parts",
            "*parts.py:1 imports jax",
        ]
    )
