"""`perf.program` in a user's session: refusals, budgets, names, the cache, and what a failure says of the program."""

import json

import pytest
from support.libtpu_needed import needs_libtpu

from perfsuite.measure.targets.target_available import TargetUnavailable
from perfsuite.report.perfetto import TIMELINES

pytestmark = [needs_libtpu, pytest.mark.usefixtures("warm_compilers")]

HEAD = """
import jax
import jax.numpy as jnp
from perfsuite import Budget, call

X = jnp.ones((64, 64))
step = jax.jit(lambda x: x @ x + 1)
"""


@pytest.fixture
def project(pytester, no_fresh_process):
    """A project that has pytest's cache, unlike the other tests' ones."""
    pytester.makeini("[pytest]\naddopts = --perf-seconds=0.3\n")
    return pytester


@pytest.fixture
def run(project):
    def run(body, *arguments, target="tpu-v5e"):
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        project.makepyfile(test_it=f"{HEAD}\n\ndef test_it(perf, perf_target):\n{lines}\n")
        return project.runpytest_inprocess("--perf", f"--perf-target={target}", *arguments)

    return run


STEP = "perf.program(call(step, X), perf_target)"


def test_a_report_has_the_timelines_of_a_program_and_of_its_baseline_where_it_differs(project, run):
    def programs():
        report = json.loads((project.path / "out/report.json").read_text())
        return [program for test in report["tests"] for program in test["programs"]]

    run(STEP, "--perf-save").assert_outcomes(passed=1)
    run(STEP, "--perf-report=out").assert_outcomes(passed=1)
    (same,) = programs()
    assert (same["timeline"]["us"] > 0, same["timeline_before"]) == (True, None)
    names = [each["args"]["name"] for each in trace_of(project) if each["name"] == "process_name"]
    assert names == ["test_it.py::test_it[tpu-v5e] lambda tpu-v5e"]

    run("perf.program(call(jax.jit(lambda x: x.T @ x + 1), jnp.ones((512, 64))), perf_target)", "--perf-report=out")
    (changed,) = programs()
    assert changed["timeline_before"] == same["timeline"]
    assert changed["timeline"]["us"] > same["timeline"]["us"]
    assert len({each["pid"] for each in trace_of(project)}) == 2

    # On a CPU nothing is estimated: the file of the report before is gone.
    run("perf.program(call(step, X))", "--perf-report=out")
    assert [program["timeline"] for program in programs()] == [None]
    assert not (project.path / "out" / TIMELINES).exists()


def trace_of(project):
    return json.loads((project.path / "out" / TIMELINES).read_text())["traceEvents"]


def test_a_program_that_needs_more_memory_than_there_is_fails_with_the_compilers_reason(project, run):
    result = run(
        "big = jax.ShapeDtypeStruct((200_000, 200_000), jnp.float32)\nperf.program(call(step, big), perf_target)",
        "-v",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*BudgetExceeded: the compiler for tpu-v5e refused the program: *Ran out of memory*",
            "  lambda refused *1 *fail",
        ]
    )


def test_a_compiler_that_crashes_fails_the_test_and_not_the_session(project, run, monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--no_such_flag_of_libtpu=1")
    result = run(STEP)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the compiler for tpu-v5e crashed: *"])
    monkeypatch.delenv("LIBTPU_INIT_ARGS")
    run(STEP).assert_outcomes(passed=1)


@pytest.mark.parametrize(("limit", "outcome"), [(10**6, "passed"), (10**4, "failed")])
def test_a_budget_on_memory(run, limit, outcome):
    result = run(f"perf.program(call(step, X), perf_target, budget=Budget(peak_bytes={limit}))")
    result.assert_outcomes(**{outcome: 1})
    if outcome == "failed":
        result.stdout.fnmatch_lines(
            [
                "*peak bytes @ tpu-v5e is * bytes, +* % over the budget of 10,000 bytes",
                "*likely cause: alive at the peak: *args?0? (32,768 bytes), f32?64,64? of add in <lambda> (test_it.py) (32,768 bytes) at test_it.py:?*",
            ]
        )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("perf.program(call(step, X), 'tpu-v99')", "no target 'tpu-v99': there are tpu-v4*"),
        (
            "perf.program(call(step, X), perf_target, budget=Budget(ratio=1))",
            "perf.program does not check Budget(ratio=*",
        ),
        ("perf.program(call(step, X), chips=4)", "*present device is what it is"),
        ("perf.program(call(step, X), perf_target, chips=0)", "*chips*"),
        (
            "perf.program(call(step, X), perf_target, slices=2)",
            "slices=2 cannot share the 1 device of the program equally*",
        ),
    ],
)
def test_bad_arguments_are_errors_that_say_what_to_do(run, body, message):
    result = run(body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E *{message.replace('[', '[[]')}"])
    result.stdout.no_re_match_line(r".*perfsuite/\S*\.py:\d+: ")  # the user's line alone


def test_metrics_of_the_same_function_and_of_two_devices_stand_side_by_side(run):
    result = run(f"{STEP}\n{STEP}\nperf.program(call(step, X))", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines_random(
        ["  lambda flops @ tpu-v5e *", "  lambda #2 flops @ tpu-v5e *", "  lambda flops *"]
    )


def test_what_was_known_of_a_program_is_not_missing_once_all_of_it_is_known(project, run):
    made = "perf.program(call(jax.jit(lambda x: jnp.linalg.{}(x)[0]), X), perf_target)"
    run(made.format("eigh"), "--perf-save").assert_outcomes(passed=1)
    result = run(made.format("qr"), "--perf-report=report")
    rows = json.loads((project.path / "report/report.json").read_text())["tests"][0]["results"]
    verdicts = {row["title"]: row["verdict"] for row in rows}
    assert {verdict for title, verdict in verdicts.items() if " known " in title} == {"not comparable"}, result.stdout


def unavailable(platform):
    raise TargetUnavailable('libtpu is not installed: pip install "perfsuite[tpu]"')


def test_without_the_compiler_a_test_is_skipped_and_fails_under_strict(project, run, monkeypatch):
    from perfsuite.measure.targets import target_compiler

    monkeypatch.setattr(target_compiler, "check_available", unavailable)
    result = run(STEP)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(['1 test skipped: *pip install "perfsuite*"'])
    result = run(STEP, "--perf-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(['*pip install "perfsuite*"*--perf-strict*'])


def test_without_the_compiler_a_test_that_has_baselines_fails_unless_that_is_allowed(project, run, monkeypatch):
    from perfsuite.measure.targets import target_compiler

    run(STEP, "--perf-save").assert_outcomes(passed=1)
    before = (project.path / "baselines/tpu-v5e.json").read_bytes()
    monkeypatch.setattr(target_compiler, "check_available", unavailable)
    result = run(f"perf.record('calls', 3, unit='calls', kind='count')\n{STEP}", "-v")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ['lambda *not measured: *pip install "perfsuite*"*--perf-allow-missing', "  calls * new"]
    )
    run(STEP, "--perf-allow-missing").assert_outcomes(skipped=1)
    run(STEP, "--perf-save").assert_outcomes(skipped=1)
    assert (project.path / "baselines/tpu-v5e.json").read_bytes() == before


SECTION = "*differences from the baseline's program:"
PLANTED = STEP.replace("step", "jax.jit(lambda x: jnp.sort(x @ x) + 1)")


def test_the_cache_is_used_and_said_to_be(run):
    run(STEP).stdout.fnmatch_lines(["1 program: 1 compiled, 0 from the cache (.pytest_cache/d/perfsuite)"])
    run(STEP).stdout.fnmatch_lines(["1 program: 0 compiled, 1 from the cache (.pytest_cache/d/perfsuite)"])
    run(STEP, "-p", "no:cacheprovider").stdout.fnmatch_lines(["1 program: 1 compiled, 0 from a cache"])


def test_a_failure_shows_the_programs_difference_as_long_as_that_of_the_baseline_is_known(project, run):
    run(STEP, "--perf-save").assert_outcomes(passed=1)
    result = run(PLANTED)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([SECTION, "  fusions: *", "  + 1 x *"])
    without = run(PLANTED, "-p", "no:cacheprovider")
    without.assert_outcomes(failed=1)
    without.stdout.no_fnmatch_line(SECTION)
    path = project.path / "baselines" / "tpu-v5e.json"
    baselines = json.loads(path.read_text())
    (metrics,) = baselines["metrics"].values()
    metrics["program flops"]["value"] -= 1  # saved elsewhere since
    path.write_text(json.dumps(baselines))
    stale = run(PLANTED)
    stale.assert_outcomes(failed=1)
    stale.stdout.no_fnmatch_line(SECTION)


def test_parallel_workers_compile_each_program_once(project, run):
    tests = "\n".join(f"def test_{i}(perf):\n    perf.program(call(step, X), 'tpu-v5e')" for i in range(4))
    project.makepyfile(test_many=f"{HEAD}\n{tests}\n")
    result = project.runpytest_subprocess("--perf-save", "-n", "2", "test_many.py")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["4 programs: 1 compiled, 3 from the cache*"])
