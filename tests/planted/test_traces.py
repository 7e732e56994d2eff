"""What grew, in the message of a time gate that fails: planted operations are named, and a control says nothing.

No gate here needs a quiet machine: the planted sort makes the step about 700 times as long (0.12 and 81 ms to ready, on
a 2-core x86-64 machine with a load of 4), and the widest limit is 31 times.
"""

import gzip
import json

import pytest

pytestmark = pytest.mark.alone

HEAD = """
import jax
import jax.numpy as jnp
import pytest
from perfsuite import Budget, call

X = jnp.arange(64 * 64.0).reshape(64, 64)

@jax.jit
def step(x):
    return jnp.tanh(x @ x)

@jax.jit
def reference(x):
    return jnp.tanh(x @ x)

@jax.jit
def train(state, x):
    return {"w": state["w"] + 1.0}, jnp.tanh(x @ x).sum()
"""

CLOCK = """
from perfsuite.measure.timing import timing

run_block = timing.run_block

def steady(subject):
    run_block(subject)
    return timing.Sample(NS, NS)

NS = 1e5
"""
"""A clock for `perf.time`, whose 99th percentile depends on the machine: every call takes 0.1 ms, or 100 ms if planted."""

PLANTED = HEAD.replace("jnp.tanh(x @ x)", "jnp.sort(jnp.concatenate([x] * 100), axis=0)[:64] + jnp.tanh(x @ x)", 1)
COMPARE = "perf.compare(call(step, X), call(reference, X), Budget(ratio=2))"
TRACED = "*traced, a run*"
UNKNOWN = "*(no trace of the baseline is kept here): host * us, *; the longest operations:"


@pytest.fixture
def run(pytester):
    """Run one perf test, with pytest's cache. A comparison stops as soon as its limit is kept or broken."""

    def run(head, *lines, options=("--perf",)):
        body = "\n".join(f"    {line}" for line in lines)
        clock = CLOCK.replace("1e5", "1e8") if head is PLANTED else CLOCK
        pytester.makepyfile(test_step=f"{head}\n{clock}\n\ndef test_step(perf, monkeypatch):\n{body}\n")
        limited = "compare" in body and ("Budget" in body or head is PLANTED)
        seconds = f"--perf-seconds={10 if limited else 0.5}"
        return pytester.runpytest_inprocess(*options, seconds, "--perf-processes=1")

    return run


def fails(result, *lines):
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(list(lines))


def test_an_operation_planted_in_the_candidate_is_named_and_no_file_is_left(run, pytester):
    control = run(HEAD, COMPARE)
    control.assert_outcomes(passed=1)
    control.stdout.no_fnmatch_line(TRACED)
    fails(
        run(PLANTED, COMPARE),
        "*step/reference ratio to ready is *, over the budget of 2 x",
        "*likely cause: unknown: host calls do not explain it*",
        "*traced, a run (reference -> step): host * -> * us, device * -> * us, idle share * -> *",
        "*  grew: jit_step: sort: 0 -> * us a run (+*), 0 -> 1 time",
    )
    assert not list(pytester.path.rglob("*.xplane.pb"))


def test_the_call_moves_on_while_it_is_traced(run):
    compare = [
        "step = jax.jit(train, donate_argnums=0)",
        "slow = jax.jit(lambda state, x: train(state, jnp.sort(jnp.concatenate([x] * 20), axis=0)[:64]), donate_argnums=0)",
        "training = call(slow, {'w': jnp.ones(3)}, X, carry=1)",
        "with pytest.raises(AssertionError, match='grew: .*sort'):",
        "    perf.compare(training, call(step, {'w': jnp.ones(3)}, X, carry=1), Budget(ratio=2))",
        "jax.block_until_ready(training.run())",
    ]
    run(HEAD, *compare).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("line", "metric"),
    [
        ("perf.time(call(step, X), tolerance=30)", "step to "),
        ("perf.compare(call(step, X), call(reference, X), tolerance=4)", "ratio"),
    ],
)
def test_a_baselines_failure_names_what_grew_since_as_long_as_its_trace_is_known(run, pytester, line, metric):
    lines = ["monkeypatch.setattr(timing, 'run_block', steady)", line] if "time" in line else [line]
    run(HEAD, *lines, options=["--perf-save"]).assert_outcomes(passed=1)
    control = run(HEAD, *lines)
    control.assert_outcomes(passed=1)
    control.stdout.no_fnmatch_line(TRACED)
    grown = [
        f"*{metric}* is * the baseline *",
        "*traced, a run (since the baseline): *",
        "  grew: jit_step: sort: 0 -> *",
    ]
    fails(run(PLANTED, *lines), *grown)
    if "time" in line:  # whose trace is no use any more where it was made elsewhere, or by another version
        for entry in (pytester.path / ".pytest_cache/d/perfsuite").glob("*.gz"):
            entry.write_bytes(
                gzip.compress(gzip.decompress(entry.read_bytes()).replace(b'"processor": "', b'"processor": "x'))
            )
        fails(run(PLANTED, *lines), UNKNOWN)
        run(HEAD, *lines, options=["--perf-save"])
        for entry in (pytester.path / ".pytest_cache/d/perfsuite").glob("*.gz"):
            entry.write_bytes(gzip.compress(gzip.decompress(entry.read_bytes()).replace(b'"host_us"', b'"us"')))
        fails(run(PLANTED, *lines), UNKNOWN)
        run(HEAD, *lines, options=["--perf-save"])
    path = pytester.path / "baselines/cpu.json"
    saved = json.loads(path.read_text())
    for entry in saved["metrics"]["test_step.py::test_step"].values():
        entry["value"] /= 2.1  # saved elsewhere since
        entry.pop("interval", None)
    path.write_text(json.dumps(saved))
    # A ratio still has its reference.
    known = (
        [
            UNKNOWN,
            "  jit_step: sort: * us, 1 time",
        ]
        if "time" in line
        else ["*traced, a run (reference -> step): *", "  grew: jit_step: sort: 0 -> *"]
    )
    fails(run(PLANTED, *lines), *known)


def test_a_tail_over_its_budget_says_what_takes_the_time(run):
    fails(
        run(HEAD, "perf.time(call(step, X), budget=Budget(p99_us=0.01))"),
        "*likely cause: the median is * us: single calls stall",
        "*traced, a run: host * us, device * us, *; the longest operations:",
        "*jit_step: *fusion*: * us, 1 time",
    )


def test_an_error_while_tracing_does_not_hide_the_failure(run):
    fails(
        run(
            PLANTED,
            "import perfsuite.instruments.tracing",
            "def broken(*calls, us): raise OSError('disk full\\nreally')",
            "monkeypatch.setattr(perfsuite.instruments.tracing, 'profiles', broken)",
            COMPARE,
        ),
        "*step/reference ratio to ready is *, over the budget of 2 x",
        "*what grew could not be traced: OSError: disk full really",
    )


def test_of_calls_that_run_nothing_on_a_device_the_host_calls_speak_alone(run):
    result = run(
        HEAD,
        "from time import sleep",
        "perf.compare(call(sleep, 30e-3), call(sleep, 1e-3), Budget(ratio=2))",
    )
    fails(result, "*ratio to ready is *", "*likely cause: unknown: host calls do not explain it*")
    result.stdout.no_fnmatch_line("*traced*")
