"""A user's project with a saved baseline, in which a regression is planted."""

from collections.abc import Callable

import pytest


@pytest.fixture(autouse=True, scope="module")
def _warm_compilers(warm_compilers):
    """One process compiles for all tests (`tests/support/warm_compilers.py`)."""


@pytest.fixture
def saved_project(pytester: pytest.Pytester) -> Callable[[str, str], Callable[[str], str]]:
    """`saved_project(model, tests)` saves the baselines of the tests and returns `gated`.

    `gated(source)` runs the tests with that source in place of the model's, and returns what is printed. Only the model
    as it was saved may pass.
    """

    def saved(model: str, tests: str) -> Callable[[str], str]:
        def gated(source: str) -> str:
            (pytester.path / "model.py").write_text(source)
            result = pytester.runpytest_inprocess("--perf")
            assert result.ret == (pytest.ExitCode.OK if source == model else pytest.ExitCode.TESTS_FAILED)
            return str(result.stdout)

        pytester.makepyfile(test_model=tests)
        pytester.makeini("[pytest]\npythonpath = .\n")
        (pytester.path / "model.py").write_text(model)
        assert pytester.runpytest_inprocess("--perf-save").ret == pytest.ExitCode.OK
        return gated

    return saved
