"""What the modes of a session leave to each instrument: for how long it may sample."""

import types

import numpy as np
from support.fakes import FakeBlocks, takes

from perfsuite.measure.call import call
from perfsuite.measure.timing import timing
from perfsuite.measure.timing.timing import LEAST_SAMPLES, time_call
from perfsuite.session.child_modes import MOMENT, Exact, TimingOneSide
from perfsuite.session.modes import Gating


def test_one_side_of_a_check_samples_for_a_moment_and_takes_the_time_that_an_exact_metric_asks_for():
    session = types.SimpleNamespace()
    exact = Exact(session, print)
    assert (exact.seconds(5.0), exact.seconds_to_know(5.0)) == (MOMENT, 5.0)


def test_a_gate_samples_for_as_long_as_its_test_asks():
    gating = Gating(types.SimpleNamespace())
    assert (gating.seconds(5.0), gating.seconds_to_know(5.0)) == (5.0, 5.0)


def test_a_process_that_only_times_takes_all_of_its_seconds(monkeypatch):
    mode = TimingOneSide(types.SimpleNamespace(), print, 0.4)
    assert mode.seconds(5.0) == 0.4
    FakeBlocks().install(monkeypatch, timing)
    us = np.random.default_rng(0).uniform(999, 1001, size=1000)
    for known_to, enough in ((timing.PRECISION, True), (mode.known_to, False)):
        samples = time_call(call(takes(*us)), seconds=0.4, precision=known_to).samples_us
        assert (len(samples) == LEAST_SAMPLES) == enough
