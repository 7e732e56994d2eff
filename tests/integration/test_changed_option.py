"""--perf-changed: what runs as it did when it was saved is not timed again, and every plant is still caught."""

import json
import re
from pathlib import Path

import pytest

REPORT = "--perf-report=report"

SAVED = """
from steps import *

ROUNDS = 2

def host(state, batch):
    for _ in range(ROUNDS):
        jax.tree.map(lambda leaf: leaf, state)
    return step(state, batch)

def made(fn):
    return call(fn, state(), batch(), carry=1)

def sized(size):
    return call(jax.jit(lambda leaves: [leaf * 2 for leaf in leaves]), [jnp.ones(4)] * size), size

def test_time(perf): perf.time(made(host))
def test_compare(perf): perf.compare(made(host), made(step), Budget(ratio=1000), until="return")
def test_scaling(perf): perf.scaling(sized, [2, 20, 60])
def test_calls(perf): perf.host_calls(made(host))
"""
"""A test for each instrument that times, and one that counts."""


def verdicts(project: pytest.Pytester) -> dict[str, list[str]]:
    """By metric: its verdicts in the last report."""
    found: dict[str, list[str]] = {}
    for test in json.loads((project.path / "report" / "report.json").read_text())["tests"]:
        for metric in test["metrics"]:
            found.setdefault(metric["name"], []).append(metric["verdict"])
    return found


@pytest.fixture
def saved(project: pytest.Pytester) -> pytest.Pytester:
    project.makepyfile(test_step=SAVED)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=4)
    return project


def entries(project: pytest.Pytester) -> dict[str, dict]:
    (file,) = (project.path / "baselines").glob("*.json")
    metrics = json.loads(file.read_text())["metrics"]
    return {name: entry for test in metrics.values() for name, entry in test.items()}


def test_what_is_as_recorded_is_not_timed_and_counts_are_gated(saved, monkeypatch):
    for module in ("time.time_call", "scaling.fit_calls"):
        monkeypatch.setattr(f"perfsuite.instruments.timing.{module}", pytest.fail)
    monkeypatch.setattr("perfsuite.measure.timing.comparison.compare_calls", pytest.fail)
    result = saved.runpytest_inprocess("--perf", "--perf-changed", REPORT)
    result.assert_outcomes(passed=4)
    seen = verdicts(saved)
    assert seen["host/step ratio to return"] == ["unchanged", "unchanged"], "of the budget and of the baseline"
    assert seen["lambda to return per unit"] == ["unchanged"]
    assert seen["host host calls"] == ["pass"]
    assert "pass" not in {*seen["host to ready"], *seen["host to return"], *seen["host p99"]}
    assert not [line for line in result.outlines if line.startswith("timed: ")]
    result.stdout.fnmatch_lines(["* metrics of 4 tests: 3 pass, * unchanged, *"])


def test_without_the_option_all_of_it_is_timed(saved):
    saved.runpytest_inprocess("--perf", REPORT)
    assert not {"unchanged"} & {verdict for each in verdicts(saved).values() for verdict in each}


def test_what_changed_is_timed_and_the_summary_says_what(saved):
    saved.makepyfile(test_step=SAVED.replace("ROUNDS = 2", "ROUNDS = 2 + 0  # twice"))
    result = saved.runpytest_inprocess("--perf", "--perf-changed", REPORT)
    assert not [line for line in result.outlines if line.startswith("timed: ")], "it does the same"
    saved.makepyfile(test_step=SAVED.replace("ROUNDS = 2", "ROUNDS = 3"))
    result = saved.runpytest_inprocess("--perf", "--perf-changed", REPORT)
    result.stdout.fnmatch_lines(["timed: 2 the host calls and the Python code changed"])
    assert verdicts(saved)["lambda to return per unit"] == ["unchanged"]
    result.stdout.fnmatch_lines(["*host host calls is * over the baseline*"])
    assert "unchanged" not in verdicts(saved)["host/step ratio to return"]


HOST = "    return step(state, batch)\n\ndef made"
PLANTS = {
    "more Python": ("test_compare", "ROUNDS = 2", "ROUNDS = 100", "*ratio to return is *"),
    "a wait": ("test_compare", HOST, f"    time.sleep(5e-3)\n{HOST}", "*ratio to return is *"),
    "one host call more": ("test_calls", "ROUNDS = 2", "ROUNDS = 3", "*host calls is *"),
    "a slope": (
        "test_scaling",
        "leaf * 2 for leaf in leaves])",
        "leaf for leaf in leaves if not time.sleep(2e-4)])",
        "*per unit is *",
    ),
    "a longer step": ("test_time", HOST, f"    time.sleep(2e-2)\n{HOST}", "*to re* is *over the baseline*"),
}
"""So large that no load of the machine explains them away."""


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_regression_fails_with_the_option_as_without(project, plant):
    test, before, after, message = PLANTS[plant]
    # A time gates where it outlasts what the operating system gives to others.
    saved = f"import time\n{SAVED}".replace(HOST, f"    time.sleep(1e-3)\n{HOST}" if plant == "a longer step" else HOST)
    assert before in saved
    project.makepyfile(test_step=saved)
    project.runpytest_inprocess("--perf-save", "-k", test).assert_outcomes(passed=1, deselected=3)
    planted = saved.replace(before, after)
    project.makepyfile(
        test_step=planted.replace("jax.jit(lambda leaves", "(lambda leaves") if plant == "a slope" else planted
    )
    for option in ([], ["--perf-changed"]):
        result = project.runpytest_inprocess("--perf", "--perf-seconds=2", *option, "-k", test)
        result.assert_outcomes(failed=1, deselected=3)
        result.stdout.fnmatch_lines([message])


def test_a_budget_that_the_recorded_value_does_not_keep_is_timed(saved):
    saved.makepyfile(test_step=SAVED.replace("Budget(ratio=1000)", "Budget(ratio=0.001)"))
    result = saved.runpytest_inprocess("--perf", "--perf-changed", "-k", "compare")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*BudgetExceeded*", "timed: 1 its baseline does not keep the budget"])


def test_a_budget_is_not_kept_by_what_another_machine_took(saved):
    saved.makepyfile(test_step=SAVED.replace("Budget(ratio=1000)", "Budget(ratio=1000, overhead_us=1e6)"))
    option = "--perf", "--perf-changed", "-k", "compare"
    saved.runpytest_inprocess(*option).stdout.no_fnmatch_line("timed: *")
    (file,) = (saved.path / "baselines").glob("*.json")
    recorded = json.loads(file.read_text())
    ((id, environment),) = recorded["environments"].items()
    recorded["environments"]["another"] = {**environment, "processor": "Abacus"}
    for metrics in recorded["metrics"].values():
        for name, entry in metrics.items():
            entry["environment"] = "another" if "overhead" in name else id
    file.write_text(json.dumps(recorded))
    saved.runpytest_inprocess(*option).stdout.fnmatch_lines(["timed: 1 overhead* has no baseline of this machine"])


def test_a_test_that_reads_samples_gets_them(saved):
    more = """
    def test_read(perf):
        made_of = perf.compare(made(host), made(step), until="return", name="read")
        assert made_of.verdict in ("recorded", "new", "unchanged")
        ratio = made_of.ratio.value
        assert made_of.pairs == len(made_of.candidate_us) > 2
        assert made_of.ratio.value == ratio
        timing = perf.time(made(host), name="read")
        assert timing.to_ready.median_us > 0
    """
    saved.makepyfile(test_step=SAVED + "\n" + "\n".join(line[4:] for line in more.splitlines()))
    saved.runpytest_inprocess("--perf-save", "-k", "read").assert_outcomes(passed=1, deselected=4)
    result = saved.runpytest_inprocess("--perf", "--perf-changed", REPORT, "-k", "read")
    result.assert_outcomes(passed=1, deselected=4)
    assert verdicts(saved)["read ratio to return"] == ["unchanged"]


def edited(project: pytest.Pytester, **fields) -> None:
    """Change fields of all entries in the baseline file; None takes one away."""
    (file,) = (project.path / "baselines").glob("*.json")
    recorded = json.loads(file.read_text())
    for test in recorded["metrics"].values():
        for entry in test.values():
            entry.update(fields)
            for field in [field for field, value in fields.items() if value is None]:
                entry.pop(field)
    file.write_text(json.dumps(recorded))


def test_a_baseline_without_a_fingerprint_is_timed(saved):
    edited(saved, fingerprint=None)
    result = saved.runpytest_inprocess("--perf", "--perf-changed")
    result.stdout.fnmatch_lines(["timed: 3 its baseline has no fingerprint"])


def test_another_version_is_timed(saved):
    (file,) = (saved.path / "baselines").glob("*.json")
    file.write_text(re.sub(r'"flax": "[^"]*"', '"flax": "0.0.1"', file.read_text()))
    result = saved.runpytest_inprocess("--perf", "--perf-changed")
    result.stdout.fnmatch_lines(["timed: 3 the machine or a version is another one"])


def test_a_call_without_a_fingerprint_says_why_and_is_timed(project):
    project.makepyfile(
        test_step="""
        from steps import *

        seen = []

        def more(x):
            seen.append(1)
            for _ in seen: len("")
            return x

        def test_step(perf): perf.compare(call(more, batch()), call(more, batch()), until="return")
        """
    )
    result = project.runpytest_inprocess("--perf-save")
    result.stdout.fnmatch_lines(["without a fingerprint: 1 no fingerprint: it does something else in each run"])
    assert not any("fingerprint" in entry for entry in entries(project).values())
    result = project.runpytest_inprocess("--perf", "--perf-changed")
    result.stdout.fnmatch_lines(["timed: 1 its baseline has no fingerprint"])


def test_a_new_test_is_timed(saved):
    saved.makepyfile(
        test_new="from test_step import host, made\n\ndef test_new(perf): perf.time(made(host), name='new')\n"
    )
    result = saved.runpytest_inprocess("--perf", "--perf-changed", REPORT, "test_new.py")
    result.assert_outcomes(passed=1)
    assert "unchanged" not in verdicts(saved)["new to ready"]


def test_a_save_of_the_same_times_renews_the_fingerprint(saved):
    before = entries(saved)
    saved.makepyfile(test_step=SAVED.replace("in range(ROUNDS)", "in [0] * ROUNDS"))
    saved.runpytest_inprocess("--perf-save").assert_outcomes(passed=4)
    after = entries(saved)["compare ratio to return"]["fingerprint"]
    assert after["python"] != before["compare ratio to return"]["fingerprint"]["python"]
    result = saved.runpytest_inprocess("--perf", "--perf-changed")
    assert not [line for line in result.outlines if line.startswith("timed: ")]


@pytest.mark.parametrize("other", ["--perf-save", "--perf-calibrate"])
def test_options_that_contradict_it_are_refused(project, perf_test, other):
    perf_test("perf.time(call(step, state(), batch(), carry=1))")
    result = project.runpytest_inprocess("--perf-changed", other)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--perf-changed*contradict each other*"])


def test_the_page_of_reports_has_the_verdict(saved):
    saved.runpytest_inprocess("--perf", "--perf-changed", REPORT).assert_outcomes(passed=4)
    report = json.loads((saved.path / "report" / "report.json").read_text())
    assert "--perf-changed" in report["header"]["options"]
    assert any(metric["verdict"] == "unchanged" for test in report["tests"] for metric in test["metrics"])
    assert "unchanged" in Path(saved.path / "report" / "report.md").read_text()
