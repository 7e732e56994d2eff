"""The script that counts false alarms and slowdowns caught on a real call. Real gates, at its smallest size."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.metric import Interval
from perfsuite.measure.timing.block import Subject
from promise import real_gates
from promise.real_gates import FLOOR_NS, Planted, Trial, trial

STEP = jax.jit(lambda state, x: (state + x, x.sum()), donate_argnums=0)


def test_gates_run_on_a_busy_machine():
    ((row, trials),) = real_gates.main(["--gates", "1", "--rows", "+3 %"]).items()
    assert (row.planted, row.busy, len(trials)) == (0.03, True, 1)
    assert trials[0].pairs > 0


def test_the_table_counts_alarms_and_what_was_caught():
    def trial(low, high, seconds=2.0):
        return Trial(Interval(low, high), 100, seconds)

    none, busy, planted = real_gates.ROWS[:3]
    trials = {
        none: [trial(0.99, 1.01), trial(1.001, 1.02)],
        busy: [trial(0.98, 0.99)],
        planted: [trial(0.99, 1.01, 5.0), trial(1.001, 1.02, 1.0), trial(0.9, 0.99, 3.0)],
    }
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in real_gates.table(trials).splitlines()[2:]]
    assert [row[:4] for row in rows] == [
        ["A/A, quiet, 5 s", "1 of 2", "0", "2.0"],
        ["A/A, busy, 5 s", "0 of 1", "1", "2.0"],
        ["+1 %, quiet, 5 s", "1 of 3", "1", "3.0"],
    ]


@pytest.mark.parametrize("slowdown", [0.0, 0.005, 0.03, 0.5])
def test_the_plant_is_its_share_of_what_each_run_took(monkeypatch, slowdown):
    """On a clock that goes on by 10 ns a reading, and by what the call takes."""
    now, call_ns = 0, [1_000_000, 4_000_000, 250_000]

    def spend(ns):
        nonlocal now
        now += ns
        return now

    inner = SimpleNamespace(label="step", run=lambda: spend(took))
    monkeypatch.setattr(real_gates, "now_ns", lambda: spend(10))
    planted = Planted(SimpleNamespace(call=inner, wait=lambda outputs: None), slowdown)
    for took in call_ns:
        start = now
        planted()
        assert now - start == pytest.approx((took + FLOOR_NS) * (1 + slowdown), abs=50)


def test_a_donated_state_serves_both_sides_and_outlives_the_gate():
    training = call(STEP, jnp.zeros(3), jnp.ones(3), carry=1)
    subject = Subject(training)
    alike = trial(subject, seconds=0.1)
    planted = trial(subject, 1.0, seconds=20)
    assert planted.interval.low > 1
    subject.give_back()
    state, _ = training.run()
    # Both sides carried it on: it is not the state of before.
    assert float(state[0]) > 2 * (alike.pairs + planted.pairs)
