"""What each train step costs beside the floor, a step over the same arrays in a list.

"To ready" is what the user waits for a step. `filter_jit`'s overhead shows in it whole; an asynchronous step hides its
own as far as the device has work to do meanwhile.
"""

import pytest

from perfsuite import Budget

pytestmark = pytest.mark.perf(seconds=3, quiet=True)  # one process compiles the steps for all tests

LOOSE = 0.25
"""Tolerance of ratios to ready: their device half runs on a thread pool, and two runs of the same code were 15 % apart."""


@pytest.mark.parametrize("variant", ["filter_jit", "optimizer", "cached_filter_jit", "partition", "flat"])
def test_step_time_over_the_floor(perf, plain_steps, variant):
    perf.compare(plain_steps.call(variant), plain_steps.call("list"), name=f"{variant}/list", tolerance=LOOSE)


@pytest.mark.parametrize("variant", ["filter_jit", "optimizer", "partition"])
def test_step_time_over_the_floor_with_dropout(perf, dropout_steps, variant):
    perf.compare(dropout_steps.call(variant), dropout_steps.call("list"), name=f"{variant}/list", tolerance=LOOSE)


@pytest.mark.parametrize("variant", ["filter_jit", "flat"])
def test_step_time(perf, plain_steps, variant):
    timing = perf.time(plain_steps.call(variant), name=variant)
    returns_at = timing.to_return.median_us / timing.to_ready.median_us
    perf.record(f"{variant} returns at", returns_at, unit="of the time to ready", kind="info")


@pytest.mark.parametrize("variant", ["filter_jit", "optimizer", "cached_filter_jit", "partition", "flat"])
def test_a_step_is_one_program(perf, plain_steps, variant):
    perf.dispatches(plain_steps.call(variant), budget=Budget(dispatches=1), name=variant)


def test_break_even_length_of_a_training_run(perf, plain_steps):
    """After how many steps the flat step has paid for what it takes longer to compile than `filter_jit`, if it does."""
    saved = perf.compare(
        plain_steps.call("filter_jit"), plain_steps.call("flat"), name="filter_jit/flat", tolerance=0.25
    )
    extra_seconds = plain_steps.compile_seconds["flat"] - plain_steps.compile_seconds["filter_jit"]
    steps = max(extra_seconds, 0.0) * 1e6 / max(saved.overhead_us.value, 1e-3)
    perf.record("break-even", steps, unit="steps", kind="info")
