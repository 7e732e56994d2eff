"""`gate.diagnosis`: the likely cause of a slow candidate, in words."""

import numpy as np
import pytest

from perfsuite.gate.diagnosis import likely_cause
from perfsuite.measure.comparison import Comparison, Estimate
from perfsuite.measure.hostcalls import HostCalls
from perfsuite.measure.measurement import Interval

ASYNCHRONOUS = (100.0, 1000.0)
"""Microseconds until a call returns and until its outputs are ready."""
WAITING = (990.0, 1000.0)


def comparison(candidate_us, reference_us, pairs=5):
    unknown = Estimate(1.0, Interval(0.0, 2.0))
    columns = [np.tile(side, (pairs, 1)) for side in (candidate_us, reference_us)]
    return Comparison("candidate", "reference", "ready", unknown, unknown, *columns, looks=1, seconds=1.0)


def calls(**by_function):
    return HostCalls("step", sum(by_function.values()), 0, by_function)


def test_a_candidate_that_waits_for_the_device_where_the_reference_does_not_is_said_to_wait():
    cause = likely_cause(comparison(WAITING, ASYNCHRONOUS), calls(f=10), calls(f=10))
    assert "candidate returns only when the device is done" in cause
    assert "99% of its time has passed by then, 10% for reference" in cause
    assert "something in it waits" in cause


@pytest.mark.parametrize(
    ("candidate_us", "reference_us"), [(ASYNCHRONOUS, ASYNCHRONOUS), (WAITING, WAITING), (ASYNCHRONOUS, WAITING)]
)
def test_a_candidate_that_waits_no_more_than_the_reference_is_not_said_to_wait(candidate_us, reference_us):
    assert "waits" not in likely_cause(comparison(candidate_us, reference_us), calls(f=10), calls(f=10))


def test_one_stalled_sample_does_not_make_a_call_one_that_waits():
    measured = comparison(ASYNCHRONOUS, ASYNCHRONOUS)
    measured.candidate_us[0] = (1e6, 1e6)
    assert "waits" not in likely_cause(measured, calls(f=10), calls(f=10))


def test_more_host_calls_blame_python_and_name_the_three_functions_that_grew_most():
    candidate = calls(combine=90, flatten=50, hash=12, partition=11, same=7)
    reference = calls(flatten=10, hash=10, same=7, gone=40)
    cause = likely_cause(comparison(ASYNCHRONOUS, ASYNCHRONOUS), candidate, reference)
    assert cause.startswith("Python on the host: 170 host calls against 67 of reference")
    assert cause.endswith("above all combine (+90), flatten (+40), partition (+11)")


@pytest.mark.parametrize("candidate", [calls(f=10), calls(f=3)])
def test_no_more_host_calls_look_elsewhere(candidate):
    cause = likely_cause(comparison(ASYNCHRONOUS, ASYNCHRONOUS), candidate, calls(f=10))
    assert cause.startswith(f"not Python on the host ({candidate.total} host calls against 10 of reference)")
    assert "the compiled program" in cause


def test_c_calls_count_as_host_calls():
    candidate = HostCalls("step", 5, 10, {"list:append": 10, "f": 5})
    assert "15 host calls against 5" in likely_cause(comparison(WAITING, WAITING), candidate, calls(f=5))


def test_two_causes_are_both_named():
    cause = likely_cause(comparison(WAITING, ASYNCHRONOUS), calls(f=20), calls(f=10))
    assert "something in it waits; Python on the host: 20 host calls" in cause
