"""`perf.stays_async`, `perf.stalls` and `perf.fast_path` in a user's session: regressions planted, with their controls."""

import re

STEPS = """
import itertools, time
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from perfsuite import Budget, BudgetExceeded, call
from perfsuite.measure.timing.waits import NO_PLACE

def work(x):
    for _ in range(8):
        x = x @ x
    return x

X, SMALL = jnp.eye(400), jnp.ones(8)
step = jax.jit(work)
small_step = jax.jit(lambda x: x * 2)

def reads_the_loss(x):
    y = step(x)
    loss = float(y[0, 0])
    return y, loss

def sleeps(x):
    time.sleep(0.1)
    return step(x)

def stalling(every):
    runs = itertools.count(1)
    def logs_now_and_then(x):
        if next(runs) % every == 0:
            time.sleep(0.2)
        return small_step(x)
    return logs_now_and_then

@jax.jit
def prints(x):
    jax.debug.callback(lambda y: None, x)
    return x * 2

@jax.jit
def raises_once(x):
    if failing:
        raise ValueError("once")
    return x + 1

failing = [True]
with pytest.raises(ValueError):
    raises_once(SMALL)
failing.clear()

mesh = jax.make_mesh((2,), ("a",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
split = jax.sharding.NamedSharding(mesh, jax.P("a"))
sharded_step = jax.jit(lambda x: x * 2, in_shardings=split)

def eager_gradient(x):
    return jax.grad(lambda y: small_step(y).sum())(x)
"""

TESTS = """
from steps import *

ZERO = Budget(fast_path_misses=0)
CALLS = {
    "plain": call(small_step, SMALL),
    "numpy": call(small_step, np.ones(8, np.float32)),
    "sharded": call(sharded_step, jax.device_put(SMALL, split)),
    "jitted_gradient": call(jax.jit(eager_gradient), SMALL),
    "prints": call(prints, SMALL),
    "io": call(jax.jit(lambda x: io_callback(lambda y: np.asarray(y), x, x)), SMALL),
    "raises_once": call(raises_once, SMALL),
    "unsharded": call(sharded_step, SMALL),
    "eager_gradient": call(eager_gradient, SMALL),
}

@pytest.mark.parametrize("which", CALLS)
def test_fast_path(perf, which):
    perf.fast_path(CALLS[which], budget=ZERO, name=which)

@pytest.mark.perf(seconds=5)
@pytest.mark.parametrize("which", ["control", "filter_jit", "loss", "sleep"])
def test_stays_async(perf, which):
    fn = {"control": step, "filter_jit": eqx.filter_jit(work), "loss": reads_the_loss, "sleep": sleeps}[which]
    assert perf.stays_async(call(fn, X), name=which).waits is False

@pytest.mark.perf(seconds=20)
def test_too_small(perf):
    def slow_host(x):
        end = time.perf_counter() + 2e-3
        while time.perf_counter() < end:
            pass
        return small_step(x)
    assert perf.stays_async(call(slow_host, SMALL)).waits is None

@pytest.mark.perf(seconds=20)
@pytest.mark.parametrize("every", [10**9, 600, 100])
def test_stalls(perf, every):
    perf.stalls(call(stalling(every), SMALL), name=f"every {every}")

@pytest.mark.perf(seconds=20)
def test_unseen(perf, monkeypatch):
    monkeypatch.setattr("perfsuite.measure.timing.waits.counts_delays", lambda: False)
    monkeypatch.setattr("perfsuite.measure.timing.waits.certain_place", lambda places: NO_PLACE)
    assert perf.stalls(call(stalling(100), SMALL), name="unseen").machine >= 10

def test_too_few(perf):
    assert not perf.stalls(call(lambda x: time.sleep(0.02), SMALL), name="slow").enough
"""


def line_of(text):
    return next(number for number, line in enumerate(STEPS.strip().splitlines(), 1) if text in line)


SAID = [
    # metric, then what the message says
    r"BudgetExceeded: prints fast-path misses is 1 miss, over the budget of 0 misses",
    r"prints \(1\) at steps\.py:\d+: it has effects \(DebugEffect\): jax\.debug\.print",
    r"lambda \(1\) at test_step\.py:\d+: it has effects \(IOEffect\)",
    r"raises_once \(1\) at steps\.py:\d+: .* an earlier call with this signature ended with an error",
    r"an argument that is moved: args\[0\] \(1\) at .*: jax\.device_put it once",
    r"lambda \(1\) at steps\.py:\d+: called with tracers: a transformation such as jax\.grad",
    r"BudgetExceeded: filter_jit waits for the device before it returns: it returns at \d+% of its time to ready",
    r"likely cause: it waits at test_step\.py:\d+, in equinox/_jit\.py:\d+ in _call",
    rf"likely cause: it waits at steps\.py:{line_of('float')}, in jax/_src/array\.py:\d+ in ArrayImpl\._value",
    r"BudgetExceeded: sleep sleeps, for the device or for something else, before it returns: it returns at \d+%",
    rf"likely cause: it sleeps at steps\.py:{line_of('time.sleep(0.1)')}",
    r"inconclusive: .*slow_host may or may not wait for the device: .*Take a larger input",
    r"BudgetExceeded: every 100: 3 of \d+ calls stalled, for \d+(\.\d+)? ms or less, where the median call",
    rf"likely cause: meanwhile it was at steps\.py:{line_of('time.sleep(0.2)')}$",
    r"inconclusive: .*every 600: 1 of \d+ calls stalled, .*; one can be the machine's: run it again",
    r"inconclusive: .*unseen: none of 1000 calls stalled; \d+ more may be the machine's; ",
    r"inconclusive: .*slow: none of \d+ calls stalled.*; a stall in one of a hundred shows for certain in 920: --perf-seconds=\d+",
]


def test_each_plant_is_caught_and_named_and_no_control_is(project):
    project.makepyfile(steps=STEPS, test_step=TESTS)
    result = project.runpytest_inprocess("--perf", "-v", "-rA")
    output = result.stdout.str()
    passed = set(re.findall(r"^PASSED test_step\.py::(\S+)", output, re.MULTILINE))
    failed = set(re.findall(r"^FAILED test_step\.py::(\S+)", output, re.MULTILINE))
    assert passed == {
        *(f"test_fast_path[{name}]" for name in ("plain", "numpy", "sharded", "jitted_gradient")),
        "test_stays_async[control]",
        "test_too_small",
        "test_stalls[1000000000]",
        "test_stalls[600]",
        "test_unseen",
        "test_too_few",
    }, output
    assert failed == {
        *(f"test_fast_path[{name}]" for name in ("prints", "io", "raises_once", "unsharded", "eager_gradient")),
        "test_stays_async[filter_jit]",
        "test_stays_async[loss]",
        "test_stays_async[sleep]",
        "test_stalls[100]",
    }, output
    for words in SAID:
        assert re.search(words, output, re.MULTILINE), f"{words}\n{output}"


def test_more_misses_than_the_baseline_fail_and_are_named(perf_test, project):
    hits = "fn = jax.jit(lambda x: x + 1)"
    check = "perf.fast_path(call(fn, jnp.ones(3)), name='step')"
    perf_test(hits, check)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    perf_test("fn = jax.jit(lambda x: (jax.debug.callback(lambda y: None, x), x + 1)[1])", check)
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r".*step fast-path misses is 1 miss, \S+ over the baseline 0 misses; grew: lambda \(\+1\) at test_step\.py:4",
            r".*likely cause: lambda \(1\) at test_step\.py:4: it has effects \(DebugEffect\)",
        ]
    )
