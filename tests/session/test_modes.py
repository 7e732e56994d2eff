"""What the modes of a session leave to each instrument: for how long it may sample."""

import types

from perfsuite.session.child_modes import MOMENT, Exact
from perfsuite.session.modes import Gating


def test_one_side_of_a_check_samples_for_a_moment_and_takes_the_time_that_an_exact_metric_asks_for():
    session = types.SimpleNamespace()
    exact = Exact(session, print)
    assert (exact.seconds(5.0), exact.seconds_to_know(5.0)) == (MOMENT, 5.0)


def test_a_gate_samples_for_as_long_as_its_test_asks():
    gating = Gating(types.SimpleNamespace())
    assert (gating.seconds(5.0), gating.seconds_to_know(5.0)) == (5.0, 5.0)
