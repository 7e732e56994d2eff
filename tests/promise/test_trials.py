"""`promise.trials`: gates whose truth is known."""

import jax
import jax.numpy as jnp
import pytest

from perfsuite.measure.call import call
from promise import trials
from promise.trials import FLOOR_NS, Planted, Workload

STEP = jax.jit(lambda state, x: (state + x, x.sum()), donate_argnums=0)


class Clock:
    """Goes on by 10 ns a reading, and by what the call takes."""

    def __init__(self, *call_ns):
        self.now = 0
        self.call_ns = list(call_ns)

    def __call__(self):
        self.now += 10
        return self.now

    def fn(self):
        self.now += self.call_ns.pop(0)


@pytest.mark.parametrize("slowdown", [0.0, 0.005, 0.03, 0.5])
def test_the_plant_is_its_share_of_what_each_run_took(monkeypatch, slowdown):
    clock = Clock(1_000_000, 4_000_000, 250_000)
    monkeypatch.setattr(trials, "now_ns", clock)
    planted = Planted(call(clock.fn), lambda outputs: None, slowdown)
    for took in (1_000_000, 4_000_000, 250_000):
        start = clock.now
        planted()
        assert clock.now - start == pytest.approx((took + FLOOR_NS) * (1 + slowdown), abs=50)


def test_a_donated_state_serves_both_sides_and_outlives_the_gate():
    made = call(STEP, jnp.zeros(3), jnp.ones(3), carry=1)
    workload = Workload(made)
    alike = workload.trial(seconds=0.1)
    planted = workload.trial(1.0, seconds=20)
    assert planted.interval.low > 1
    workload.give_back()
    state, _ = made.run()
    # Both sides carried it on: it is not the state of before.
    assert float(state[0]) > 2 * (alike.pairs + planted.pairs)
