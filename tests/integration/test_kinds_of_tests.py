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
