"""A metric is known by its test, its instrument and `name=`, or its place: sessions before and after a change."""

import json

import pytest

STEPS = """
import jax, jax.numpy as jnp
from perfsuite import call

inner = jax.jit(lambda x: x + 1)

def hmc_step(x):
    return inner(x)

def slow_step(x):
    for _ in range(20):
        len("more")
    return inner(x)

def measured(perf, step, **name):
    perf.host_calls(call(step, jnp.ones(3)), **name)
"""


@pytest.fixture
def change(project):
    """Write a test of these lines, and run it with these options."""

    def change(*lines, steps=STEPS, options=("--perf",)):
        body = "\n".join(f"    {line}" for line in lines) or "    pass"
        project.makepyfile(test_step=f"{steps}\ndef test_step(perf):\n{body}\n")
        return project.runpytest_inprocess(*options)

    return change


def recorded(project):
    return json.loads((project.path / "baselines/cpu.json").read_text())["metrics"]


def test_a_renamed_function_keeps_its_baseline_and_fails_where_it_got_worse(project, change):
    change("measured(perf, hmc_step)", options=["--perf-save"]).assert_outcomes(passed=1)
    renamed = STEPS.replace("hmc_step", "checked_step")
    change("measured(perf, checked_step)", steps=renamed).assert_outcomes(passed=1)
    worse = renamed.replace("    return inner(x)", "    len(str(x.shape))\n    return inner(x)")
    result = change("measured(perf, checked_step)", steps=worse)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["checked_step host calls is * over the baseline 1 call; *"])
    assert recorded(project)["test_step.py::test_step"]["host_calls"]["label"] == "hmc_step host calls"


def test_a_name_keeps_a_metric_whatever_its_place(project, change):
    calls = 'measured(perf, hmc_step, name="fast")', 'measured(perf, slow_step, name="slow")'
    change(*calls, options=["--perf-save"]).assert_outcomes(passed=1)
    assert {"host_calls:fast", "host_calls:slow"} <= set(recorded(project)["test_step.py::test_step"])
    result = change(*reversed(calls))
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*changed places*")


def test_a_metric_that_is_no_longer_made_fails_its_test_until_a_save_removes_it(project, change):
    change("measured(perf, hmc_step)", "measured(perf, slow_step)", options=["--perf-save"])
    result = change("measured(perf, hmc_step)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["slow_step host calls has a baseline of 21 calls and was not measured: *--perf-save*"])
    saved = change("measured(perf, hmc_step)", options=["--perf-save"])
    saved.assert_outcomes(passed=1)
    saved.stdout.fnmatch_lines(["baselines/cpu.json: 0 recorded, 3 removed, 3 kept", "    *slow_step host calls"])
    change("measured(perf, hmc_step)").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        (["assert False"], "failed"),
        (['pytest.skip("not today")'], "skipped"),
        (['pytest.xfail("known")'], "xfailed"),
    ],
)
def test_a_test_that_did_not_come_to_its_end_misses_nothing(change, lines, outcome):
    steps = f"import pytest\n{STEPS}"
    change("measured(perf, hmc_step)", steps=steps, options=["--perf-save"]).assert_outcomes(passed=1)
    result = change(*lines, steps=steps)
    result.assert_outcomes(**{outcome: 1})
    result.stdout.no_fnmatch_line("*missing*")


TWO = "def test_one(perf): perf.record('a', 1, unit='x', kind='count')\n"
OTHER = TWO.replace("test_one", "test_other")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (TWO, ["--perf"]),
        (TWO, ["--perf-only"]),
        (TWO + "def test_other(): pass\n", ["--perf"]),
        ("", ["--perf"]),
    ],
    ids=["gone", "gone, perf tests alone", "without perf", "an empty file"],
)
def test_a_test_that_is_gone_fails_the_session(project, text, options):
    path = project.makepyfile(test_two=TWO + OTHER)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=2)
    path.write_text(text)
    result = project.runpytest_inprocess(*options)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["test_two.py::test_* gone, or without perf*"])
    assert project.runpytest_inprocess("--perf-save").ret in (0, 5)
    assert project.runpytest_inprocess(*options).ret in (0, 5), "nothing is missing any more"


@pytest.mark.parametrize(
    "options",
    [["-k", "one"], ["--deselect", "test_two.py::test_other"], ["test_two.py::test_one"], ["-m", "not slow"], ["-x"]],
    ids=" ".join,
)
def test_a_test_that_is_not_run_is_not_gone(project, options):
    other = f"import pytest\n@pytest.mark.slow\n{OTHER}"
    project.makepyfile(test_two=TWO + other)
    project.makeini("[pytest]\nmarkers = slow")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=2)
    result = project.runpytest_inprocess("--perf", *options)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*missing*")


def test_files_that_are_skipped_whole_or_not_collected_lose_nothing_and_one_that_is_gone_does(project):
    path = project.makepyfile(test_two=TWO + OTHER)
    project.makepyfile(test_three=TWO)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=3)
    path.write_text("import pytest\npytest.skip('not here', allow_module_level=True)\n")
    assert project.runpytest_inprocess("--perf").ret == 0
    path.unlink()
    assert project.runpytest_inprocess("--perf", "test_three.py").ret == 0
    result = project.runpytest_inprocess("--perf")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["test_two.py::test_one is gone, or without perf*", "test_two.py::test_other is gone*"])


def test_the_ids_of_all_instruments_begin_with_their_names(project):
    project.makepyfile(
        test_all="""
        import jax, jax.numpy as jnp
        from perfsuite import call

        step = jax.jit(lambda x: x @ x)

        def test_all(perf):
            one = call(step, jnp.ones((200, 200)))
            perf.warm(step, [(jnp.ones(3),)])
            perf.time(one)
            perf.compare(one, call(step, jnp.ones((200, 200))))
            perf.compare(one, call(step, jnp.ones((200, 200))), until="return")
            perf.scaling(lambda size: (call(step, jnp.ones((size, size))), size), [2, 4], metric="host_calls")
            perf.host_calls(one)
            perf.host_calls(one)
            perf.fast_path(one)
            perf.transfers(one)
            perf.memory(one)
            perf.donation(call(lambda x: (step(x),), jnp.ones((200, 200)), carry=1))
            perf.program(one)
            perf.trace(one)
            perf.record("loss", 1, unit="x", kind="count")
        """
    )
    project.runpytest_inprocess("--perf-save", "--perf-seconds=0.2").assert_outcomes(passed=1)
    ids = set(recorded(project)["test_all.py::test_all"])
    assert {id for id in ids if not id.startswith(("memory ", "program ", "trace ", "transfers "))} == {
        *("warm compile seconds", "time to return", "time to ready", "time p99", "loss"),
        *(f"compare {what} to {until}" for what in ("ratio", "overhead") for until in ("ready", "return")),
        *(f"scaling host calls {what}" for what in ("per unit", "intercept", "R^2", "at 4")),
        *("host_calls", "host_calls #2", "fast_path misses"),
        *(f"host_calls{place} {what}" for place in ("", " #2") for what in ("dispatches", "eager operations")),
        *(f"donation {what}" for what in ("undonated arrays", "undonated bytes", "copied bytes")),
    }
    assert {"memory leaked arrays", "trace device", "transfers callbacks"} <= ids
    assert {"program flops", "program conditionals", "program lost donations"} <= ids
