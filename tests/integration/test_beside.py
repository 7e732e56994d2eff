"""Gates hold beside the plugins that people have: a control passes, a planted regression fails, and nothing is lost."""

import pytest

TESTS = """
from pathlib import Path
from time import sleep
from perfsuite import call

MORE = {more}

def work(n):
    return [len("") for _ in range(n)]

def test_control(perf):
    perf.host_calls(call(work, 3), name="host")

def test_planted(perf):
    perf.host_calls(call(work, 3 + MORE), name="host")

def test_noisy(perf):
    first = not Path("ran").exists()
    Path("ran").touch()
    perf.record("noisy", 3 + MORE * first, unit="things", kind="count")

def test_slow(perf):
    perf.record("before", 3, unit="things", kind="count")
    sleep(MORE)
"""
FAILS = ["host host calls is *over the baseline*"]


@pytest.fixture
def beside(pytester, monkeypatch, no_fresh_process):
    """Run the project's tests beside one plugin; no other is loaded. The baselines are saved without it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider --perf-seconds=0.1\n")
    pytester.makepyfile(test_it=TESTS.format(more=0))

    def run(module: str, *options: str, subprocess: bool = False):
        pytest.importorskip(module.partition(".")[0])
        runs = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
        return runs("-p", "perfsuite.plugin", "-p", module, *options)

    pytester.runpytest_inprocess("-p", "perfsuite.plugin", "--perf-save").assert_outcomes(passed=4)
    (pytester.path / "ran").unlink()
    pytester.makepyfile(test_it=TESTS.format(more=20).replace("sleep(MORE)", "pass"))
    return run


def baselines(pytester) -> str:
    return (pytester.path / "baselines" / "cpu.json").read_text()


SHUFFLED = """
import random

def pytest_collection_modifyitems(items):
    random.Random(3).shuffle(items)
"""


@pytest.mark.parametrize("module", ["shuffled", "pytest_randomly"])
def test_a_random_order_changes_nothing(pytester, beside, module):
    """pytest-randomly is not among what `dev` brings: it would shuffle every session of this suite."""
    pytester.syspathinsert()
    pytester.makepyfile(shuffled=SHUFFLED)
    result = beside(module, "--perf")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(FAILS)


def test_a_gate_that_passes_only_when_it_runs_again_is_said(pytester, beside):
    result = beside("pytest_rerunfailures", "--perf", "--reruns=1")
    assert result.parseoutcomes() == {"passed": 3, "failed": 1, "rerun": 2}
    result.stdout.fnmatch_lines(
        [
            *FAILS,
            "* metrics of 4 tests: * fail, * pass",
            "test_it.py::test_noisy passed only when it was run again; before, it failed: noisy is 23 things, +20*",
        ]
    )


def test_each_part_of_a_split_gates_and_saves_its_own_tests(pytester, beside):
    before = baselines(pytester)
    first, second = (
        beside("pytest_split.plugin", "--perf", "--splits=2", f"--group={group}").parseoutcomes() for group in (1, 2)
    )
    assert first == {"passed": 1, "failed": 1, "deselected": 2}
    assert second == first
    pytester.makepyfile(test_it=TESTS.format(more=0))
    beside("pytest_split.plugin", "--perf-save", "--splits=2", "--group=1").assert_outcomes(passed=2, deselected=2)
    assert baselines(pytester) == before


def test_a_coroutine_of_pytest_asyncio_is_gated(pytester, beside):
    pytester.makepyfile(
        test_async="""
        import asyncio
        import pytest
        from perfsuite import Budget, call
        from test_it import work

        @pytest.mark.asyncio
        @pytest.mark.parametrize("n", [3, 30])
        async def test_calls(perf, n):
            await asyncio.sleep(0)
            perf.host_calls(call(work, n), budget=Budget(host_calls=10))
        """
    )
    result = beside(
        "pytest_asyncio.plugin", "--perf", "test_async.py", "-o", "asyncio_default_fixture_loop_scope=function"
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*work host calls is *over the budget of 10 calls*"])


def test_a_timeout_fails_its_test_and_leaves_whole_baselines(pytester, beside):
    """One that ends the process saves nothing, one that ends the test saves the others."""
    before = baselines(pytester)
    pytester.makepyfile(test_it=TESTS.format(more=20))
    beside("pytest_timeout", "--perf", "--timeout=60", "-k", "planted or control").assert_outcomes(passed=1, failed=1)
    ended = beside("pytest_timeout", "--perf-save", "--timeout=3", "--timeout-method=thread", subprocess=True)
    assert ended.ret != 0
    assert baselines(pytester) == before
    failed = beside("pytest_timeout", "--perf-save", "--timeout=3", "--timeout-method=signal")
    failed.assert_outcomes(passed=3, failed=1)
    assert baselines(pytester) != before
    assert '"before"' in baselines(pytester)


def test_coverage_adds_no_host_calls_slows_no_timing_and_loses_no_lines(pytester, beside):
    pytester.makepyfile(
        test_timed="""
        import sys
        from perfsuite import call

        def traced(seen):
            seen.append(sys.gettrace() is not None)
            sorted([2, 1] * 1000)

        def test_time(perf):
            seen = []
            perf.time(call(traced, seen))
            assert not seen[-1]
            assert sys.gettrace() is not None
        """
    )
    result = beside(
        "pytest_cov.plugin", "--perf", "--cov=.", "--cov-report=term-missing", "--cov-fail-under=99", subprocess=True
    )
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines([*FAILS, "test_timed.py * 100%"])
