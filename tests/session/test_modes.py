"""What the modes of a session leave to each instrument: for how long it may sample."""

import numpy as np
import pytest
from support.fakes import FakeBlocks, takes

from perfsuite.measure.call import call
from perfsuite.measure.timing import timing
from perfsuite.measure.timing.timing import LEAST_SAMPLES, time_call
from perfsuite.session.fresh import Request, gating, rerunning
from perfsuite.session.modes import MOMENT, exact, timing_one_side


def test_one_side_of_a_check_samples_for_a_moment_and_takes_the_time_that_an_exact_metric_asks_for():
    mode = exact(print)
    assert (mode.seconds(5.0), mode.seconds_to_know(5.0)) == (MOMENT, 5.0)


def test_a_gate_samples_for_as_long_as_its_test_asks():
    mode = gating()
    assert (mode.seconds(5.0), mode.seconds_to_know(5.0)) == (5.0, 5.0)


@pytest.mark.parametrize(("metric", "seconds"), [("a ratio", MOMENT), (None, 5.0)])
def test_what_comes_before_the_comparison_that_is_asked_for_takes_a_moment(tmp_path, metric, seconds):
    mode = rerunning(tmp_path, Request("test", "test", metric))
    assert (mode.seconds(5.0), mode.seconds_to_know(5.0)) == (seconds, seconds)


def test_a_process_that_only_times_takes_all_of_its_seconds(monkeypatch):
    mode = timing_one_side(print, 0.4)
    assert mode.seconds(5.0) == 0.4
    FakeBlocks().install(monkeypatch, timing)
    us = np.random.default_rng(0).uniform(999, 1001, size=1000)
    for arguments, enough in ((gating().timing, True), (mode.timing, False)):
        samples = time_call(call(takes(*us)), seconds=0.4, **arguments).samples_us
        assert (len(samples) == LEAST_SAMPLES) == enough
