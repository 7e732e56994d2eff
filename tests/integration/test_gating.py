"""The gate end to end: a user's perf test passes, a regression is planted, the build fails and says why.

Every planted regression has its control: the same test without the plant stays green.
"""

import sys

import pytest
from support.busy import busy_neighbours
from support.one_processor import on_one_processor

HOST_CALLS = "perf.host_calls(call(train, state(), batch(), carry=1))"
PLAIN = ["def train(state, batch):", "    return step(state, batch)"]
EXTRA_PASS = [
    "def train(state, batch):",
    "    state = jax.tree.map(lambda leaf: leaf, state)",
    "    return step(state, batch)",
]


def failed(result: pytest.RunResult, *lines: str) -> None:
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(list(lines))


def green(result: pytest.RunResult, **outcomes: int) -> None:
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(**(outcomes or {"passed": 1}))


def test_a_recompilation_fails_and_names_the_argument(project, perf_test):
    lines = ["warm = perf.warm(step, over=[(state(), batch(8))])", "ragged = batch({})", "with perf.no_compiles():"]
    lines.append("    warm(state(), ragged)")
    perf_test(*[line.format(8) for line in lines])
    green(project.runpytest_inprocess("--perf"))
    perf_test(*[line.format(6) for line in lines])
    failed(project.runpytest_inprocess("--perf"), "*RecompilationError: *step*", "*shape was (8,), is (6,)*")


def test_one_extra_pytree_pass_on_the_host_fails_and_names_the_function(project, perf_test):
    perf_test(*PLAIN, HOST_CALLS)
    green(project.runpytest_inprocess("--perf-save"))
    green(project.runpytest_inprocess("--perf"))
    perf_test(*EXTRA_PASS, HOST_CALLS)
    failed(
        project.runpytest_inprocess("--perf"),
        "*train host calls is * calls, * over the baseline * calls*train.<locals>.<lambda> (+20)*",
    )


def test_ten_percent_of_overhead_fails_its_budget_and_names_the_cause(project, perf_test):
    lines = [
        "from time import perf_counter, sleep",
        "def work(x):",
        "    end = perf_counter() + 2e-3",
        "    while perf_counter() < end: pass",
        "    return x",
        "def regressed(x):",
        "    end = perf_counter() + {}",
        "    while perf_counter() < end: pass",
        "    return work(x)",
        "perf.compare(call(regressed, batch()), call(work, batch()), Budget(ratio=1.05))",
    ]
    perf_test(*[line.format("0") for line in lines])
    green(project.runpytest_inprocess("--perf", "--perf-seconds=3"))
    perf_test(*[line.format("2e-4") for line in lines])
    failed(  # a quiet machine needs one second
        project.runpytest_inprocess("--perf", "--perf-seconds=40"),
        "*BudgetExceeded: regressed/work ratio to ready is * x [[]*, *], +* % over the budget of 1.05 x*",
        "*host calls against * of work*",
    )


def test_a_call_that_raises_while_its_cause_is_looked_for_does_not_hide_the_failure(project, perf_test):
    perf_test(
        "import sys",
        "def work(x): sum(range(5_000))",
        "def profiled_out(x):",
        "    if sys.getprofile(): raise RuntimeError('no profiler, please')",
        "    sum(range(100_000))",
        "perf.compare(call(profiled_out, batch()), call(work, batch()), Budget(ratio=1.05))",
    )
    failed(
        project.runpytest_inprocess("--perf"),
        "*BudgetExceeded: profiled_out/work ratio*",
        "*cause unknown: counting host calls raised RuntimeError: no profiler, please*",
    )


AGAINST_ITS_BASELINE = [
    "import itertools",
    "from time import sleep",
    "takes = itertools.cycle({})",
    "def work(x): sleep(2e-3); return x",
    "def candidate(x): sleep(next(takes)); return x",
    "perf.compare(call(candidate, batch()), call(work, batch()))",
]


@pytest.fixture
def against_its_baseline(project, perf_test):
    """Save the ratio of two calls that take 2 ms, and gate it when the calls of the candidate take these seconds in turn."""

    def gated(*seconds):
        perf_test(*[line.format("[2e-3]") for line in AGAINST_ITS_BASELINE])
        green(project.runpytest_inprocess("--perf-save", "--perf-seconds=1"))
        perf_test(*[line.format(list(seconds)) for line in AGAINST_ITS_BASELINE])
        return project.runpytest_inprocess("--perf", "--perf-seconds=3")

    return gated


def test_a_ratio_over_its_baseline_fails_when_the_test_ends(against_its_baseline):
    green(against_its_baseline(2e-3))
    failed(
        against_its_baseline(
            20e-3
        ),  # beside other processes a sleep lasts some ms more: far over the limit all the same
        "*candidate/work ratio to ready is * x [[]*], * over the baseline * x (limit +100 %)*",
        "*likely cause: candidate sleeps for * of its time before it returns, at test_step.py:*",
    )


def test_a_save_beside_other_processes_is_said(project, perf_test):
    perf_test(*[line.format([2e-3, *[12e-3] * 5]) for line in AGAINST_ITS_BASELINE])
    result = project.runpytest_inprocess("--perf-save", "--perf-seconds=1")
    green(result)
    result.stdout.fnmatch_lines(
        [
            "*: candidate/work ratio to ready is * x, and its gate fails from +* % on (limit * x): save it again on a machine*"
        ]
    )


@pytest.mark.skipif(sys.platform != "linux", reason="Linux gives a process one processor")
def test_a_slower_candidate_fails_beside_busy_processes_too(project, perf_test):
    """Both calls are of one kind, so a load slows both alike."""
    test = [
        "def work(x, rounds=20_000): return sum(range(rounds)), x",
        "def candidate(x): return work(x, {})",
        "perf.compare(call(candidate, batch()), call(work, batch()), tolerance=0.25)",
    ]
    perf_test(*[line.format(20_000) for line in test])
    green(project.runpytest_inprocess("--perf-save", "--perf-seconds=1"))
    with on_one_processor(), busy_neighbours(2):
        green(project.runpytest_inprocess("--perf", "--perf-seconds=20"))
        perf_test(*[line.format(40_000) for line in test])
        failed(project.runpytest_inprocess("--perf", "--perf-seconds=20"))


def test_a_tolerance_is_that_of_the_metric_else_of_the_marker_else_of_the_ini_file(project, perf_test):
    record = "perf.record('ratio', {}, unit='x', kind='ratio', interval=({}, {}){})"
    perf_test(record.format(1, 1, 1, ""))
    green(project.runpytest_inprocess("--perf-save"))
    slower = record.format(1.2, 1.2, 1.2, "")
    perf_test(slower)
    green(project.runpytest_inprocess("--perf"))
    ini = "--override-ini=perf_tolerance=0.1"
    failed(
        project.runpytest_inprocess("--perf", ini),
        "*ratio is 1.2 x [[]1.2, 1.2], +20 % over the baseline 1 x (limit +10 %)*",
    )
    marked = f"import pytest\n@pytest.mark.perf(tolerance=0.25)\ndef test_step(perf): {slower}"
    project.makepyfile(test_step=marked)
    green(project.runpytest_inprocess("--perf", ini))
    project.makepyfile(test_step=marked.replace("))", "), tolerance=0.15)"))
    failed(project.runpytest_inprocess("--perf", ini))


@pytest.mark.parametrize("value", ["-1", "nan", "25 %"])
def test_a_tolerance_of_the_ini_file_that_is_no_number_is_a_usage_error(project, value):
    result = project.runpytest_inprocess("--perf", f"--override-ini=perf_tolerance={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*the ini option perf_tolerance: must be a number above zero, got '{value}'"])


def test_a_test_that_fails_by_itself_keeps_its_own_message(project, perf_test):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')", "assert 1 == 2")
    failed(project.runpytest_inprocess("--perf"), "*assert 1 == 2*")


def test_a_metric_recorded_twice_under_one_name_is_refused(project, perf_test):
    perf_test(*["perf.record('fusions', 3, unit='fusions', kind='count')"] * 2)
    failed(project.runpytest_inprocess("--perf"), "*records 'fusions' twice*")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "perf.host_calls(call(lambda x: [len(x)] * 3, [1]), budget=Budget(host_calls=1))",
            "*lambda host calls is 2 calls, +100 % over the budget of 1*",
        ),
        (
            "perf.warm(jax.jit(lambda x: x), over=[(batch(2),), (batch(3),)], budget=Budget(compiles=1))",
            "*compiles to warm is 2 compiles, +100 % over the budget of 1*",
        ),
        (
            "perf.time(call(step, state(), batch(), carry=1), budget=Budget(p99_us=0.001))",
            "*step p99 is * us [[]*], +* % over the budget of 0.001 us*",
        ),
        (
            "perf.scaling(lambda n: (call(jax.jit(lambda x: x), [batch()] * n), n), [10, 50, 200], budget=Budget(us_per_leaf=1e-6))",
            "*to return per unit is * us/unit [[]*], +* % over the budget of 1e-06 us/unit*",
        ),
        (
            "perf.compare(call(step, state(), batch(), carry=1), call(jax.jit(lambda x: x), batch()), Budget(overhead_us=0.001))",
            "*overhead to ready is * us [[]*], +* % over the budget of 0.001 us*",
        ),
    ],
)
def test_every_budget_is_checked_by_its_instrument(project, perf_test, line, message):
    perf_test(line)
    failed(project.runpytest_inprocess("--perf"), message)
    generous = (
        line.replace("=1e-6)", "=1e9)").replace("=0.001)", "=1e9)").replace("=1)", "=2)").replace("carry=2", "carry=1")
    )
    perf_test(generous)
    green(project.runpytest_inprocess("--perf"))


ARGUMENTS = """
import jax.numpy as jnp
from perfsuite import call

def test_record(perf):
    perf.record("tokens", 100.0, unit="x", kind="ratio", interval={interval}, tolerance={tolerance})

def test_calls(perf):
    perf.host_calls(call(jnp.cumsum, jnp.ones(3)), name={name})
"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tolerance": "float('inf')"}, "*ValueError: tolerance= must be a number above zero, got inf"),
        ({"tolerance": "float('nan')"}, "*ValueError: tolerance= must be a number above zero, got nan"),
        ({"interval": "(1, 2)"}, "*ValueError: perf.record('tokens'): the interval (1, 2) must hold the value, *"),
        ({"interval": "100"}, "*TypeError: perf.record('tokens'): interval must be (low, high), two numbers, got 100"),
        ({"name": "3"}, "*TypeError: host_calls: name= must be a text, got 3"),
    ],
)
def test_an_argument_that_would_gate_nothing_or_end_the_session_fails_its_test_alone(project, given, said):
    """With an infinite tolerance, or one that is no number, a gate passed anything."""
    project.makepyfile(ARGUMENTS.format(**{"interval": "(99.0, 101)", "tolerance": "0.1", "name": "'sum'"} | given))
    result = project.runpytest_inprocess("--perf-save")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([said])
    assert (project.path / "baselines" / "cpu.json").exists(), "the other test is saved"


@pytest.mark.parametrize("skip", ["pytest.skip('no such device')", "unittest.TestCase().skipTest('no such device')"])
def test_a_test_that_skips_itself_fails_for_what_got_worse_before(project, perf_test, skip):
    lines = ["import pytest, unittest", "perf.record('calls', {}, unit='calls', kind='count')"]
    perf_test(*[line.format(1) for line in lines])
    green(project.runpytest_inprocess("--perf-save"))
    perf_test(*[line.format(1) for line in lines], skip)
    green(project.runpytest_inprocess("--perf"), skipped=1)
    perf_test(*[line.format(2) for line in lines], skip)
    failed(project.runpytest_inprocess("--perf"), "*calls is 2 calls, +1 (+100 %) over the baseline 1 call*")
