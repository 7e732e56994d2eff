"""Gates hold whatever a test is written with: methods of unittest, coroutines; and Hypothesis gets a hint."""

import pytest

UNITTEST = """
import unittest

import pytest
from perfsuite import call

class TestHost(unittest.{base}):
    @pytest.fixture(autouse=True)
    def _with_perf(self, perf):
        self.perf = perf

    {kind} test_calls(self):
        self.perf.host_calls(call(lambda x: [len(x) for _ in range({calls})], [1]), name="host")

    {kind} test_skips(self):
        self.perf.record("fusions", {calls}, unit="fusions", kind="count")
        self.skipTest("not here")

    {kind} test_fails(self):
        assert self.perf is None
"""


@pytest.mark.parametrize(("base", "kind"), [("TestCase", "def"), ("IsolatedAsyncioTestCase", "async def")])
def test_a_method_of_unittest_is_gated(pytester, base, kind):
    source = UNITTEST.replace("{base}", base).replace("{kind}", kind)
    pytester.makepyfile(test_it=source.replace("{calls}", "3"))
    pytester.runpytest_inprocess("--perf-save", "-Werror").assert_outcomes(passed=1, skipped=1, failed=1)
    pytester.runpytest_inprocess("--perf", "-Werror").assert_outcomes(passed=1, skipped=1, failed=1)
    pytester.makepyfile(test_it=source.replace("{calls}", "30"))
    worse = pytester.runpytest_inprocess("--perf")
    worse.assert_outcomes(failed=2, skipped=1)
    worse.stdout.fnmatch_lines(["host host calls is *over the baseline*"])


def test_a_test_of_hypothesis_is_refused_with_a_hint(pytester):
    pytester.makepyfile(
        """
        from hypothesis import HealthCheck, given, settings
        from hypothesis import strategies as st

        @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(n=st.integers())
        def test_any(perf, n):
            perf.record("n", n, unit="things", kind="count")
        """
    )
    result = pytester.runpytest_inprocess("--perf")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["perf measures a test's body once, and Hypothesis runs it many times:*"])


def test_what_nothing_would_judge_is_an_error(pytester):
    """When a fixture ends, and in another test, the baselines have been compared already."""
    pytester.makepyfile(
        """
        import pytest

        KEPT = []

        @pytest.fixture
        def measured(perf):
            yield
            perf.record("late", 1, unit="things", kind="count")

        @pytest.fixture
        def before(perf):
            perf.record("early", 1, unit="things", kind="count")

        def test_fixture(measured): pass

        def test_before(before): pass

        def test_given(perf): KEPT.append(perf)

        def test_another(perf):
            KEPT[0].record("stray", 1, unit="things", kind="count")
        """
    )
    result = pytester.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=3, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*MeasurementError: *test_fixture: late is recorded after the body of the test, when it is neither gated*",
            "*MeasurementError: *test_given: stray is recorded after the body of the test*",
        ]
    )
    result.stdout.no_fnmatch_line("*early is recorded after*")
