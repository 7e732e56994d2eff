"""Where the time went, in the message of a time gate that fails: planted operations are named, a control says nothing.

No gate here needs a quiet machine: the planted sort makes the step more than 200 times as long (0.02 and 5 ms to ready, on
a 2-core x86-64 machine with a load of 1), and the widest limit of a comparison is 5 times.
"""

import pytest

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

PLANTED = HEAD.replace("jnp.tanh(x @ x)", "jnp.sort(jnp.concatenate([x] * 20), axis=0)[:64] + jnp.tanh(x @ x)", 1)
COMPARE = "perf.compare(call(step, X), call(reference, X), Budget(ratio=2))"
TRACED = "*traced, a run*"


@pytest.fixture
def run(pytester, no_fresh_process):
    """Run one perf test, with pytest's cache. A comparison stops as soon as its limit is kept or broken."""

    def run(head, *lines, options=("--perf",)):
        body = "\n".join(f"    {line}" for line in lines)
        clock = CLOCK.replace("1e5", "1e8") if head is PLANTED else CLOCK
        pytester.makepyfile(test_step=f"{head}\n{clock}\n\ndef test_step(perf, monkeypatch):\n{body}\n")
        limited = "compare" in body and ("Budget" in body or head is PLANTED)
        seconds = f"--perf-seconds={10 if limited else 4 if head is PLANTED else 0.5}"
        return pytester.runpytest_inprocess(*options, seconds)

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
        "*step/reference ratio to ready is *, +* % over the budget of 2 x*",
        "*likely cause: operations on the device take longer, by * us a run",
        "*traced, a run: * us, device * us, idle share *; the longest operations:",
        "*  jit_step: *sort*: * us, 1 x",
    )
    assert not list(pytester.path.rglob("*.xplane.pb"))


def test_the_call_moves_on_while_it_is_traced(run):
    compare = [
        "step = jax.jit(train, donate_argnums=0)",
        "slow = jax.jit(lambda state, x: train(state, jnp.sort(jnp.concatenate([x] * 20), axis=0)[:64]), donate_argnums=0)",
        "training = call(slow, {'w': jnp.ones(3)}, X, carry=1)",
        "with pytest.raises(AssertionError, match='longest operations:\\n .*sort'):",
        "    perf.compare(training, call(step, {'w': jnp.ones(3)}, X, carry=1), Budget(ratio=2))",
        "jax.block_until_ready(training.run())",
    ]
    run(HEAD, *compare).assert_outcomes(passed=1)


def test_a_time_without_a_reference_has_no_cause_but_its_longest_operations(run):
    lines = [
        "monkeypatch.setattr(timing, 'run_block', steady)",
        "perf.time(call(step, X), tolerance=30)",
    ]
    run(HEAD, *lines, options=["--perf-save"]).assert_outcomes(passed=1)
    run(HEAD, *lines).assert_outcomes(passed=1)
    fails(
        run(PLANTED, *lines),
        "*step to * is * over the baseline *",
        "cause unknown: a plain time has no reference; perf.compare with the old code has one, or perfsuite against REV",
        "traced, a run: * us, *; the longest operations:",
        "  jit_step: *sort*: * us, 1 x",
    )


def test_a_tail_over_its_budget_says_what_takes_the_time(run):
    fails(
        run(HEAD, "perf.time(call(step, X), budget=Budget(p99_us=0.01))"),
        "*likely cause: the median is * us: single calls stall",
        "*traced, a run: * us, device * us, *; the longest operations:",
        "*jit_step: *fusion*: * us, 1 x",
    )


def test_an_error_while_tracing_does_not_hide_the_failure(run):
    fails(
        run(
            PLANTED,
            "import perfsuite.instruments.tracing",
            "def broken(call, runs): raise OSError('disk full\\nreally')",
            "monkeypatch.setattr(perfsuite.instruments.tracing, 'trace_call', broken)",
            COMPARE,
        ),
        "*step/reference ratio to ready is *, +* % over the budget of 2 x*",
        "*where the time went could not be traced: OSError: disk full really",
    )


@pytest.mark.parametrize(
    ("longer_us", "said"), [(11, "cause unknown: "), (9000, "likely cause: operations on the device ")]
)
def test_operations_are_the_cause_only_if_what_they_take_longer_explains_the_time(run, longer_us, said):
    fails(
        run(
            HEAD,
            "import perfsuite.instruments.tracing",
            "from perfsuite.measure.trace import Trace",
            "def taking(us): return Trace(None, 1, 900.0 + us, us, 0.5, ())",
            "def slow(x): return sum(range(300_000)), reference(x)  # some milliseconds",
            f"trace_call = lambda call, runs: taking(200.0 + {longer_us} * (call.fn is slow))",
            "monkeypatch.setattr(perfsuite.instruments.tracing, 'trace_call', trace_call)",
            "perf.compare(call(slow, X), call(reference, X), Budget(ratio=2))",
        ),
        f"*{said}*",
        f"*traced, a run: * us, device {200 + longer_us} us, *",
    )


def test_where_a_call_sleeps_is_named(run, pytester):
    result = run(
        HEAD,
        "from time import sleep",
        "def slow(x):",
        "    sleep(10e-3)",
        "    return reference(x)",
        "perf.compare(call(slow, X), call(reference, X), Budget(ratio=1.2))",
    )
    (line,) = (
        number
        for number, text in enumerate((pytester.path / "test_step.py").read_text().splitlines(), 1)
        if "sleep(10e-3)" in text
    )
    said = f"*likely cause: slow sleeps for *% of its time before it returns, at test_step.py:{line}. If it waits *"
    fails(result, said)


def test_calls_that_run_nothing_on_a_device_have_a_cause_without_a_trace(run):
    result = run(
        HEAD,
        "from time import sleep",
        "perf.compare(call(sleep, 10e-3), call(sleep, 1e-4), Budget(ratio=2))",
    )
    fails(result, "*ratio to ready is *", "*likely cause: sleep sleeps for *")
    result.stdout.no_fnmatch_line("*traced*")
