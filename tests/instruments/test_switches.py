"""An instrument that fails names JAX's own switches first, where they are on and disturb it."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import pytest

from perfsuite import Budget, call
from perfsuite.gate.budget import BudgetExceeded
from perfsuite.gate.messages import reason
from perfsuite.gate.verdict import Part, Result, Verdict, judge_budget
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.settle import agreed_run
from perfsuite.measure.errors import MeasurementError, RecompilationError, TransferError
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.runtime.transfers import forbid_transfers
from perfsuite.measure.switches import switches_first

X = jnp.ones(3)


@contextlib.contextmanager
def switched(name, value=True):
    if name in ("jax_debug_nans", "jax_debug_infs"):
        # A thread that was in one of these contexts before does not see the switch of all threads.
        with getattr(jax, name.removeprefix("jax_"))(value):
            yield
        return
    before = jax.config.values[name]
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def donation(perf):
    perf.donation(call(jax.jit(lambda x: x * 2, donate_argnums=0), jnp.ones(3), carry=1), budget=Budget(undonated=0))


def host_calls(perf):
    perf.host_calls(call(jax.jit(lambda x: x * 3), X), budget=Budget(host_calls=2))


def first_call(perf):
    traced = jax.jit(lambda x: jnp.sin(x) * 4)
    perf.first_call(call(traced, X), budget=Budget(lowering_calls=100))


@pytest.mark.parametrize(
    ("name", "measure"),
    [
        ("jax_debug_nans", donation),
        ("jax_debug_infs", host_calls),
        ("jax_disable_jit", host_calls),
        ("jax_debug_key_reuse", host_calls),
        ("jax_enable_checks", first_call),
        ("jax_log_compiles", first_call),
    ],
)
def test_a_budget_that_a_switch_breaks_names_it_before_anything_else(bare_perf, name, measure):
    with switched(name), pytest.raises(BudgetExceeded) as raised:
        measure(bare_perf)
    cause = str(raised.value).partition("likely cause: ")[2]
    assert cause.startswith(f"{name} is True: ")
    assert f"jax.config.update('{name}', False)" in cause.splitlines()[0]
    assert "donate_argnums" not in cause


def test_an_open_verdict_names_the_switch_too(bare_perf):
    ratio = Metric("ratio", 1.0, "x", "ratio", interval=Interval(0.9, 1.1))
    recorder = bare_perf._state.recorder
    recorder.method = "perf.stays_async"
    with switched("jax_debug_nans"):
        recorder.apply([judge_budget("t", ratio, limit) for limit in (1.0, 2.0)])
    undecided, passed = recorder.results
    assert undecided.cause.startswith("jax_debug_nans is True: ")
    assert passed.cause == ""


def test_the_functions_that_a_switch_calls_get_no_advice_before_it():
    """The advice is of the function alone, which a switch may call."""
    part = Part("numpy:asarray", 9, "numpy:asarray at a.py:1 in f")
    result = Result("t", Metric("calls", 9, "calls", "count"), Verdict.FAIL, "baseline", 0, baseline=0, grown=(part,))
    assert len(reason(result).splitlines()) == 2
    assert len(reason(dataclasses.replace(result, cause="a switch")).splitlines()) == 1


def test_without_a_switch_none_is_named(bare_perf):
    donation(bare_perf)
    host_calls(bare_perf)
    with pytest.raises(BudgetExceeded) as raised:
        first_call(bare_perf)
    assert "jax.config" not in str(raised.value)


def test_a_switch_that_disturbs_another_instrument_is_not_named(bare_perf):
    with switched("jax_log_compiles"), pytest.raises(BudgetExceeded) as raised:
        bare_perf.host_calls(call(lambda x: x * 5, X), budget=Budget(host_calls=0))
    assert "jax_log_compiles" not in str(raised.value)


def test_what_is_judged_by_a_baseline_has_the_switches_of_when_it_was_measured(bare_perf):
    with switched("jax_debug_nans"):
        bare_perf.host_calls(call(jax.jit(lambda x: x * 6), X), name="step")
    recorded = bare_perf._state.recorder._recorded["step host calls"]
    assert recorded.evidence.cause.startswith("jax_debug_nans is True: ")


def test_a_recompilation_and_a_transfer_name_the_switch_first():
    step = jax.jit(lambda x: x.sum())
    with switched("jax_check_tracer_leaks"), pytest.raises(RecompilationError) as raised, compiles.forbid():
        step(X)
    assert str(raised.value).startswith("jax_check_tracer_leaks is True: ")
    with switched("jax_debug_nans"), pytest.raises(TransferError) as moved, forbid_transfers():
        float(step(X))
    assert str(moved.value).startswith("jax_debug_nans is True: ")


def test_counts_that_differ_name_the_switch_first():
    numbers = iter(range(9))
    with switched("jax_check_tracer_leaks"), pytest.raises(MeasurementError) as raised:
        agreed_run(lambda: next(numbers), lambda number: (number,), "step: the host calls differ")
    assert str(raised.value).startswith("jax_check_tracer_leaks is True: ")


def test_a_switch_that_is_usually_on_is_named_where_it_is_off():
    with switched("jax_cpu_enable_async_dispatch", False):
        words = switches_first("perf.stays_async", "it waits")
    assert words.startswith("jax_cpu_enable_async_dispatch is False: ")
    assert words.endswith("jax.config.update('jax_cpu_enable_async_dispatch', True)\nit waits")
