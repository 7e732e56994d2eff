"""What does not work with the libraries that are installed costs its own tests, which say so, and no baseline."""

import json

import pytest

LOST = """
from perfsuite.measure.private.capabilities import Capability

_lost = Capability.lost

def _lost_here(self):
    return "there is no jax._src.moved" if self.name in {names} else _lost(self)

Capability.lost = _lost_here

def pytest_unconfigure():
    Capability.lost = _lost
"""

TESTS = """
import unittest
import pytest
from steps import *

STEP = call(step, state(), batch(), carry=1)

def test_transfers(perf):
    perf.record("before", 1, unit="things", kind="count")
    perf.transfers(STEP, name="step")
    perf.record("after", 1, unit="things", kind="count")

def test_block(perf):
    perf.host_calls(STEP, name="step")
    with perf.no_transfers():
        pass

class TestMethods(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def own(self, perf):
        self.perf = perf

    def test_method(self):
        self.perf.count_transfers()

@pytest.fixture
def moved(perf):
    with perf.count_transfers() as counted:
        yield counted

def test_fixture(moved):
    pass

def test_record(perf):
    perf.record("recorded", 1, unit="things", kind="count")
"""

METHOD = """class TestStep(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def own(self, perf):
        self.perf = perf

    def test_step(self):
        """

SAID = (
    "perf.transfers does not work with jax * (perfsuite * knows 0.10.0 to *): it has to see what moves between host "
    "and device. *docs/upgrading_jax.md*"
)


@pytest.fixture
def losing(project):
    """Take capabilities away, by their names."""

    def lose(*names):
        project.makeconftest(LOST.format(names=names))

    return lose


def saved(project):
    return json.loads((project.path / "baselines" / "cpu.json").read_text(encoding="utf-8"))["metrics"]


def test_tests_of_what_is_lost_are_skipped_and_their_metrics_are_not_missing(project, losing):
    project.makepyfile(test_moving=TESTS)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=5)
    before = saved(project)
    losing("transfers")
    result = project.runpytest_inprocess("--perf", "-rs")
    result.assert_outcomes(passed=1, skipped=4)
    assert result.ret == 0
    lines = [line for line in result.outlines if "does not work with" in line]
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    result.stdout.fnmatch_lines([f"SKIPPED [[]1[]] test_moving.py:*: {SAID}"])
    assert len(skipped) == 4
    assert not any("jax._src.moved" in line for line in lines)
    # One line for all that was skipped, and for the metrics that they do not make.
    assert len(lines) == len(skipped) + 1
    result.stdout.fnmatch_lines(
        ["*metrics of 3 tests: *7 not comparable*", "4 tests skipped: *does not work with jax*"]
    )
    result.stdout.no_fnmatch_line("* missing*")
    result.stdout.no_fnmatch_line("not comparable: *")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1, skipped=4)
    assert saved(project) == before


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "in a worker"])
def test_metrics_of_a_test_that_its_fixture_ends_are_not_comparable(project, losing, options):
    project.makepyfile(
        test_moving="""
        import pytest
        from steps import *

        @pytest.fixture
        def watched(perf):
            with perf.count_transfers():
                yield

        def test_step(watched, perf):
            perf.record("answer", 1, unit="things", kind="count")
        """
    )
    project.runpytest("--perf-save").assert_outcomes(passed=1)
    before = saved(project)
    losing("transfers")
    result = project.runpytest("--perf", *options)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["1 metric of 1 test: 1 not comparable", "1 test skipped: *does not work with jax*"])
    project.runpytest("--perf-save").assert_outcomes(skipped=1)
    assert saved(project) == before


def test_strictly_they_fail(project, losing):
    project.makepyfile(test_moving=TESTS)
    losing("transfers")
    result = project.runpytest_inprocess("--perf", "--perf-strict", "-k", "test_transfers or test_fixture")
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines([f"*{SAID}(--perf-strict)"])
    result.stdout.no_fnmatch_line("*tests skipped*")


def test_host_calls_are_counted_where_programs_cannot_be(project, perf_test, losing):
    perf_test("perf.host_calls(call(step, state(), batch(), carry=1), name='step')")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    before = saved(project)
    losing("program runs")
    result = project.runpytest_inprocess("--perf", "--perf-strict")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["3 metrics of 1 test: 2 not comparable, 1 pass", "not comparable: 2 perf.dispatches does not work with jax *"]
    )
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    assert saved(project) == before


@pytest.mark.parametrize("kind", ["function", "method"])
def test_what_was_measured_before_is_judged(project, losing, kind):
    body = "{perf}.host_calls(call({fn}, state()), name='step')\n{indent}{perf}.count_transfers()"
    slow = "lambda s: [jax.tree.map(lambda x: x, s) for _ in range(9)]"
    for fn in ("lambda s: s", slow):
        if kind == "function":
            test = "def test_step(perf):\n    " + body.format(perf="perf", fn=fn, indent=" " * 4)
        else:
            test = METHOD + body.format(perf="self.perf", fn=fn, indent=" " * 8)
        project.makepyfile(test_moving=f"import jax, pytest, unittest\nfrom steps import *\n\n{test}\n")
        result = project.runpytest_inprocess("--perf-save" if fn != slow else "--perf")
        losing("transfers")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*step host calls is * over the baseline *"])


@pytest.mark.parametrize("caught", ["except Exception: pass", "except Exception as error: raise ValueError from error"])
def test_no_except_of_a_test_takes_a_loss_for_an_error_of_its_own(project, perf_test, losing, caught):
    perf_test(f"try: perf.transfers(call(step, state(), batch(), carry=1))\n    {caught}")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    before = saved(project)
    losing("transfers")
    project.runpytest_inprocess("--perf-save").assert_outcomes(skipped=1)
    assert saved(project) == before


def test_what_a_measurement_finds_to_be_lost_skips_its_test_too(project, perf_test, losing):
    perf_test("perf.scaling(lambda size: (call(step, state(), batch()), size), [1, 2, 3], metric='traces')")
    losing("first calls")
    result = project.runpytest_inprocess("--perf", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*does not work with jax*where a first call traces and lowers*"])
