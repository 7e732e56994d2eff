"""What the terminal shows around the tests: the header and the summary of every gate."""

import jax
import pytest

pytestmark = pytest.mark.alone


def test_the_header_names_device_versions_and_baseline_file(project, perf_test):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    result = project.runpytest_inprocess("--perf")
    result.stdout.fnmatch_lines(
        [
            f"perfsuite: 8 x cpu (*), jax {jax.__version__}, jaxlib *, equinox *",
            "perfsuite: baselines baselines/cpu.json (no metrics yet: pytest --perf-save records them), size small",
        ]
    )
    project.runpytest_inprocess("--perf-save")
    result = project.runpytest_inprocess("--perf", "--perf-size=full")
    result.stdout.fnmatch_lines(["perfsuite: baselines baselines/cpu.json (1 metric), size full"])


def test_without_perf_there_is_no_header_and_no_summary(project, perf_test):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    result = project.runpytest_inprocess()
    result.stdout.no_fnmatch_line("*perfsuite:*")
    result.stdout.no_fnmatch_line("*metrics:*")


def test_the_summary_lists_every_gate_with_value_unit_limit_baseline_and_verdict(project, perf_test):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    project.runpytest_inprocess("--perf-save")
    perf_test(
        "perf.record('fusions', 3, unit='fusions', kind='count')",
        "perf.record('peak', 12345678, unit='bytes', kind='size')",
        "perf.record('compile seconds', 2.5, unit='s', kind='info')",
        "perf.host_calls(call(lambda x: [len(x)] * 3, [1]), budget=Budget(host_calls=5))",
    )
    result = project.runpytest_inprocess("--perf")
    result.stdout.fnmatch_lines(
        [
            "metric * value * unit * limit * from * baseline * verdict",
            "test_step.py::test_step",
            "  lambda host calls * 2 * calls * 5 * budget * pass",
            "  fusions * 3 * fusions * 3 * baseline * 3 * pass",
            "  peak * 12,345,678 * bytes * new",
            "  compile seconds * 2.5 * s * info",
            "  lambda host calls * 2 * calls * new",
            "new: 2 metrics have no baseline: pytest --perf-save records them",
            "5 metrics: 2 pass, 2 new, 1 info",
        ]
    )


def test_an_undecided_comparison_says_so_and_does_not_fail(project, perf_test):
    perf_test(
        "import random, time",
        "def noisy(x): time.sleep(random.choice([1e-3, 3e-3])); return x",
        "compared = perf.compare(call(noisy, batch()), call(noisy, batch()), Budget(ratio=1.0))",
        "assert compared.verdict == 'inconclusive'",
    )
    result = project.runpytest_inprocess("--perf", "--perf-seconds=0.5")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["inconclusive: *noisy/noisy ratio to ready is *, undecided against the budget of 1 x"])


def test_too_few_pairs_for_an_interval_are_inconclusive_and_never_gate(project, perf_test):
    perf_test(
        "import time",
        "def slow(x): time.sleep(0.06); return x",
        "compared = perf.compare(call(slow, batch()), call(slow, batch()), Budget(ratio=0.5))",
        "assert compared.verdict == 'inconclusive' and compared.pairs < 12",
    )
    result = project.runpytest_inprocess("--perf", "--perf-seconds=0.01")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "  slow/slow ratio to ready * 0.5 * budget * inconclusive",
            "inconclusive: *",
            "to settle it: *too few for an interval*",
        ]
    )
